"""Propose trials from one Optuna study, as a Tune Searcher.

The study's first trials are the grid's cells, each once; an adaptive method proposes the following ones. Each cell becomes
one trial per seed, and the study receives the mean over seeds when all have ended. A cell with a diverged seed gets a
value worse than all others, so that the search avoids its neighbourhood; one with a failed seed fails. A known cell is
never run again.

With several arms the study is conditional: the arm is a categorical parameter, and only its own knobs are suggested. A
knob with other values in one arm carries the arm's name.

Reruns propose the same cells, in parallel too: proposal n comes from a sampler seeded with (search seed, n) and a study
that was told exactly the cells 0 to n - window, in order (ADR 3). `Proposals` knows no Ray.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ray.tune.search import Searcher

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.running.search.gaussian import FIRST, GaussianSearch
from tune_dml.running.search.points import Point, Points
from tune_dml.running.search.samplers import place_in_generation, sampler_for, seed_of
from tune_dml.running.trials.messages import TrialRequest, messages_of, read_message, request_of

if TYPE_CHECKING:
    import optuna

    from tune_dml.running.search.groups import TrialGroups


_REPEATS = 50  # how often a sampler may propose a known cell before the search is over


@dataclass
class PendingCell:
    """One cell in the study."""

    cell: Cell
    keys: tuple[str, ...]
    """Keys of its trials, one per seed."""
    number: int
    """Number of its trial in the study."""
    point: Sequence[float]
    """Its place in the box of the search's points."""


