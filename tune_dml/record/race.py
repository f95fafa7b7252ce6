"""What the ledger says of a race (`sweep --until-decided`): its rule, its blocks of seeds, what was judged after each.

race       the rule: margin, most seeds, most hours; written when a session asks for a race
block      cells get seeds: all seeds so far, digests of the cells
judged     a block was looked at: seeds, level
settled    a cell stops: why, after how many seeds, against which cell, margin, level
reopened   it goes on after all: the cell it was tied with has been overtaken
race_over  no block follows: decided; failed, where all cells are settled but those whose trials failed; max_seeds; budget
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tune_dml.planning.plan import Trial

Why = Literal["worse", "tied", "best", "diverged", "failed"]
Over = Literal["", "decided", "failed", "max_seeds", "budget"]


@dataclass(frozen=True)
class SettledCell:
    """Why a cell got no more seeds."""

    cell: str
    """Its digest."""
    seeds: int
    """Of the block after which it stopped."""
    why: Why
    against: str
    """Label of the cell it was judged against; empty where it was none."""
    margin: float
    level: float
    """Error level of the look."""
    effect: float | None = None
    """How much worse it certainly is, or how far from the best it may be at most."""
    unjudged: str = ""
    """Labels of cells whose trials failed, which may be better than the best."""
    failed: int = 0
    """How many of its last trials failed, where it stopped for that."""

    def supersedes(self, before: SettledCell) -> bool:
        """Whether it must be written although the cell had stopped: its trials were tried again, or those of others."""
        lost = {"diverged", "failed"}
        return (self.why != before.why and bool({self.why, before.why} & lost)) or self.unjudged != before.unjudged

    @property
    def sentence(self) -> str:
        """`after 4 seeds: worse than rho=1 by at least 3.1 (error level 0.3 %)`."""
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
    """What a race is to decide, and its limits."""

    margin: float
    max_seeds: int
    budget: float | None = None
    """GPU-hours, or worker-hours where trials have no GPU."""


@dataclass(frozen=True)
class Block:
    """Seeds that some cells got together."""

    seeds: int
    """How many."""
    trials: tuple[Trial, ...]


@dataclass
class Race:
    """Where a race stands."""

    rule: RaceRule
    blocks: list[Block] = field(default_factory=list)
    judged: list[tuple[int, float]] = field(default_factory=list)
    """(seeds, level) of every judgement, in order."""
    settled: dict[str, SettledCell] = field(default_factory=dict)
    """Digest -> why the cell stopped, of those that have."""
    over: Over = ""
    """Why no block follows; empty while one may."""

    @property
    def failed(self) -> list[str]:
        """Digests of the cells that stopped because their trials failed."""
        return [cell for cell, settled in self.settled.items() if settled.why == "failed"]

    def limit(self, rule: RaceRule) -> None:
        """Other limits: a race that the old ones had stopped goes on."""
        if self.over != "decided" and rule != self.rule:
            self.over = ""
        self.rule = rule

    def retry(self) -> None:
        """Go on: a trial runs again, so the race is judged again once it has ended."""
        if self.over != "budget":
            self.over = ""
