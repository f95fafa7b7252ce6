"""State of a race (`sweep --until-decided`): its rule, its blocks of seeds, and the cells that stopped.

A race ends as `decided`, `failed` (all cells are settled but those whose trials failed), `max_seeds` or `budget`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tune_dml.planning.plan import PlannedTrial

Why = Literal["worse", "tied", "best", "diverged", "failed"]
Over = Literal["", "decided", "failed", "max_seeds", "budget"]


@dataclass(frozen=True)
class SettledCell:
    """A cell that gets no more seeds, and why."""

    cell: str  # digest
    seeds: int  # its seeds when it stopped
    why: Why
    against: str  # label of the cell that it was compared with; empty if none
    margin: float
    level: float  # error level of the look
    effect: float | None = None  # lower bound of its deficit, or upper bound of its difference to the best
    unjudged: str = ""  # labels of cells whose trials failed, so that they may be better than the best
    failed: int = 0  # number of its last trials that failed, if it stopped because of them

    def supersedes(self, earlier: SettledCell) -> bool:
        """Return whether this record replaces an earlier one of the same cell, after trials were retried."""
        without_result = {"diverged", "failed"}
        return (
            self.why != earlier.why and bool({self.why, earlier.why} & without_result)
        ) or self.unjudged != earlier.unjudged

    @property
    def sentence(self) -> str:
        """The record in words: `after 4 seeds: worse than rho=1 by at least 3.1 (error level 0.3 %)`."""
        amount = "" if self.effect is None else f"{self.effect:.3g}"
        reason = {
            "worse": f"worse than {self.against} by at least {amount}",
            "tied": f"within {amount} of {self.against}, below the margin of {self.margin:g}",
            "best": f"the best, or within the margin of {self.margin:g} of it",
            "diverged": "its trials of the last block diverged",
            "failed": f"its last {self.failed} trials failed, so it gets no more and is not judged",
        }[self.why]
        reason += f"; {self.unjudged} was not judged" if self.unjudged else ""
        return f"after {self.seeds} seeds: {reason} (error level {100 * self.level:.2g} %)"


@dataclass(frozen=True)
class RaceRule:
    """Margin and limits of a race."""

    margin: float
    max_seeds: int
    budget: float | None = None  # GPU-hours, or worker-hours of trials without a GPU


@dataclass(frozen=True)
class Block:
    """Seeds that some cells of a race got at once."""

    seeds: int
    trials: tuple[PlannedTrial, ...]


@dataclass
class Race:
    """State of a race."""

    rule: RaceRule
    blocks: list[Block] = field(default_factory=list)
    judged: list[tuple[int, float]] = field(default_factory=list)  # seeds and error level of every judgement
    settled: dict[str, SettledCell] = field(default_factory=dict)  # by the cell's digest
    over: Over = ""  # why it ended; empty while it continues

    @property
    def failed(self) -> list[str]:
        """Digests of cells that stopped because their trials failed."""
        return [cell for cell, settled in self.settled.items() if settled.why == "failed"]

    def limit(self, rule: RaceRule) -> None:
        """Change the limits; a race that the old limits ended continues."""
        if self.over != "decided" and rule != self.rule:
            self.over = ""
        self.rule = rule

    def retry(self) -> None:
        """Continue the race, because a trial runs again."""
        if self.over != "budget":
            self.over = ""