class Proposals:
    """Chooses the next trials and tells the study their results.

    Args:
        plan: The cells known in advance, the seeds, the search method.
        known: Key -> value of trials that have ended; infinite if diverged, NaN if failed.
        proposed: Cells that earlier sessions proposed, in order.
        on_cell: Called with each new cell before its trials start.
        on_exhausted: Called when the search finds no further cell.
        on_note: Called with notes for people.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        known: Mapping[str, float],
        proposed: Iterable[Cell] = (),
        on_cell: Callable[[Cell], None] = lambda cell: None,
        on_exhausted: Callable[[], None] = lambda: None,
        on_note: Callable[[str], None] = lambda text: None,
    ):
        self.plan = plan
        self.known = dict(known)
        self.on_cell, self.on_exhausted = on_cell, on_exhausted
        self.on_note = on_note
        self.study = _new_study(plan)
        self.points = Points.of_plan(plan)
        self.process = GaussianSearch(self.points)
        self.asked: list[PendingCell] = []
        self.told = 0
        self.values: list[float] = []
        self.diverged: list[PendingCell] = []
        self.penalty = math.nan
        self.exhausted = plan.search.method == "grid"
        self.waiting: deque[PlannedTrial] = deque()
        self.digests = {cell.digest for cell in plan.cells}
        for cell in plan.cells:
            if cell.knobs and not cell.baseline and not self.exhausted:
                self._ask_for(cell)
        self.planned = len(self.asked)
        self._queue(plan.cells)
        for cell in proposed:
            self._tell_up_to(len(self.asked) - plan.search.window)
            self._ask_for(cell)
            self.digests.add(cell.digest)
            self._queue([cell])

    def next_trial(self) -> PlannedTrial | None:
        """Return the next trial; None while one must end first, or when `finished`."""
        while not self.waiting and not self._has_proposed_all:
            if len(self.asked) - self._first_open() >= self.plan.search.window:
                return None
            self._propose()
        return self.waiting.popleft() if self.waiting else None

    def until(self, trial: PlannedTrial) -> int | None:
        """Return the step at which a trial pauses; None if it runs to its end."""
        return None

    @property
    def finished(self) -> bool:
        """Whether no trial is left, and none will come."""
        return self._has_proposed_all and not self.waiting

    @property
    def _has_proposed_all(self) -> bool:
        return self.exhausted or self._adaptive >= self.plan.search.num_samples

    @property
    def _adaptive(self) -> int:
        """Number of cells that the study has chosen."""
        return len(self.asked) - self.planned

    def ended(self, key: str, value: float) -> None:
        """Take a trial's value; infinite if it diverged, NaN if it failed."""
        self.known[key] = value

    def _queue(self, cells: Iterable[Cell]) -> None:
        """Queue trials seed by seed, so that an interrupted search has whole replicates."""
        cells = list(cells)
        trials = [self.plan.trial(cell, seed) for seed in self.plan.seeds for cell in cells]
        self.waiting.extend(trial for trial in trials if trial.key not in self.known)

    def _propose(self) -> None:
        """Ask the study for one more cell; end the search when nothing is new."""
        from optuna.trial import TrialState

        adaptive = self._adaptive
        self._tell_up_to(len(self.asked) - self.plan.search.window)
        index = len(self.plan.cells) + adaptive
        for attempt in range(_REPEATS):
            self.study.sampler = self._sampler(attempt)
            if attempt == 0 and (point := self._point(adaptive)) is not None:
                self.study.enqueue_trial(point)
            ticket = self.study.ask()
            arm, knobs = self.points.ask(ticket)
            cell = self.plan.cell(index, knobs, arm)
            if cell.digest not in self.digests:
                self._take(cell, ticket.number)
                return
            self.study.tell(ticket.number, state=TrialState.FAIL)  # a known cell: reruns must not depend on it
        self.exhausted = True
        self.on_exhausted()
        self.on_note(
            f"{self.plan.search.method} proposed only known cells {_REPEATS} times after {adaptive} of "
            f"{self.plan.search.num_samples} samples: the space has no further cells to try"
        )

    def _point(self, adaptive: int) -> Point | None:
        """Return the point that `qmc` or `gp` chooses; None if the study's sampler chooses."""
        search, points = self.plan.search, self.points
        if search.method not in {"qmc", "gp"}:
            return None
        told = [asked for asked in self.asked[: self.told] if not math.isnan(self._value(asked) or 0.0)]
        bounded = not self.diverged or math.isfinite(self.penalty)
        if search.method == "qmc" or len(told) < FIRST or not bounded:
            return points.low_discrepancy(adaptive, search.seed)
        numbers = np.array([[self.known[key] for key in asked.keys] for asked in told])
        numbers[~np.isfinite(numbers).all(1)] = self.penalty
        if self.plan.space.goal == "minimize":
            numbers = -numbers
        places = np.array([asked.point for asked in told])
        pending = np.array([asked.point for asked in self.asked[self.told :]]).reshape(-1, points.sides)
        return points.at(self.process.propose(places, numbers, pending, seed_of(search, len(self.asked))))

    def _sampler(self, attempt: int = 0) -> optuna.samplers.BaseSampler:
        conditional = len(self.points.arms) > 1
        return sampler_for(self.plan.search, len(self.asked), attempt, conditional=conditional)

    def _take(self, cell: Cell, number: int) -> None:
        self.digests.add(cell.digest)
        self._asked_for(cell, number)
        self.on_cell(cell)
        self._queue([cell])

    def _ask_for(self, cell: Cell) -> None:
        """Add a given cell to the study as running."""
        from optuna.trial import TrialState, create_trial

        point = self.points.of(cell)
        distributions = self.points.distributions(point)
        running = create_trial(state=TrialState.RUNNING, params=point, distributions=distributions)
        self.study.add_trial(running)
        self._asked_for(cell, len(self.study.get_trials(deepcopy=False)) - 1)

    def _asked_for(self, cell: Cell, number: int) -> None:
        place_in_generation(self._sampler(), self.study, number)
        keys = tuple(self.plan.trial(cell, seed).key for seed in self.plan.seeds)
        self.asked.append(PendingCell(cell, keys, number, self.points.place(self.points.of(cell))))

    def _first_open(self) -> int:
        """Return the index of the first cell that lacks a seed."""
        for index in range(self.told, len(self.asked)):
            if self._value(self.asked[index]) is None:
                return index
        return len(self.asked)

    def _tell_up_to(self, last: int) -> None:
        """Tell the study the cells up to `last`, in order."""
        while self.told <= last:
            asked = self.asked[self.told]
            value = self._value(asked)
            if value is None:
                break
            self._tell(asked, value)
            self.told += 1

    def _tell(self, asked: PendingCell, value: float) -> None:
        from optuna.trial import TrialState

        if math.isnan(value):
            self.study.tell(asked.number, state=TrialState.FAIL)
        elif math.isinf(value):
            self.diverged.append(asked)
        else:
            self.study.tell(asked.number, value)
            self.values.append(value)
        if self.diverged and self.values:
            self._tell_diverged()

    def _tell_diverged(self) -> None:
        """Tell diverged cells a value a tenth of the range beyond the worst; without a range they stay running."""
        low, high = min(self.values), max(self.values)
        step = 0.1 * (high - low) or 1.0
        penalty = low - step if self.plan.space.goal == "maximize" else high + step
        numbers = [asked.number for asked in self.diverged]
        if penalty != self.penalty:
            self.penalty, self.study = penalty, _restated(self.study, self.plan, running=set(numbers))
        trials = self.study.get_trials(deepcopy=False)
        for number in numbers:
            if not trials[number].state.is_finished():
                self.study.tell(number, penalty)

    def _value(self, asked: PendingCell) -> float | None:
        """Return the mean over seeds; None while one is missing, NaN if one failed, infinite if one diverged."""
        values = [self.known.get(key) for key in asked.keys]
        if any(value is None for value in values):
            return None
        return sum(values) / len(values)  # type: ignore[arg-type]


