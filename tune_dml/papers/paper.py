"""Declare papers: citations, tables and printed curves.

The numbers themselves are rows of `published.csv`, which `tune_dml.papers.published` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Value = float | int | str | bool | None
Settings = Mapping[str, Any]
"""Dotted name -> value, also a list of numbers; `TrialConfig` checks each value."""

METHOD = "method"
"""Stands for the hyperparameter of a curve with one number per method; arms are compared with the method of their name."""

Selection = Literal["test", "validation", "unknown"]
"""The classes that selected the evaluation of a printed number."""


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
    """A method of a printed table, and the conditions of its numbers in our settings."""

    name: str
    settings: Mapping[str, Value]
    protocol: str
    """The protocol of its authors; `{}` stands for the data set: `sec/{}-npair`."""
    knobs: Mapping[str, str] = field(default_factory=dict)
    """Printed hyperparameter -> our setting: `m` -> `loss.margin`."""
    unprinted: tuple[str, ...] = ()
    """Settings that neither the table nor the text beside it prints."""


@dataclass(frozen=True)
class Published:
    """A curve printed in a paper: a selection of rows of `search_spaces/published.csv`."""

    paper: str
    table: str
    dataset: str
    methods: tuple[str, ...]
    hyperparameter: str
    """The key in the table's hyperparameters that varies along the curve."""
    metric: str = "R@1"
    baseline_method: str | None = None
    backbone: str = "BN-Inception"
    embedding_dim: int = 512
    runs: int = 1
    selection: Selection = "test"
    note: str = ""
    where: Mapping[str, Value] = field(default_factory=dict)
    """Only rows with these hyperparameters, where a table prints several curves (`{"epochs": 100}`)."""


@dataclass(frozen=True)
class PaperTable:
    """A printed table, and the conditions that all its rows of `search_spaces/published.csv` share."""

    source: str
    """`paper` in the file: the paper's key, with `-supplement` or `-rebuttal` where the table is printed there."""
    number: str
    holds: str
    datasets: tuple[str, ...]
    backbone: str = "BN-Inception"
    embedding_dim: int = 512
    runs: int = 1
    selection: Selection = "test"
    unprinted: tuple[str, ...] = ()
    """Settings of its methods that neither the table nor the text beside it prints."""
    methods: tuple[PrintedMethod, ...] = ()
    """The methods that the authors ran; numbers cited from others have no conditions."""
    remarks: tuple[str, ...] = ("source_note",)
    """Printed hyperparameters that are no setting of a trial: grids, remarks."""

    def method(self, name: str) -> PrintedMethod | None:
        """Return the method of a name; None if the table cites its numbers from others."""
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
    ) -> Published:
        """Return the numbers of `methods` on a data set along a hyperparameter."""
        return Published(
            paper=self.source,
            table=self.number,
            dataset=dataset,
            methods=methods,
            hyperparameter=hyperparameter,
            metric=metric,
            baseline_method=baseline,
            backbone=self.backbone,
            embedding_dim=self.embedding_dim,
            runs=self.runs,
            selection=self.selection,
            note=note,
            where=where or {},
        )

    def methods_on(
        self, dataset: str, *, metric: str = "R@1", where: Mapping[str, Value] | None = None, note: str = ""
    ) -> Published:
        """Return the numbers of all methods that the authors ran on a data set, one for each arm of that name."""
        return self.curve(dataset, (), METHOD, metric=metric, where=where, note=note)


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

    Empty if we do not have the text: such a paper is cited as a whole, or by its code.
    """

    def says(self, place: str) -> str:
        """Return the source of settings that the paper states at a place: `paper: DRO, section 4.1`."""
        return f"paper: {self.key}, {place}"

    def at(self, place: str) -> Citation:
        """Return the citation of a table, figure or section."""
        return Citation(self.authors, self.title, self.venue, self.year, place)

    def table(self, number: str, part: str = "") -> PaperTable:
        """Return a table of the paper, or of its supplement or rebuttal (`part`). Raise KeyError if it is unknown."""
        source = f"{self.key}-{part}" if part else self.key
        return {(table.source, table.number): table for table in self.tables}[source, number]


@dataclass(frozen=True)
class Stated:
    """Settings that one source states."""

    source: str
    """`paper: ...`, `code: ...`, or `open: ...` where neither says it and the choice is ours."""
    settings: Settings


@dataclass(frozen=True)
class Recipe:
    """The batches of some losses, and the learning rate of the losses' own parameters, for every data set."""

    methods: tuple[str, ...]
    """Names of the losses."""
    stated: Stated
    loss_lr: float | None = None
    """Learning rate of proxies and class weights; None where the loss has none, or the rate is not known."""
