"""Fidelity sheets: decisions of a paper's code or text, each equal to ours, different for a reason, or unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from tune_dml.papers.paper import Paper

Setting = float | int | str | bool | None | list[int] | list[float]
DecidedPart = Literal[
    "start of the backbone",
    "head",
    "start of the head",
    "start of proxies",
    "weight decay",
    "learning rates",
    "schedule",
    "gradients",
    "batch normalisation",
    "training pictures",
    "test pictures",
    "channels",
    "batches",
    "steps",
    "published number",
]
"""Subjects of the decisions, in the order of the page."""


@dataclass(frozen=True)
class Decision:
    """One decision of a paper's code or text.

    `settings` expresses the decision as settings of this project. The protocols have all of them if the verdict is
    `equal`, and differ in at least one if it is `differs`.
    """

    part: DecidedPart
    theirs: str
    source: str
    """File and lines of the released code, or section of the paper."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    ours: str = ""
    """Our decision in words, if settings cannot express it."""
    verdict: Literal["equal", "differs", "unknown"] = "equal"
    why: str = ""
    """Reason why ours differs, or our choice if theirs is unknown."""
    of: tuple[str, ...] = ("*",)
    """Name patterns of the protocols that the decision applies to."""

    def is_about(self, protocol: str) -> bool:
        """Whether the decision applies to a protocol, given by name."""
        return any(fnmatchcase(protocol, pattern) for pattern in self.of)


@dataclass(frozen=True)
class FidelitySheet:
    """The decisions of one paper, and the protocols that follow it."""

    title: str
    paper: Paper
    read: str
    """The texts that were read, and the commit of the released code."""
    protocols: tuple[str, ...]
    """Names of the protocols."""
    decisions: tuple[Decision, ...]