class CellSearcher(Searcher):  # type: ignore[misc]
    """Adapts `TrialGroups` to Tune. A trial's configuration is key, label, seed and its settings as JSON."""

    def __init__(self, groups: TrialGroups):
        super().__init__()  # no metric: Tune would demand it in every report
        self.groups = groups
        self.running: dict[str, tuple[int, list[str]]] = {}
        """Tune's trial -> number of the group, and keys of our trials."""

    def __getstate__(self) -> dict[str, object]:
        """Return nothing: Tune pickles its parts for a restore that we do not use."""
        return {}

    def suggest(self, trial_id: str) -> TrialRequest | str | None:
        """Return the configuration of the next trials, None to wait, or FINISHED."""
        group = self.groups.next_group()
        if not group:
            return Searcher.FINISHED if self.groups.finished else None
        self.running[trial_id] = (self.groups.number, [trial.key for trial in group])
        first, *others = (request_of(trial, self.groups.proposals.until(trial)) for trial in group)
        if others:
            first["more"] = json.dumps(others)
        return first

    def on_trial_result(self, trial_id: str, result: dict[str, object]) -> None:
        """Ignore rows."""

    def on_trial_complete(self, trial_id: str, result: dict[str, object] | None = None, error: bool = False) -> None:
        """Count a trial without a closing report as failed; take back trials that had not begun."""
        message = read_message(result or {})
        number, keys = self.running.pop(trial_id, (0, []))
        closed = {each.get("key") or keys[0] for each in messages_of(message) if "ended" in each}
        left = [key for key in keys if key not in closed and self.groups.is_open(key, number)]
        if "spent" in message:  # its process could train no other trial
            self.groups.together = self.groups.together and not left
            self.groups.give_back(left, alone=False)
        elif left:
            self.groups.give_back(left[1:], alone=True)
            self.groups.close(left[0])
            if left[0] not in self.groups.proposals.known:
                self.groups.proposals.ended(left[0], math.nan)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the ledger holds all that `Proposals` needs."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: a resumed sweep builds its proposals from the ledger."""


def _new_study(plan: Plan) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(study_name=plan.name, direction=plan.space.goal)


def _restated(study: optuna.Study, plan: Plan, running: Set[int]) -> optuna.Study:
    """Return a copy of the study in which these trials run again: Optuna cannot take back a result."""
    from optuna.trial import TrialState, create_trial

    again = _new_study(plan)
    for told in study.get_trials(deepcopy=False):
        reopened = create_trial(
            state=TrialState.RUNNING,
            params=told.params,
            distributions=told.distributions,
            system_attrs=told.system_attrs,
        )
        again.add_trial(reopened if told.number in running else told)
    return again
