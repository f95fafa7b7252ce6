"""Sections of a report: each answers one question, for the page, LaTeX, CSV, JSON and the terminal."""

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
    """One cell of a table: the text that is shown, and the full value for CSV and sorting."""

    text: str
    value: Value = None
    """Full value of a number; None for text."""
    links: tuple[tuple[str, str], ...] = ()
    """(text, URL) pairs that the page shows instead of the text; `#...` is an anchor on the page."""
    anchor: str = ""
    """Id of the row; only the first cell of a row has one."""
    mark: str = ""
    """CSS class, such as `better` or `diverged`."""

    @property
    def numeric(self) -> bool:
        """Whether the cell is right-aligned."""
        return is_number(self.value)


def text_cell(text: str, mark: str = "", anchor: str = "") -> TableCell:
    """Return a cell of text."""
    return TableCell(text, None, mark=mark, anchor=anchor)


def metric_cell(metric: MetricName, value: float) -> TableCell:
    """Return a cell with a metric's value; a dash if it is not finite."""
    return TableCell(metric.number(value), value if math.isfinite(value) else None)


def delta_cell(metric: MetricName, value: float) -> TableCell:
    """Return a cell with a signed difference."""
    return TableCell(metric.signed(value), value if math.isfinite(value) else None)


def interval_cells(metric: MetricName, low: float, high: float) -> tuple[TableCell, TableCell]:
    """Return two cells with the ends of a difference's interval, clipped to the metric's range."""
    low, high = metric.change_ends(low, high)
    return delta_cell(metric, low), delta_cell(metric, high)


def value_cell(value: Value) -> TableCell:
    """Return a cell with a count, a knob's value or a name."""
    if isinstance(value, float) and not math.isfinite(value):
        return TableCell("-")
    return TableCell(value_text(value), value if is_number(value) else None)


@dataclass(frozen=True)
class Table:
    """A table on the page, as CSV and, if `for_paper`, in LaTeX."""

    kind: ClassVar = "table"
    name: str
    """File name and anchor."""
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    folded: str = ""
    """Title under which the page folds the table; empty if the table is not folded."""
    csv_only: tuple[str, ...] = ()
    """Columns that appear only in the CSV file."""
    for_paper: bool = True
    searchable: bool = False
    """Whether the page offers sorting and search."""

    @cached_property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column holds numbers."""
        return tuple(any(row[index].numeric for row in self.rows) for index in range(len(self.columns)))

    @cached_property
    def linked(self) -> tuple[str, ...]:
        """Columns with links; LaTeX tables omit them."""
        return tuple(name for i, name in enumerate(self.columns) if any(row[i].links for row in self.rows))

    def without(self, columns: Iterable[str]) -> Table:
        """Return the table without these columns."""
        excluded = set(columns)
        kept = [index for index, column in enumerate(self.columns) if column not in excluded]
        rows = tuple(tuple(row[index] for index in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[index] for index in kept), rows=rows)


@dataclass(frozen=True)
class FigureView:
    """One view of a figure; if a figure has several, the reader chooses one by its tab."""

    title: str
    """Title of its tab."""
    draw: Callable[[bool], Canvas]
    """Function that draws the canvas; its argument is whether the canvas is narrow."""
    description: str
    """Text alternative."""
    sentence: str = ""
    """Sentence below the drawing."""


@dataclass(frozen=True)
class Toggle:
    """A part of a figure that readers can show or hide."""

    group: str
    """Group of its marks (`Canvas.group`)."""
    label: str
    colour: str
    """Role in the palette."""


@dataclass(frozen=True)
class Figure:
    """A drawing at two widths with a text alternative; drawn on first use."""

    kind: ClassVar = "figure"
    name: str
    """File name and anchor."""
    draw: Callable[[bool], Canvas]
    """Function that draws the canvas of the first view; its argument is whether the canvas is narrow."""
    description: str
    """Text alternative; it begins with the finding."""
    caption: str
    title: str = ""
    """Title of the first view's tab, if there are others."""
    others: tuple[FigureView, ...] = ()
    toggles: tuple[Toggle, ...] = ()
    sentence: str = ""
    """Sentence below the first view."""

    @classmethod
    def of(cls, name: str, views: Sequence[FigureView], caption: str) -> Figure:
        """Return a figure with these views; the page shows the first one."""
        first, *others = views
        return cls(name, first.draw, first.description, caption, first.title, tuple(others), sentence=first.sentence)

    @cached_property
    def views(self) -> tuple[FigureView, ...]:
        """All views."""
        return (FigureView(self.title, self.draw, self.description, self.sentence), *self.others)

    @cached_property
    def drawn(self) -> tuple[tuple[str, str], ...]:
        """The wide and the narrow SVG of each view."""
        return tuple((view.draw(False).svg(), view.draw(True).svg()) for view in self.views)


