"""What a question of the report gives: one section, from which the page, LaTeX, CSV, JSON and the terminal are all written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.drawing.canvas import Canvas
from tune_dml.report.naming import MetricName
from tune_dml.report.steps import Step
from tune_dml.space import Value
from tune_dml.text import is_number, value_text


@dataclass(frozen=True)
class TableCell:
    """One field of a table: text for people, and the full number behind it for machines."""

    text: str
    value: Value = None
    """None for words."""
    links: tuple[tuple[str, str], ...] = ()
    """(text, address) pairs shown instead of the text; an address on the page begins with #."""
    anchor: str = ""
    """The id of the row, on its first field."""
    mark: str = ""
    """A class for the page: `better`, `diverged` ..."""

    @property
    def numeric(self) -> bool:
        """Whether it is set flush right."""
        return is_number(self.value)


def text_cell(text: str, mark: str = "", anchor: str = "") -> TableCell:
    """A field of words."""
    return TableCell(text, None, mark=mark, anchor=anchor)


def metric_cell(metric: MetricName, value: float) -> TableCell:
    """A metric's value; a dash, and an empty value, where there is none."""
    return TableCell(metric.number(value), value if math.isfinite(value) else None)


def delta_cell(metric: MetricName, value: float) -> TableCell:
    """A difference."""
    return TableCell(metric.signed(value), value if math.isfinite(value) else None)


def interval_cells(metric: MetricName, low: float, high: float) -> tuple[TableCell, TableCell]:
    """The interval of a difference, as far as two values can differ."""
    low, high = metric.change_ends(low, high)
    return delta_cell(metric, low), delta_cell(metric, high)


def value_cell(value: Value) -> TableCell:
    """A count, a knob's value, a name."""
    if isinstance(value, float) and not math.isfinite(value):
        return TableCell("-")
    return TableCell(value_text(value), value if is_number(value) else None)


@dataclass(frozen=True)
class Table:
    """Columns and rows with a caption: on the page, as CSV and, unless it is not for a paper, in LaTeX."""

    kind: ClassVar = "table"
    name: str
    """File name and anchor."""
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    folded: str = ""
    """The page shows the table under this title when it is opened; at once when empty."""
    csv_only: tuple[str, ...] = ()
    """Columns that only the CSV has."""
    for_paper: bool = True
    searchable: bool = False
    """The page lets it be sorted and searched."""

    @cached_property
    def numeric(self) -> tuple[bool, ...]:
        """For each column, whether it holds numbers."""
        return tuple(any(row[index].numeric for row in self.rows) for index in range(len(self.columns)))

    @cached_property
    def linked(self) -> tuple[str, ...]:
        """The columns of links, which lead nowhere on paper."""
        return tuple(name for i, name in enumerate(self.columns) if any(row[i].links for row in self.rows))

    def without(self, columns: Iterable[str]) -> Table:
        """The table less some columns."""
        left_out = set(columns)
        kept = [index for index, column in enumerate(self.columns) if column not in left_out]
        rows = tuple(tuple(row[index] for index in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[index] for index in kept), rows=rows)


@dataclass(frozen=True)
class FigureView:
    """One of several ways to see a figure; the reader chooses."""

    title: str
    """On its tab."""
    draw: Callable[[bool], Canvas]
    """narrow -> the marks."""
    description: str
    """What is seen, for readers who do not see it."""
    sentence: str = ""
    """Below the drawing."""


@dataclass(frozen=True)
class Toggle:
    """A part of a figure that can be shown and hidden."""

    group: str
    """What its marks were drawn as (`Canvas.group`)."""
    label: str
    colour: str
    """A role of the palette."""


@dataclass(frozen=True)
class Figure:
    """A drawing at two widths, with its text alternative; drawn when it is first asked for."""

    kind: ClassVar = "figure"
    name: str
    """File name and anchor."""
    draw: Callable[[bool], Canvas]
    """narrow -> the marks: the first view."""
    description: str
    """For readers who do not see it: the finding first."""
    caption: str
    title: str = ""
    """On the first view's tab, where there are others."""
    others: tuple[FigureView, ...] = ()
    toggles: tuple[Toggle, ...] = ()
    sentence: str = ""
    """Below the first view."""

    @cached_property
    def views(self) -> tuple[FigureView, ...]:
        """The first view and the others."""
        return (FigureView(self.title, self.draw, self.description, self.sentence), *self.others)

    @cached_property
    def drawn(self) -> tuple[tuple[str, str], ...]:
        """For each view, the SVG for a desk and that for a telephone."""
        return tuple((view.draw(False).svg(), view.draw(True).svg()) for view in self.views)


