"""Interim analyses (looks) of a growing sweep, and the error level of the current one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from tune_dml.record.judging.looks import Look, seeds_after
from tune_dml.record.results import TrialResult
from tune_dml.report.naming import confidence
from tune_dml.stats.sequential.looks import error_spent, level_left

ALPHA = 0.05  # total error of all looks at a sweep, for each family of statements


@dataclass(frozen=True)
class Looks:
    """Looks at a sweep or at its confirmation."""

    seeds: tuple[float, ...]  # mean seeds per cell at each look; the current look is the last
    planned: int  # seeds per cell planned before the first look
    recorded: bool = True
    """Whether looks are recorded. They are not for imported results: a single look then spends the whole error."""
    share: float = 1.0
    """Share of the error for the cells that were not stopped early, because their own results selected them."""
    grown: frozenset[int] = frozenset()  # positions of the looks before which cells were added

    @cached_property
    def level(self) -> float:
        """Error level of the current look."""
        if not self.recorded:
            return ALPHA
        return self.share * (level_left(self.seeds, planned=self.planned, alpha=ALPHA, grown=self.grown) or ALPHA)

    @property
    def spent(self) -> float:
        """Error spent by all looks together."""
        return error_spent(self.seeds, planned=self.planned, alpha=ALPHA) if self.recorded else ALPHA

    @property
    def confidence(self) -> str:
        """Confidence of the current look's intervals, e.g. `96%`."""
        return confidence(self.level)

    def level_at(self, seeds: float) -> float:
        """Return the error level of a further look at `seeds` seeds per cell."""
        if not self.recorded:
            return ALPHA
        return self.share * level_left((*self.seeds, seeds), planned=self.planned, alpha=ALPHA, grown=self.grown)


def looks_of(
    past: Sequence[Look], trials: Sequence[TrialResult], *, imported: bool = False, share: float = 1.0
) -> Looks:
    """Return the recorded looks together with the current look; for `share`, see `Looks`."""
    ended = [trial for trial in trials if trial.status not in {"running", "missing"}]
    failed = sum(trial.status == "failed" for trial in ended)
    seeds, cells = [look.seeds for look in past], [look.cells for look in past]
    if not past or past[-1].trials != len(ended) or past[-1].failed not in {failed, 0}:  # not on record yet
        each = (len(ended) - failed) / max(1, len({trial.cell.digest for trial in trials}))
        seeds.append(seeds_after(past[-1] if past else None, each, len(ended)))
        cells.append(sum(count >= 2 for count in Counter(trial.cell.digest for trial in ended).values()))
    grown = frozenset(index for index, (before, now) in enumerate(pairwise(cells), start=1) if now > before > 0)
    if any(look.by == "race" for look in past):
        grown = frozenset(range(len(seeds)))  # see `stats.sequential.looks.race_level`
    first = past[0].planned if past else len({trial.seed for trial in trials})
    return Looks(tuple(seeds), max(1, first), not imported, share, grown)
