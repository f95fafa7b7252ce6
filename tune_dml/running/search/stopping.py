"""Stop cells that are worse than others at a rung; the others continue from their checkpoints (`planning.stopping`).

A trial trains to its cell's next rung and pauses without a worker. Cells are compared by their mean over paired seeds
when all seeds have reached the rung. The plan's first cells are compared together, a proposed cell with all before it.
The best third continues. The decisions do not depend on the speed of trials; after an interruption they are restored
from the ledger and the trials' rows. The baseline is never stopped. This module does not use Ray.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.planning.stopping import ETA, bracket_of, rungs_of
from tune_dml.record.events import TrialEnd
from tune_dml.running.search.groups import Record
from tune_dml.running.search.optuna_search import PendingCell, Proposals
from tune_dml.stats.verdicts.selection import best_first

ValueAt = Callable[[str], Mapping[int, float]]  # trial key -> the metric at each step that the trial has reported


@dataclass
class _Candidate:
    """A cell that may be stopped early."""

    cell: Cell
    keys: tuple[str, ...]  # of its trials, one per seed
    bracket: int
    rungs: tuple[int, ...]
    batch: int  # number of the batch; its cells are compared together
    passed: int = 0  # number of passed rungs
    stopped: int | None = None  # the rung at which it was stopped

    @property
    def next_rung(self) -> int | None:
        return self.rungs[self.passed] if self.passed < len(self.rungs) else None


class StoppingProposals(Proposals):
    """Proposes the trials of a sweep with early stopping.

    `stopped` is key -> the rung at which an earlier session stopped the trial; `trial_values` has the metric there.
    `values` returns the metric at each step that a trial has reported. The other arguments are those of `Proposals`.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        trial_values: Mapping[str, float],
        stopped: Mapping[str, int],
        values: ValueAt,
        on_stop: Callable[[str, TrialEnd], None],
        proposed: Iterable[Cell] = (),
        record: Record = lambda event: None,
        on_note: Callable[[str], None] = lambda text: None,
    ):
        self.stopped = dict(stopped)
        self.on_stop = on_stop
        self._read_values = values
        self._metric_at: dict[str, Mapping[int, float]] = {}  # key -> step -> metric
        self._candidates: list[_Candidate] = []
        self._candidate_of: dict[str, _Candidate] = {}
        self._continuing: deque[PlannedTrial] = deque()
        self._has_new_values = True
        super().__init__(plan, trial_values=trial_values, proposed=proposed, record=record, on_note=on_note)

    def next_trial(self) -> PlannedTrial | None:
        """Return the next trial, first those that continue after a rung."""
        if self._has_new_values:
            self._has_new_values = False
            self._decide()
        return self._continuing.popleft() if self._continuing else super().next_trial()

    @property
    def is_finished(self) -> bool:
        """Whether no trial is left to start, and none waits for a decision."""
        has_open_trials = any(key not in self.trial_values for key in self._candidate_of)
        return super().is_finished and not self._continuing and not has_open_trials

    def until(self, trial: PlannedTrial) -> int | None:
        """Return the rung at which a trial pauses; None if it runs to its end."""
        candidate = self._candidate_of.get(trial.key)
        return candidate.next_rung if candidate else None

    def record_pause(self, key: str) -> None:
        """Record that a trial reached its rung, so that its metric there is known."""
        self._metric_at[key], self._has_new_values = self._read_values(key), True

    def record_value(self, key: str, value: float) -> None:
        """Record the value of an ended trial; infinite if it diverged, NaN if it failed."""
        super().record_value(key, value)
        if key in self._candidate_of:
            self._metric_at[key], self._has_new_values = self._read_values(key), True

    def _queue(self, cells: Iterable[Cell]) -> None:
        cells = list(cells)
        for cell in cells:
            if cell.knobs and not cell.baseline:
                self._add_candidate(cell, batch=cells[0].index)
        super()._queue(cells)
        self.waiting = deque(trial for trial in self.waiting if not self._waits(trial.key))

    def _add_candidate(self, cell: Cell, batch: int) -> None:
        keys = tuple(self.plan.trial(cell, seed).key for seed in self.plan.seeds)
        bracket = bracket_of(self.plan.search.stopping or "asha", len(self._candidates))
        candidate = _Candidate(cell, keys, bracket, rungs_of(cell.settings)[bracket:], batch)
        self._candidates.append(candidate)
        for key in keys:
            self._candidate_of[key] = candidate
            self._metric_at[key] = self._read_values(key)
            if key in self.stopped:
                candidate.stopped = self.stopped[key]
            finished = key not in self.stopped and math.isfinite(self.trial_values.get(key, math.nan))
            reached = math.inf if finished else max(self._metric_at[key], default=0)
            candidate.passed = max(candidate.passed, sum(reached > rung for rung in candidate.rungs))

    def _waits(self, key: str) -> bool:
        """Return whether a trial waits at an undecided rung, or was stopped but its end is not recorded yet."""
        candidate = self._candidate_of.get(key)
        return candidate is not None and (candidate.stopped is not None or candidate.next_rung in self._metric_at[key])

    def _decide(self) -> None:
        for candidate in self._candidates:
            if candidate.stopped is not None and any(key not in self.trial_values for key in candidate.keys):
                self._stop(candidate, candidate.stopped, f"at step {candidate.stopped}, with its other seeds")
        for bracket in sorted({candidate.bracket for candidate in self._candidates}):
            candidates = [candidate for candidate in self._candidates if candidate.bracket == bracket]
            for index, rung in enumerate(candidates[0].rungs):
                compared: list[_Candidate] = []
                in_race = (c for c in candidates if c.stopped is None or c.stopped >= rung)
                for _, batch in groupby(in_race, key=lambda candidate: candidate.batch):
                    members = list(batch)
                    if not all(self._has_reached(member, index, rung) for member in members):
                        break
                    compared += members
                    self._judge(compared, [m for m in members if m.passed == index and m.stopped is None], rung)

    def _has_reached(self, candidate: _Candidate, index: int, rung: int) -> bool:
        is_complete = all(key in self.trial_values or rung in self._metric_at[key] for key in candidate.keys)
        return candidate.passed > index or candidate.stopped == rung or (candidate.passed == index and is_complete)

    def _judge(self, compared: list[_Candidate], waiting: list[_Candidate], rung: int) -> None:
        if not waiting:
            return
        ranks = {row: rank for rank, row in enumerate(best_first(self._table(compared, rung)), start=1)}
        continue_count = math.ceil(len(compared) / ETA)
        for row, candidate in enumerate(compared):
            if candidate not in waiting:
                continue
            rank = ranks.get(row)
            if rank is not None and rank <= continue_count:
                candidate.passed += 1
                trials = [self.plan.trial(candidate.cell, seed) for seed in self.plan.seeds]
                self._continuing.extend(trial for trial in trials if trial.key not in self.trial_values)
            else:
                unranked = "a seed diverged, or no seed has a value"
                reason = unranked if rank is None else f"place {rank} of {len(compared)}"
                self._stop(candidate, rung, f"at step {rung}: {reason}; the best {continue_count} continued")

    def _stop(self, candidate: _Candidate, rung: int, reason: str) -> None:
        candidate.stopped = rung
        for key in candidate.keys:
            if key not in self.trial_values:
                value = self._metric_at[key].get(rung, math.nan)
                self.trial_values[key], self.stopped[key] = value, rung
                self.on_stop(key, TrialEnd("stopped", reason, step=rung, at_rung=value))

    def _table(self, compared: list[_Candidate], rung: int) -> np.ndarray:
        """Return the values at a rung, (cells, seeds), larger is better. A cell with a diverged seed has NaNs."""
        sign = 1.0 if self.plan.space.goal == "maximize" else -1.0
        rows = [[sign * self._metric_at[key].get(rung, math.nan) for key in candidate.keys] for candidate in compared]
        table = np.array(rows, dtype=float)
        table[[any(self._diverged_before(key, rung) for key in candidate.keys) for candidate in compared]] = math.nan
        return table

    def _diverged_before(self, key: str, rung: int) -> bool:
        return math.isinf(self.trial_values.get(key, 0.0)) and rung not in self._metric_at[key]

    def _report(self, pending: PendingCell, value: float) -> None:
        """Report a cell's value. For a stopped cell, add the mean gain of finished cells from its rung to the end."""
        rungs = {self.stopped[key] for key in pending.keys if key in self.stopped}
        if rungs and math.isfinite(value):
            gain = self._mean_gain(min(rungs))
            for key in pending.keys:
                self.trial_values[key] += gain
            value += gain
        super()._report(pending, value)

    def _mean_gain(self, rung: int) -> float:
        reported = [key for pending in self.pending_cells[: self.reported] for key in pending.keys]
        gains = [
            self.trial_values[key] - self._metric_at[key][rung]
            for key in reported
            if key not in self.stopped and rung in self._metric_at[key]
        ]
        finite = [gain for gain in gains if math.isfinite(gain)]
        return sum(finite) / len(finite) if finite else 0.0
