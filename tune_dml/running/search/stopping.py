"""Stop cells that are behind at a rung; the others continue from their checkpoints (`planning.stopping`).

A trial trains to its cell's next rung and pauses without a worker. Cells are compared by the mean over paired seeds when
all seeds have arrived: those known in advance together, a proposed cell with all before it. The best third continues. The
decisions do not depend on the trials' speed, and are read back from the ledger and the trials' rows after an interruption.
The baseline is never stopped. Knows no Ray.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.planning.stopping import ETA, bracket_of, rungs_of
from tune_dml.record.events import TrialEnd
from tune_dml.running.search.optuna_search import PendingCell, Proposals
from tune_dml.stats.verdicts.selection import best_first

ValueAt = Callable[[str], Mapping[int, float]]
"""Trial key -> the metric at each step that the trial has reported."""


@dataclass
class _Entrant:
    """A cell that may be stopped."""

    cell: Cell
    keys: tuple[str, ...]
    """Keys of its trials, one per seed."""
    bracket: int
    rungs: tuple[int, ...]
    batch: int
    """Cells of one batch are compared together."""
    passed: int = 0
    """Number of rungs that it has passed."""
    stopped: int | None = None
    """The rung at which it was stopped."""

    @property
    def next_rung(self) -> int | None:
        """The rung at which it pauses next; None if it runs to its end."""
        return self.rungs[self.passed] if self.passed < len(self.rungs) else None

    def takes_part(self, rung: int) -> bool:
        """Return whether it was not stopped before this rung."""
        return self.stopped is None or self.stopped >= rung


class StoppingProposals(Proposals):
    """Proposals of a sweep with early stopping.

    Args:
        plan: As for `Proposals`, like the arguments not listed here.
        stopped: Key -> the rung at which an earlier session stopped the trial; `known` has the metric there.
        values: Returns the metric at each step that a trial has reported.
        on_stop: Called with the key and the end of a trial that is stopped.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        known: Mapping[str, float],
        stopped: Mapping[str, int],
        values: ValueAt,
        on_stop: Callable[[str, TrialEnd], None],
        proposed: Iterable[Cell] = (),
        on_cell: Callable[[Cell], None] = lambda cell: None,
        on_exhausted: Callable[[], None] = lambda: None,
        on_note: Callable[[str], None] = lambda text: None,
    ):
        self.stopped = dict(stopped)
        self.on_stop = on_stop
        self._values = values
        self._at: dict[str, Mapping[int, float]] = {}
        self._entrants: list[_Entrant] = []
        self._of: dict[str, _Entrant] = {}
        self._goes_on: deque[PlannedTrial] = deque()
        self._news = True
        super().__init__(
            plan, known=known, proposed=proposed, on_cell=on_cell, on_exhausted=on_exhausted, on_note=on_note
        )

    def next_trial(self) -> PlannedTrial | None:
        """Return the next trial; one that continues comes before one that begins."""
        if self._news:
            self._news = False
            self._decide()
        return self._goes_on.popleft() if self._goes_on else super().next_trial()

    @property
    def finished(self) -> bool:
        """Whether no trial is left, and none waits for a decision."""
        open_ = any(key not in self.known for key in self._of)
        return super().finished and not self._goes_on and not open_

    def until(self, trial: PlannedTrial) -> int | None:
        """Return the rung at which a trial pauses; None if it runs to its end."""
        entrant = self._of.get(trial.key)
        return entrant.next_rung if entrant else None

    def paused(self, key: str) -> None:
        """Record that a trial reached its rung."""
        self._at[key], self._news = self._values(key), True

    def ended(self, key: str, value: float) -> None:
        """Take a trial's value; infinite if it diverged, NaN if it failed."""
        super().ended(key, value)
        if key in self._of:
            self._at[key], self._news = self._values(key), True

    def _queue(self, cells: Iterable[Cell]) -> None:
        cells = list(cells)
        for cell in cells:
            if cell.knobs and not cell.baseline:
                self._enter(cell, batch=cells[0].index)
        super()._queue(cells)
        self.waiting = deque(trial for trial in self.waiting if not self._waits(trial.key))

    def _enter(self, cell: Cell, batch: int) -> None:
        keys = tuple(self.plan.trial(cell, seed).key for seed in self.plan.seeds)
        bracket = bracket_of(self.plan.search.stopping or "asha", len(self._entrants))
        entrant = _Entrant(cell, keys, bracket, rungs_of(cell.settings)[bracket:], batch)
        self._entrants.append(entrant)
        for key in keys:
            self._of[key] = entrant
            self._at[key] = self._values(key)
            if key in self.stopped:
                entrant.stopped = self.stopped[key]
            finished = key not in self.stopped and math.isfinite(self.known.get(key, math.nan))
            reached = math.inf if finished else max(self._at[key], default=0)
            entrant.passed = max(entrant.passed, sum(reached > rung for rung in entrant.rungs))

    def _waits(self, key: str) -> bool:
        """Return whether a trial waits at an undecided rung, or was stopped before its end was recorded."""
        entrant = self._of.get(key)
        return entrant is not None and (entrant.stopped is not None or entrant.next_rung in self._at[key])

    def _decide(self) -> None:
        """Decide all rungs for which every result is known."""
        for entrant in self._entrants:
            if entrant.stopped is not None and any(key not in self.known for key in entrant.keys):
                self._stop(entrant, entrant.stopped, f"at step {entrant.stopped}, with its other seeds")
        for bracket in sorted({entrant.bracket for entrant in self._entrants}):
            entrants = [entrant for entrant in self._entrants if entrant.bracket == bracket]
            for index, rung in enumerate(entrants[0].rungs):
                there: list[_Entrant] = []
                for members in _batches(entrant for entrant in entrants if entrant.takes_part(rung)):
                    if not all(self._has_come(member, index, rung) for member in members):
                        break
                    there += members
                    self._judge(there, [m for m in members if m.passed == index and m.stopped is None], rung)

    def _has_come(self, entrant: _Entrant, index: int, rung: int) -> bool:
        come = all(key in self.known or rung in self._at[key] for key in entrant.keys)
        return entrant.passed > index or entrant.stopped == rung or (entrant.passed == index and come)

    def _judge(self, there: list[_Entrant], waiting: list[_Entrant], rung: int) -> None:
        """Let the waiting cells continue that are in the best third at this rung; stop the others."""
        if not waiting:
            return
        ranks = {row: rank for rank, row in enumerate(best_first(self._table(there, rung)), start=1)}
        goes_on = math.ceil(len(there) / ETA)
        for row, entrant in enumerate(there):
            if entrant not in waiting:
                continue
            rank = ranks.get(row)
            if rank is not None and rank <= goes_on:
                entrant.passed += 1
                trials = [self.plan.trial(entrant.cell, seed) for seed in self.plan.seeds]
                self._goes_on.extend(trial for trial in trials if trial.key not in self.known)
            else:
                place = "a seed diverged, or none has a number" if rank is None else f"place {rank} of {len(there)}"
                self._stop(entrant, rung, f"at step {rung}: {place}; the best {goes_on} continued")

    def _stop(self, entrant: _Entrant, rung: int, reason: str) -> None:
        entrant.stopped = rung
        for key in entrant.keys:
            if key not in self.known:
                value = self._at[key].get(rung, math.nan)
                self.known[key], self.stopped[key] = value, rung
                self.on_stop(key, TrialEnd("stopped", reason, step=rung, at_rung=value))

    def _table(self, there: list[_Entrant], rung: int) -> np.ndarray:
        """Return cells x seeds at a rung, larger is better; NaN rows for cells with a diverged seed."""
        sign = 1.0 if self.plan.space.goal == "maximize" else -1.0
        rows = [[sign * self._at[key].get(rung, math.nan) for key in entrant.keys] for entrant in there]
        table = np.array(rows, dtype=float)
        table[[any(self._diverged_by(key, rung) for key in entrant.keys) for entrant in there]] = math.nan
        return table

    def _diverged_by(self, key: str, rung: int) -> bool:
        return math.isinf(self.known.get(key, 0.0)) and rung not in self._at[key]

    def _tell(self, asked: PendingCell, value: float) -> None:
        """Tell a stopped cell's value plus the mean gain, from its rung to the end, of those that finished."""
        rungs = {self.stopped[key] for key in asked.keys if key in self.stopped}
        if rungs and math.isfinite(value):
            gain = self._mean_gain(min(rungs))
            for key in asked.keys:
                self.known[key] += gain
            value += gain
        super()._tell(asked, value)

    def _mean_gain(self, rung: int) -> float:
        """Return the mean gain from a rung to the end over finished trials; 0 without any."""
        told = [key for asked in self.asked[: self.told] for key in asked.keys if key not in self.stopped]
        gains = [self.known[key] - self._at[key][rung] for key in told if rung in self._at[key]]
        finite = [gain for gain in gains if math.isfinite(gain)]
        return sum(finite) / len(finite) if finite else 0.0


def _batches(entrants: Iterable[_Entrant]) -> Iterator[list[_Entrant]]:
    """Group the entrants that are compared together."""
    for _, members in groupby(entrants, key=lambda entrant: entrant.batch):
        yield list(members)
