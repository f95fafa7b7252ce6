"""A plan -> a Tune Searcher on an Optuna study: cells in, seeds fanned out, means told back.

`Proposals` is the search itself and knows no Ray: one Optuna study whose first trials are the grid's cells, each exactly
once, followed by what an adaptive method proposes. Each cell becomes one trial per seed; the study is told the mean over
seeds when all are in, or a failure when one diverged. A cell that was already proposed is never run again.

Re-runs propose the same cells, also in parallel: proposal n is drawn by a sampler seeded with (search seed, n) from a study
that has been told exactly the cells 0 .. n - window, in order, however early later cells came in (ADR 0003).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray.tune.search import Searcher

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, Trial
from tune_dml.space import Grid, Knob

if TYPE_CHECKING:
    import optuna

    from tune_dml.running.race import RacingProposals


REPEATS = 50  # how often a sampler may propose a known cell before the search is over


@dataclass
class _AskedCell:
    """One cell in the study."""

    cell: Cell
    keys: tuple[str, ...]
    """Of its trials, one a seed."""
    number: int
    """Of its trial in the study."""


class Proposals:
    """Which trials come next, and what the study has learnt.

    Args:
        plan: the cells known in advance, the seeds, the search method.
        known: values of trials that have ended, by key; NaN for those that diverged or failed.
        proposed: cells that earlier sessions proposed, in order.
        on_cell: told of every newly proposed cell before its trials start.
        on_note: told what must be said aloud.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        known: Mapping[str, float],
        proposed: Iterable[Cell] = (),
        on_cell: Callable[[Cell], None] = lambda cell: None,
        on_note: Callable[[str], None] = lambda text: None,
    ):
        self.plan = plan
        self.known = dict(known)
        self.on_cell = on_cell
        self.on_note = on_note
        self.study = _new_study(plan)
        self.distributions = {knob.path: _distribution(knob) for knob in plan.space.knobs}
        self.asked: list[_AskedCell] = []
        self.told = 0
        self.exhausted = plan.search.method == "grid"
        self.waiting: deque[Trial] = deque()
        self.digests = {cell.digest for cell in plan.cells}
        for cell in plan.cells:
            if not cell.baseline:
                self._ask_for(cell)
        self._queue(plan.cells)
        for cell in proposed:
            self._tell_up_to(len(self.asked) - plan.search.window)
            self._ask_for(cell)
            self.digests.add(cell.digest)
            self._queue([cell])

    def next_trial(self) -> Trial | None:
        """The next trial to run; None when one must end first, or when `finished`."""
        while not self.waiting and not self.exhausted:
            if len(self.asked) - self._first_open() >= self.plan.search.window:
                return None
            self._propose()
        return self.waiting.popleft() if self.waiting else None

    @property
    def finished(self) -> bool:
        """No trial is left to hand out, and none will come."""
        return self.exhausted and not self.waiting

    def ended(self, key: str, value: float) -> None:
        """A trial's metric; NaN when it diverged or failed."""
        self.known[key] = value

    def _queue(self, cells: Iterable[Cell]) -> None:
        """Seed by seed, so that a search cut short leaves whole replicates."""
        cells = list(cells)
        trials = [self.plan.trial(cell, seed) for seed in self.plan.seeds for cell in cells]
        self.waiting.extend(trial for trial in trials if trial.key not in self.known)

    def _propose(self) -> None:
        """Ask the study for one more cell; ends the search when the budget is spent or nothing new is left."""
        adaptive = len(self.asked) - sum(not cell.baseline for cell in self.plan.cells)
        if adaptive >= self.plan.search.num_samples:
            self.exhausted = True
            return
        self._tell_up_to(len(self.asked) - self.plan.search.window)
        index = len(self.plan.cells) + adaptive
        for attempt in range(REPEATS):
            self.study.sampler = _sampler(self.plan, len(self.asked), attempt)
            ticket = self.study.ask(self.distributions)
            cell = self.plan.cell(index, ticket.params)
            if cell.digest not in self.digests:
                self._take(cell, ticket.number)
                return
            self._tell_again(ticket.number, cell.digest)
        self.exhausted = True
        self.on_note(
            f"{self.plan.search.method} proposed only known cells {REPEATS} times after {adaptive} of "
            f"{self.plan.search.num_samples} samples: the space has no further cells to try"
        )

    def _take(self, cell: Cell, number: int) -> None:
        self.digests.add(cell.digest)
        self._asked_for(cell, number)
        self.on_cell(cell)
        self._queue([cell])

    def _ask_for(self, cell: Cell) -> None:
        """Put a given cell into the study, as one that is running."""
        from optuna.trial import TrialState, create_trial

        running = create_trial(state=TrialState.RUNNING, params=dict(cell.knobs), distributions=self.distributions)
        self.study.add_trial(running)
        self._asked_for(cell, len(self.study.get_trials(deepcopy=False)) - 1)

    def _asked_for(self, cell: Cell, number: int) -> None:
        keys = tuple(self.plan.trial(cell, seed).key for seed in self.plan.seeds)
        self.asked.append(_AskedCell(cell, keys, number))

    def _first_open(self) -> int:
        """The first cell that still lacks a seed: everything before it can be told."""
        for index in range(self.told, len(self.asked)):
            if self._value(self.asked[index]) is None:
                return index
        return len(self.asked)

    def _tell_up_to(self, last: int) -> None:
        """Tell the study cells 0 .. last, in order; they are all in."""
        while self.told <= last:
            asked = self.asked[self.told]
            value = self._value(asked)
            if value is None:
                break
            self._tell(asked.number, value)
            self.told += 1

    def _tell_again(self, number: int, digest: str) -> None:
        """A repeated proposal is answered from what is known, or dropped."""
        known = next((a for a in self.asked[: self.told] if a.cell.digest == digest), None)
        value = self._value(known) if known else None
        self._tell(number, math.nan if value is None else value)

    def _tell(self, number: int, value: float) -> None:
        from optuna.trial import TrialState

        if math.isfinite(value):
            self.study.tell(number, value)
        else:
            self.study.tell(number, state=TrialState.FAIL)

    def _value(self, asked: _AskedCell) -> float | None:
        """Mean over seeds; None while one is missing, NaN when one failed."""
        values = [self.known.get(key) for key in asked.keys]
        if any(value is None for value in values):
            return None
        return sum(values) / len(values)  # type: ignore[arg-type]


