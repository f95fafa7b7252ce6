"""Propose trials from one Optuna study, as a Tune Searcher.

The study's first trials are the grid's cells, each once; an adaptive method proposes the following ones. Each cell
becomes one trial per seed, and the study receives the mean over seeds when all have ended. A cell with a diverged seed
gets a value worse than all others, so that the search avoids its neighbourhood. A cell with a failed seed fails. No
cell runs twice.

With several arms the study is conditional: the arm is a categorical parameter, and only this arm's knobs are suggested.
If an arm has its own domain for a knob, the name of the parameter includes the arm.

Reruns propose the same cells, also in parallel. Proposal n depends only on a sampler seeded with (search seed, n), and
on the results of cells 0 to n - window, which the study receives in order (ADR 3). `Proposals` does not use Ray.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.trial import TrialState, create_trial
from ray.tune.search import Searcher

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.record.events import CellProposed, Note, SearchExhausted
from tune_dml.running.search.gaussian import MIN_CELLS, ROUNDING, GaussianSearch
from tune_dml.running.search.groups import Record, TrialGroups, TrialSource
from tune_dml.running.search.points import Point, Points
from tune_dml.running.search.samplers import assign_generation, sampler_for, seed_of
from tune_dml.running.trials.messages import TrialRequest, parse_message, request_of, split_messages

_MAX_REPEATS = 50  # repeated proposals after which the search ends


@dataclass
class PendingCell:
    """A cell of the study, whose value is known when all its trials have ended."""

    cell: Cell
    keys: tuple[str, ...]  # of its trials, one per seed
    number: int  # of its trial in the study
    point: Sequence[float]  # its coordinates in the box of the search's points


class Proposals(TrialSource):
    """Chooses the next trials, and reports their results to the study.

    Args:
        plan: The plan, with its first cells, seeds and search method.
        trial_values: Key -> value of ended trials; infinite if diverged, NaN if failed.
        proposed: Cells that earlier sessions proposed, in order.
        record: Gets the event of each new cell, before its trials start, and those of an exhausted search.
        on_note: Gets the reason when the search finds no new cell.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        trial_values: Mapping[str, float],
        proposed: Iterable[Cell] = (),
        record: Record = lambda event: None,
        on_note: Callable[[str], None] = lambda text: None,
    ):
        super().__init__(trial_values)
        self.plan = plan
        self._record, self._print_note = record, on_note
        self.study = _new_study(plan)
        self.points = Points.of_plan(plan)
        self.process = GaussianSearch(self.points)
        self.pending_cells: list[PendingCell] = []
        self.reported = 0
        self.values: list[float] = []
        self.diverged: list[PendingCell] = []
        self.penalty = math.nan
        self.is_exhausted = plan.search.method == "grid"
        self.digests = {cell.digest for cell in plan.cells}
        for cell in plan.cells:
            if cell.knobs and not cell.baseline and not self.is_exhausted:
                self._add_cell(cell)
        self.given_count = len(self.pending_cells)
        self._queue(plan.cells)
        for cell in proposed:
            self._report_up_to(len(self.pending_cells) - plan.search.window)
            self._add_cell(cell)
            self.digests.add(cell.digest)
            self._queue([cell])

    def next_trial(self) -> PlannedTrial | None:
        """Return the next trial; None if a running trial must end first, or if `is_finished`."""
        while not self.waiting and not self._has_proposed_all:
            if len(self.pending_cells) - self._first_incomplete() >= self.plan.search.window:
                return None
            self._propose()
        return self.waiting.popleft() if self.waiting else None

    @property
    def is_finished(self) -> bool:
        """Whether no trial is left to start now or later."""
        return self._has_proposed_all and not self.waiting

    @property
    def _has_proposed_all(self) -> bool:
        return self.is_exhausted or self._proposed_count >= self.plan.search.num_samples

    @property
    def _proposed_count(self) -> int:
        return len(self.pending_cells) - self.given_count

    def _queue(self, cells: Iterable[Cell]) -> None:
        """Queue trials seed by seed, so that an interrupted search has complete replicates."""
        cells = list(cells)
        trials = [self.plan.trial(cell, seed) for seed in self.plan.seeds for cell in cells]
        self.waiting.extend(trial for trial in trials if trial.key not in self.trial_values)

    def _propose(self) -> None:
        proposed_count = self._proposed_count
        self._report_up_to(len(self.pending_cells) - self.plan.search.window)
        index = len(self.plan.cells) + proposed_count
        for attempt in range(_MAX_REPEATS):
            self.study.sampler = self._sampler(attempt)
            if attempt == 0 and (point := self._point(proposed_count)) is not None:
                self.study.enqueue_trial(point)
            study_trial = self.study.ask()
            arm, knobs = self.points.suggest(study_trial)
            cell = self.plan.cell(index, knobs, arm)
            if cell.digest not in self.digests:
                self.digests.add(cell.digest)
                self._append_pending_cell(cell, study_trial.number)
                self._record(CellProposed(cell=cell))
                self._queue([cell])
                return
            self.study.tell(study_trial.number, state=TrialState.FAIL)  # known: reruns must not depend on it
        self.is_exhausted = True
        search = self.plan.search
        reason = (
            f"{search.method} proposed only known cells {_MAX_REPEATS} times after {proposed_count} of "
            f"{search.num_samples} samples: few or no further cells are left to try"
        )
        self._record(SearchExhausted(samples=search.num_samples))
        self._record(Note(text=reason))
        self._print_note(reason)

    def _point(self, proposed_count: int) -> Point | None:
        """Return the point that `qmc` or `gp` chooses; None if the study's sampler chooses."""
        search, points = self.plan.search, self.points
        if search.method not in {"qmc", "gp"}:
            return None
        reported = self.pending_cells[: self.reported]
        evaluated = [pending for pending in reported if not math.isnan(self._value(pending) or 0.0)]
        has_finite_values = not self.diverged or math.isfinite(self.penalty)
        if search.method == "qmc" or len(evaluated) < MIN_CELLS or not has_finite_values:
            return points.low_discrepancy(proposed_count, search.seed)
        numbers = np.array([[self.trial_values[key] for key in pending.keys] for pending in evaluated])
        numbers[~np.isfinite(numbers).all(1)] = self.penalty
        if self.plan.space.goal == "minimize":
            numbers = -numbers
        coordinates = np.array([pending.point for pending in evaluated])
        running = np.array([pending.point for pending in self.pending_cells[self.reported :]])
        running, seed = running.reshape(-1, points.dimensions), seed_of(search, len(self.pending_cells))
        return points.point_at(self.process.propose(coordinates, numbers, running, seed))

    def _sampler(self, attempt: int = 0) -> optuna.samplers.BaseSampler:
        is_conditional = len(self.points.arms) > 1
        return sampler_for(self.plan.search, len(self.pending_cells), attempt, is_conditional=is_conditional)

    def _add_cell(self, cell: Cell) -> None:
        point = self.points.point_of(cell)
        distributions = self.points.distributions(point)
        self.study.add_trial(create_trial(state=TrialState.RUNNING, params=point, distributions=distributions))
        self._append_pending_cell(cell, len(self.study.get_trials(deepcopy=False)) - 1)

    def _append_pending_cell(self, cell: Cell, number: int) -> None:
        assign_generation(self._sampler(), self.study, number)
        keys = tuple(self.plan.trial(cell, seed).key for seed in self.plan.seeds)
        self.pending_cells.append(PendingCell(cell, keys, number, self.points.coordinates(self.points.point_of(cell))))

    def _first_incomplete(self) -> int:
        for index in range(self.reported, len(self.pending_cells)):
            if self._value(self.pending_cells[index]) is None:
                return index
        return len(self.pending_cells)

    def _report_up_to(self, last: int) -> None:
        while self.reported <= last:
            pending = self.pending_cells[self.reported]
            value = self._value(pending)
            if value is None:
                break
            self._report(pending, value)
            self.reported += 1

    def _report(self, pending: PendingCell, value: float) -> None:
        if math.isnan(value):
            self.study.tell(pending.number, state=TrialState.FAIL)
        elif math.isinf(value):
            self.diverged.append(pending)
        else:
            self.study.tell(pending.number, value)
            self.values.append(value)
        if self.diverged and self.values:
            self._report_diverged()

    def _report_diverged(self) -> None:
        """Report diverged cells with a value that is a tenth of the range worse than the worst value."""
        low, high = min(self.values), max(self.values)
        size = max(abs(low), abs(high))
        step = 0.1 * (high - low) if high - low > ROUNDING * size else max(1.0, 0.1 * size)
        penalty = low - step if self.plan.space.goal == "maximize" else high + step
        numbers = [pending.number for pending in self.diverged]
        if penalty != self.penalty:
            self.penalty, self.study = penalty, _copy_study(self.study, self.plan, running=set(numbers))
        trials = self.study.get_trials(deepcopy=False)
        for number in numbers:
            if not trials[number].state.is_finished():
                self.study.tell(number, penalty)

    def _value(self, pending: PendingCell) -> float | None:
        """Return the mean over seeds; None if a seed is missing, NaN if one failed, infinite if one diverged.

        It has twelve digits, so that equal means tie whatever the order of their seeds.
        """
        values = [self.trial_values.get(key) for key in pending.keys]
        if any(value is None for value in values):
            return None
        return float(f"{sum(values) / len(values):.12g}")  # type: ignore[arg-type]


