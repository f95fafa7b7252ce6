"""Declare papers: citations, tables and printed curves.

The numbers themselves are rows of `published.csv`, which `tune_dml.papers.published` reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

Value = float | int | str | bool | None
Settings = Mapping[str, Any]
"""Values by dotted name; a value may also be a list of numbers. `TrialConfig` checks them."""

METHOD = "method"
"""Hyperparameter of a curve with one number per method; each arm is compared with the method of the same name."""

Selection = Literal["test", "validation", "unknown"]
"""Classes on which the authors chose the evaluation that they print."""


@dataclass(frozen=True)
class Citation:
    """The source of a study: a paper, and its table, figure or section."""

    authors: str
    title: str
    venue: str
    year: int
    location: str
    """The table, figure or section that holds the grid or the numbers."""

    def __str__(self) -> str:
        return f"{self.authors}, {self.title}, {self.venue} {self.year}, {self.location}"


@dataclass(frozen=True)
class PrintedMethod:
    """A method of a printed table, and the settings under which we repeat it."""

    name: str
    settings: Mapping[str, Value]
    protocol: str
    """The protocol of its authors; `{}` stands for the data set: `sec/{}-npair`."""
    knobs: Mapping[str, str] = field(default_factory=dict)
    """Printed hyperparameter -> our setting: `m` -> `loss.margin`."""
    unprinted: tuple[str, ...] = ()
    """Settings that neither the table nor the text beside it prints."""


@dataclass(frozen=True)
class CurveReference:
    """A reference to a curve printed in a paper: it selects rows of `search_spaces/published.csv`."""

    paper: str
    table: str
    dataset: str
    methods: tuple[str, ...]
    hyperparameter: str
    """The table's hyperparameter that varies along the curve."""
    metric: str = "R@1"
    baseline_method: str | None = None
    backbone: str | None = "BN-Inception"
    """None if the paper does not state it, as for the next one."""
    embedding_dim: int | None = 512
    runs: int = 1
    selection: Selection = "test"
    note: str = ""
    where: Mapping[str, Value] = field(default_factory=dict)
    """Hyperparameters that select one of several curves of a table, such as `{"epochs": 100}`."""


@dataclass(frozen=True)
class PaperTable:
    """A printed table, and the conditions that all its rows of `search_spaces/published.csv` share."""

    source: str
    """Column `paper` of the file: the paper's key, followed by `-supplement` or `-rebuttal` for their tables."""
    number: str
    holds: str
    datasets: tuple[str, ...]
    backbone: str | None = "BN-Inception"
    """None if the paper does not state it, as for the next one."""
    embedding_dim: int | None = 512
    runs: int = 1
    selection: Selection = "test"
    unprinted: tuple[str, ...] = ()
    """Settings of its methods that neither the table nor the text beside it prints."""
    methods: tuple[PrintedMethod, ...] = ()
    """The methods that the authors ran; numbers cited from others have no conditions."""
    remarks: tuple[str, ...] = ("source_note",)
    """Printed hyperparameters that are not settings of a trial, such as grids and remarks."""

    def method(self, name: str) -> PrintedMethod | None:
        """Return a method by name; None if the table cites its numbers from other papers."""
        return next((method for method in self.methods if method.name == name), None)

    def curve(
        self,
        dataset: str,
        methods: tuple[str, ...],
        hyperparameter: str,
        *,
        metric: str = "R@1",
        baseline: str | None = None,
        where: Mapping[str, Value] | None = None,
        note: str = "",
    ) -> CurveReference:
        """Return a reference to the numbers of `methods` on a data set along a hyperparameter."""
        return CurveReference(
            self.source, self.number, dataset, methods, hyperparameter, metric, baseline, self.backbone,
            self.embedding_dim, self.runs, self.selection, note, where or {},
        )  # fmt: skip

    def methods_on(self, dataset: str, *, where: Mapping[str, Value] | None = None, note: str = "") -> CurveReference:
        """Return a reference to the numbers of all methods that the authors ran on a data set."""
        return self.curve(dataset, (), METHOD, where=where, note=note)


@dataclass(frozen=True)
class Part:
    """The citable sections, tables and figures of a paper, its supplement or its rebuttal."""

    sections: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Paper:
    """A paper whose grids and numbers the spaces cite."""

    key: str
    authors: str
    title: str
    venue: str
    year: int
    url: str = ""
    code: str = ""
    """The released code that was read, with its commit."""
    datasets: tuple[str, ...] = ()
    """The paper's data sets, by the names in its tables."""
    tables: tuple[PaperTable, ...] = ()
    parts: Mapping[str, Part] = field(default_factory=dict)
    """Citable parts by name: `supplement`, `rebuttal`, or the empty name for the paper itself.

    Empty if we do not have the text; only the paper as a whole, or its code, can then be cited.
    """

    def source(self, location: str) -> str:
        """Return the source of settings that the paper states at a location: `paper: DRO, section 4.1`."""
        return f"paper: {self.key}, {location}"

    def cite(self, location: str) -> Citation:
        """Return the citation of a table, figure or section."""
        return Citation(self.authors, self.title, self.venue, self.year, location)

    def table(self, number: str, part: str = "") -> PaperTable:
        """Return a table of the paper, or of its supplement or rebuttal (`part`). Raise KeyError if there is none."""
        source = f"{self.key}-{part}" if part else self.key
        return {(table.source, table.number): table for table in self.tables}[source, number]


@dataclass(frozen=True)
class SourcedSettings:
    """Settings with their source."""

    source: str
    """`paper: ...`, `code: ...`, or `open: ...` if neither states the settings and we chose them."""
    settings: Settings


@dataclass(frozen=True)
class Recipe:
    """The batches of some losses, and the learning rate of the losses' own parameters, for every data set."""

    methods: tuple[str, ...]
    """Names of the losses."""
    stated: SourcedSettings
    loss_lr: float | None = None
    """Learning rate of proxies and class weights; None if the loss has none or the rate is unknown."""


Setting = float | int | str | bool | None | list[int] | list[float]
DecidedPart = Literal[
    "start of the backbone", "head", "start of the head", "loss", "start of proxies", "weight decay", "learning rates",
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