class CellSearcher(Searcher):  # type: ignore[misc]
    """`Proposals`, or a race's, as Ray Tune sees them. A trial's configuration is its key, label, seed and flat settings."""

    def __init__(self, proposals: Proposals | RacingProposals):
        super().__init__()  # no metric: Tune would demand it in every report
        self.proposals = proposals
        self.running: dict[str, Trial] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune pickles its parts for a restore of its own; ours are rebuilt from the ledger."""
        return {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next trial's configuration, None to wait, or FINISHED."""
        trial = self.proposals.next_trial()
        if trial is None:
            return Searcher.FINISHED if self.proposals.finished else None
        self.running[trial_id] = trial
        settings = {**trial.cell.settings, "seed": trial.seed}
        return {"key": trial.key, "label": trial.cell.label, "seed": trial.seed, "settings": settings}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Rows do not concern the search."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A trial's value has come with its closing report; a trial that ended without one has failed."""
        trial = self.running.pop(trial_id, None)
        if trial is not None and trial.key not in self.proposals.known:
            self.proposals.ended(trial.key, math.nan)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the ledger holds all that `Proposals` needs."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a resumed sweep builds its proposals from the ledger."""


def _new_study(plan: Plan) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(study_name=plan.name, direction=plan.space.goal)


def _sampler(plan: Plan, number: int, attempt: int) -> optuna.samplers.BaseSampler:
    """A fresh sampler whose seed depends on the proposal's number alone; after repeats it turns to random draws."""
    import optuna
    from numpy.random import SeedSequence

    seed = int(SeedSequence([plan.search.seed, number, attempt]).generate_state(1)[0])
    if plan.search.method == "random" or attempt > 0:
        return optuna.samplers.RandomSampler(seed=seed)
    if plan.search.method == "gp":
        return optuna.samplers.GPSampler(seed=seed, deterministic_objective=False)
    return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True, warn_independent_sampling=False)


def _distribution(knob: Knob) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    domain = knob.domain
    if isinstance(domain, Grid):
        return CategoricalDistribution(list(domain.values))
    log = domain.scale == "log"
    if domain.integer:
        return IntDistribution(int(domain.low), int(domain.high), log=log)
    return FloatDistribution(domain.low, domain.high, log=log)
