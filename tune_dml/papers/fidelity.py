"""Fidelity sheets: the training decisions of a paper's code or text, compared with our protocols."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from tune_dml.papers.paper import Paper

Setting = float | int | str | bool | None | list[int] | list[float]
DecidedPart = Literal[
    "start of the backbone", "head", "start of the head", "start of proxies", "weight decay", "learning rates",
    "schedule", "gradients", "batch normalisation", "training pictures", "test pictures", "channels", "batches", "steps",
    "published number",
]  # fmt: skip
"""Subjects of the decisions, in the order of the page."""


@dataclass(frozen=True)
class Decision:
    """One decision of a paper's code or text.

    `settings` expresses the decision as settings of this project. If the verdict is `equal`, the protocols have all of
    them. If it is `differs`, the protocols differ in at least one.
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
    protocols: tuple[str, ...] = ("*",)
    """Name patterns of the protocols to which the decision applies."""

    def applies_to(self, protocol: str) -> bool:
        """Return whether the decision applies to a protocol, given by name."""
        return any(fnmatchcase(protocol, pattern) for pattern in self.protocols)


@dataclass(frozen=True)
class FidelitySheet:
    """The decisions of one paper, and the protocols that follow it."""

    title: str
    paper: Paper
    sources: str
    """The texts that the decisions come from, and the commit of the released code."""
    protocols: tuple[str, ...]
    decisions: tuple[Decision, ...]
