"""The looks at a growing set of trials, and the error level that the present one may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tune_dml.record.looks import Look, cells_added
from tune_dml.record.results import TrialResult
from tune_dml.stats.sequential.looks import error_spent, level_left

ALPHA = 0.05
"""The error that all looks at a sweep may spend together, for each family of statements."""


@dataclass(frozen=True)
class Looks:
    """The looks at a sweep, or at its confirmation, while it grew."""

    seeds: tuple[float, ...]
    """Mean seeds per cell at each look; the present one is the last."""
    planned: int
    """Seeds per cell that were planned before the first look."""
    recorded: bool = True
    """Looks at results of other programs are not: one is assumed, which spends all of the error."""
    share: float = 1.0
    """The share of the cells that were not stopped early: they were chosen by their own numbers, so they get only their share
    of the error (benchmarks/verdict_stopping.py)."""
    grown: frozenset[int] = frozenset()
    """Positions of the looks before which cells were added."""

    @cached_property
    def level(self) -> float:
        """The error level of the present look."""
        if not self.recorded:
            return ALPHA
        return self.share * (level_left(self.seeds, planned=self.planned, alpha=ALPHA, grown=self.grown) or ALPHA)

    @property
    def spent(self) -> float:
        """The error of all looks together."""
        return error_spent(self.seeds, planned=self.planned, alpha=ALPHA) if self.recorded else ALPHA

    @property
    def confidence(self) -> str:
        """The confidence of the present look's intervals: `96%`."""
        return f"{100 * (1 - self.level):.3g}%"

    def level_at(self, seeds: float) -> float:
        """Return the error level of a further look at `seeds` seeds per cell."""
        if not self.recorded:
            return ALPHA
        return self.share * level_left((*self.seeds, seeds), planned=self.planned, alpha=ALPHA, grown=self.grown)


def looks_of(
    past: Sequence[Look],
    trials: Sequence[TrialResult],
    *,
    imported: bool = False,
    share: float = 1.0,
) -> Looks:
    """Return the looks on record and the present one.

    Args:
        past: the looks on record, in order.
        trials: as they stand now, those that are planned among them.
        imported: whether another program made the results.
        share: see `Looks`.
    """
    ended = [trial for trial in trials if trial.status not in {"running", "missing"}]
    failed = sum(trial.status == "failed" for trial in ended)
    seeds, grown = [look.seeds for look in past], cells_added(past)
    if not past or past[-1].trials != len(ended) or past[-1].failed not in {failed, 0}:  # not on record yet
        seeds.append((len(ended) - failed) / max(1, len({trial.cell.digest for trial in trials})))
        comparable = sum(count >= 2 for count in Counter(trial.cell.digest for trial in ended).values())
        if past and 0 < past[-1].cells < comparable:
            grown |= {len(past)}
    if any(look.by == "race" for look in past):
        grown = frozenset(range(len(seeds)))  # as `race_level` says
    first = past[0].planned if past else len({trial.seed for trial in trials})
    return Looks(tuple(seeds), max(1, first), not imported, share, grown)
