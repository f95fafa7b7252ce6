"""What is cited of a paper: where a study comes from, its tables, and the curves of numbers that they print.

A declaration: the numbers themselves are rows of `published.csv`, which `tune_dml.papers.published` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Value = float | int | str | bool | None
Settings = Mapping[str, Any]
"""Dotted name -> value, also a list of numbers; `TrialConfig` checks each value."""

METHOD = "method"
"""In place of a hyperparameter: a printed curve that goes from method to method, to be met by arms of their names."""

Selection = Literal["test", "validation", "unknown"]
"""The classes on which a printed number's evaluation was chosen."""


@dataclass(frozen=True)
class Citation:
    """Where a study comes from."""

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
    """A method as a table calls it, in our settings: under what conditions its numbers were obtained."""

    name: str
    settings: Mapping[str, Value]
    protocol: str
    """The protocol that its authors trained it by, `{}` for the name of the data set: `sec/{}-npair`."""
    knobs: Mapping[str, str] = field(default_factory=dict)
    """Printed hyperparameter -> the setting it is: `m` -> `loss.margin`."""
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
    """A printed table whose numbers are rows of `search_spaces/published.csv`, and what all of them have in common."""

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
    """Settings of its methods that neither it nor the text beside it prints."""
    methods: tuple[PrintedMethod, ...] = ()
    """Those that the authors ran; what they cite from others has no conditions here."""
    remarks: tuple[str, ...] = ("source_note",)
    """Printed hyperparameters that are no setting of a trial: grids, remarks."""

    def method(self, name: str) -> PrintedMethod | None:
        """One of its methods; None for numbers that it cites from others."""
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
        """The numbers of `methods` on a data set along a hyperparameter."""
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
        """The numbers of all methods that its authors ran on a data set: one for each arm of that name."""
        return self.curve(dataset, (), METHOD, metric=metric, where=where, note=note)


@dataclass(frozen=True)
class Part:
    """What can be cited of a paper, or of its supplement or rebuttal: the numbers of its sections, tables and figures."""

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
    """What the paper measures on, by the names of its tables."""
    tables: tuple[PaperTable, ...] = ()
    parts: Mapping[str, Part] = field(default_factory=dict)
    """What can be cited, by the part's name: `supplement`, `rebuttal`, or nothing for the paper itself.

    Empty where we do not have the text: such a paper is cited as a whole, or by its code.
    """

    def says(self, place: str) -> str:
        """The source of settings that the paper states at a place: `paper: DRO, section 4.1`."""
        return f"paper: {self.key}, {place}"

    def at(self, place: str) -> Citation:
        """The paper cited at a table, figure or section."""
        return Citation(self.authors, self.title, self.venue, self.year, place)

    def table(self, number: str, part: str = "") -> PaperTable:
        """One of its tables, of the supplement or the rebuttal where `part` says so. Raises KeyError for an unknown one."""
        source = f"{self.key}-{part}" if part else self.key
        return {(table.source, table.number): table for table in self.tables}[source, number]
