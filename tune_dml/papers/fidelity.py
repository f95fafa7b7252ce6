"""The form of a fidelity sheet: decisions of a paper's code or text, each equal to ours, different for a reason, or unknown."""

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
"""What is decided, in the order of the page."""


@dataclass(frozen=True)
class Decision:
    """One decision of a paper's code or text.

    `settings` writes it as settings of ours: all of them hold where it is `equal`, at least one does not where it `differs`.
    """

    part: DecidedPart
    theirs: str
    source: str
    """File and lines of the released code, or section of the paper."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    ours: str = ""
    """Ours in words, where settings do not say it."""
    verdict: Literal["equal", "differs", "unknown"] = "equal"
    why: str = ""
    """Why ours differs, or what was chosen where theirs is unknown."""
    of: tuple[str, ...] = ("*",)
    """Patterns of the protocols that it is about."""

    def is_about(self, protocol: str) -> bool:
        """Whether the protocol of a name is one of those that the decision is about."""
        return any(fnmatchcase(protocol, pattern) for pattern in self.of)


@dataclass(frozen=True)
class FidelitySheet:
    """The decisions of one paper, and the protocols that follow it."""

    title: str
    paper: Paper
    read: str
    """What was read, and the commit of released code."""
    protocols: tuple[str, ...]
    """Their names."""
    decisions: tuple[Decision, ...]