@dataclass(frozen=True)
class Text:
    """A paragraph; `badge` is a verdict's word set before it."""

    kind: ClassVar = "text"
    text: str
    badge: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading within the section."""

    kind: ClassVar = "heading"
    text: str


@dataclass(frozen=True)
class CommandBlock:
    """A command, ready to run."""

    kind: ClassVar = "command"
    text: str


@dataclass(frozen=True)
class Notes:
    """A list."""

    kind: ClassVar = "notes"
    items: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """Names and what they stand for."""

    kind: ClassVar = "facts"
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class WordTable:
    """A table of words that only the page has, folded; `columns` may be empty."""

    kind: ClassVar = "listing"
    title: str
    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Fold:
    """Blocks under a title, closed until they are asked for."""

    kind: ClassVar = "fold"
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Photograph:
    """A picture that is no drawing, with its text alternative."""

    source: str
    """A data address."""
    title: str
    description: str


@dataclass(frozen=True)
class Photographs:
    """Pictures side by side."""

    kind: ClassVar = "photographs"
    items: tuple[Photograph, ...]
    caption: str


Block = Text | Heading | CommandBlock | Notes | Facts | WordTable | Table | Figure | Photographs | Fold


@dataclass(frozen=True)
class Card:
    """A verdict in a word at the top of the page, with a link to its section."""

    word: str
    style: str
    """A class for the page: `sensitive`, `edge`, `better` ..."""
    about: str
    """The question."""
    sentence: str


@dataclass(frozen=True, eq=False)
class Section:
    """The answer to one question."""

    name: str
    """Begins its anchor."""
    title: str
    """The question, in words."""
    contents: str
    """What the table of contents calls it."""
    body: tuple[Block, ...] = ()
    """Top down; tables without rows are left out."""
    card: Card | None = None
    verdicts: tuple[str, ...] = ()
    """The leading sentences, for the terminal."""
    findings: tuple[str, ...] = ()
    """What a check in a pipeline should stop at."""
    headline: str = ""
    """Its part of the answer at the head of the page and of the terminal, in plain words; empty when it adds nothing."""
    steps: tuple[Step, ...] = ()
    """What might be run next."""
    hint: str = ""
    """Why no further seeds are advised; part of the answer where nothing more urgent is."""
    data: Mapping[str, object] = field(default_factory=dict)
    """Its share of verdicts.json: of the knob's object, or of the whole. Dataclasses, mappings, sequences, numbers, text."""
    appendix: bool = False
    """Whether the page keeps it closed at its end; set by the asker where a question gives it."""
    style: str = ""
    """A class for the page."""
    knob: KnobAnalysis | None = None
    """The knob that it is about, set by the asker; None when it is about the sweep."""

    @property
    def _suffix(self) -> str:
        return f"-{self.knob.slug}" if self.knob else ""

    @property
    def anchor(self) -> str:
        """Its id on the page."""
        return f"{self.name}{self._suffix}"

    @property
    def heading(self) -> str:
        """The id of its title."""
        return f"{self.name}-title{self._suffix}"

    @property
    def tables(self) -> tuple[Table, ...]:
        """Those that have rows."""
        return tuple(block for block in _unfolded(self.body) if isinstance(block, Table) and block.rows)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """In order."""
        return tuple(block for block in _unfolded(self.body) if isinstance(block, Figure))


def _unfolded(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Fold):
            yield from _unfolded(block.blocks)
        else:
            yield block


def tables_of(sections: Sequence[Section]) -> list[Table]:
    """Every table of the report, in its order."""
    return [table for section in sections for table in section.tables]


def figures_of(sections: Sequence[Section]) -> list[Figure]:
    """Every figure of the report, in its order."""
    return [figure for section in sections for figure in section.figures]