class CellSearcher(Searcher):  # type: ignore[misc]
    """Adapts `TrialGroups` to Tune, whose trial is one of our groups."""

    def __init__(self, groups: TrialGroups):
        super().__init__()  # without a metric, which Tune would require in every report
        self.groups = groups
        self.running: dict[str, tuple[int, list[str]]] = {}  # Tune's id -> group, keys of our trials

    def __getstate__(self) -> dict[str, object]:
        """Return an empty state, because Tune pickles its parts for a restore that we do not use."""
        return {}

    def suggest(self, trial_id: str) -> TrialRequest | str | None:
        """Return the request of the next group; None to wait, FINISHED at the end."""
        group = self.groups.next_group()
        if not group:
            return Searcher.FINISHED if self.groups.is_finished else None
        self.running[trial_id] = (self.groups.group_number, [trial.key for trial in group])
        first, *later = (request_of(trial, self.groups.proposals.until(trial)) for trial in group)
        if later:
            first["more"] = json.dumps(later)
        return first

    def on_trial_result(self, trial_id: str, result: dict[str, object]) -> None:
        """Ignore rows."""

    def on_trial_complete(self, trial_id: str, result: dict[str, object] | None = None, error: bool = False) -> None:
        """Record a trial without a closing report as failed; return trials that had not started."""
        message = parse_message(result or {})
        number, keys = self.running.pop(trial_id, (0, []))
        ended_keys = {part.get("key") or keys[0] for part in split_messages(message) if "ended" in part}
        open_keys = [key for key in keys if key not in ended_keys and self.groups.is_open(key, number)]
        if "spent" in message:  # its process must not train another trial
            self.groups.may_share = self.groups.may_share and not open_keys
            self.groups.requeue(open_keys, alone=False)
        elif open_keys:
            self.groups.requeue(open_keys[1:], alone=True)
            self.groups.close(open_keys[0])
            if open_keys[0] not in self.groups.proposals.trial_values:
                self.groups.proposals.record_value(open_keys[0], math.nan)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing, because a resumed sweep builds its proposals from the ledger."""

    restore = save


def _new_study(plan: Plan) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(study_name=plan.name, direction=plan.space.goal)


def _copy_study(study: optuna.Study, plan: Plan, running: Set[int]) -> optuna.Study:
    """Return a copy of the study in which some trials are running again, because Optuna cannot remove a result."""
    copy = _new_study(plan)
    for old in study.get_trials(deepcopy=False):
        reopened = create_trial(
            state=TrialState.RUNNING, params=old.params, distributions=old.distributions, system_attrs=old.system_attrs
        )
        copy.add_trial(reopened if old.number in running else old)
    return copy