@dataclass(frozen=True)
class Text:
    """A paragraph, with an optional verdict badge."""

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
    """A list of sentences."""

    kind: ClassVar = "notes"
    items: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """A list of names and values."""

    kind: ClassVar = "facts"
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class WordTable:
    """A folded table of text that appears only on the page; `columns` may be empty."""

    kind: ClassVar = "listing"
    title: str
    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Fold:
    """Blocks folded under a title."""

    kind: ClassVar = "fold"
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Photograph:
    """An image with its text alternative."""

    source: str
    """A data URL."""
    title: str
    description: str


@dataclass(frozen=True)
class Photographs:
    """Images side by side."""

    kind: ClassVar = "photographs"
    items: tuple[Photograph, ...]
    caption: str


Block = Text | Heading | CommandBlock | Notes | Facts | WordTable | Table | Figure | Photographs | Fold


@dataclass(frozen=True)
class Card:
    """A verdict at the top of the page, with a link to its section."""

    word: str
    style: str
    """CSS class, such as `sensitive`, `edge` or `better`."""
    about: str
    """The question that the verdict answers."""
    sentence: str


@dataclass(frozen=True, eq=False)
class Section:
    """The answer to one question."""

    name: str
    """Prefix of the section's anchor."""
    title: str
    """The question."""
    contents: str
    """Entry in the table of contents."""
    body: tuple[Block, ...] = ()
    """Blocks from top to bottom; tables without rows are omitted."""
    card: Card | None = None
    verdicts: tuple[str, ...] = ()
    """Sentences for the terminal."""
    findings: tuple[str, ...] = ()
    """Problems that make `report --check` fail."""
    headline: str = ""
    """Sentence for the answer at the head of page and terminal; may be empty."""
    steps: tuple[Step, ...] = ()
    """Candidates for the next command."""
    hint: str = ""
    """Reason why no further seeds are advised; part of the answer if no step is more urgent."""
    data: Mapping[str, object] = field(default_factory=dict)
    """Entries of verdicts.json: in the knob's object for a question about a knob, else at the top level.

    Values are dataclasses, mappings, sequences, numbers or text."""
    appendix: bool = False
    """Whether the section belongs to the folded appendix; set from the question's order."""
    style: str = ""
    """CSS class of the section."""
    knob: KnobAnalysis | None = None
    """Knob that the question is about; None for a question about the sweep."""

    @property
    def _suffix(self) -> str:
        return f"-{self.knob.slug}" if self.knob else ""

    @property
    def anchor(self) -> str:
        """Id of the section on the page."""
        return f"{self.name}{self._suffix}"

    @property
    def heading(self) -> str:
        """Id of the section's title on the page."""
        return f"{self.name}-title{self._suffix}"

    @property
    def tables(self) -> tuple[Table, ...]:
        """Tables that have rows, including folded ones."""
        return tuple(block for block in _unfolded(self.body) if isinstance(block, Table) and block.rows)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Figures, including folded ones."""
        return tuple(block for block in _unfolded(self.body) if isinstance(block, Figure))


def _unfolded(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, Fold):
            yield from _unfolded(block.blocks)
        else:
            yield block


def tables_of(sections: Sequence[Section]) -> list[Table]:
    """Return every table of the report, in order."""
    return [table for section in sections for table in section.tables]


def figures_of(sections: Sequence[Section]) -> list[Figure]:
    """Return every figure of the report, in order."""
    return [figure for section in sections for figure in section.figures]
