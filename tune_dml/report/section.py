"""Sections of a report: each answers one question, for the page, LaTeX, CSV, JSON and the terminal."""

# ruff: noqa: PLC0414 - other packages import cells from here
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.cells import TableCell as TableCell
from tune_dml.report.cells import as_cell
from tune_dml.report.cells import metric_cell as metric_cell
from tune_dml.report.cells import text_cell as text_cell
from tune_dml.report.drawing.canvas import Canvas
from tune_dml.report.drawing.charts import Whisker, draw_whiskers
from tune_dml.report.steps import Step


@dataclass(frozen=True)
class Table:
    """A table on the page, as CSV and, if `for_paper`, in LaTeX."""

    name: str  # file name and anchor
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]  # rows of texts, counts, values of knobs and cells
    folded: str = ""  # title under which the page folds the table; empty if the table is not folded
    csv_only: tuple[str, ...] = ()  # columns that appear only in the CSV file
    for_paper: bool = True
    searchable: bool = False  # whether the page offers sorting and search

    @cached_property
    def cells(self) -> tuple[tuple[TableCell, ...], ...]:
        """The rows as cells."""
        return tuple(tuple(map(as_cell, row)) for row in self.rows)

    @cached_property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column holds numbers."""
        return tuple(any(row[index].numeric for row in self.cells) for index in range(len(self.columns)))

    @cached_property
    def linked(self) -> tuple[str, ...]:
        """Columns with links; LaTeX tables omit them."""
        return tuple(name for i, name in enumerate(self.columns) if any(row[i].links for row in self.cells))

    def without(self, columns: Iterable[str]) -> Table:
        """Return the table without these columns."""
        excluded = set(columns)
        kept = [index for index, column in enumerate(self.columns) if column not in excluded]
        rows = [[row[index] for index in kept] for row in self.rows]
        return replace(self, columns=tuple(self.columns[index] for index in kept), rows=rows)


@dataclass(frozen=True)
class FigureView:
    """One view of a figure; if a figure has several, the reader chooses one by its tab."""

    title: str  # title of its tab
    draw: Callable[[bool], Canvas]  # function that draws the canvas; its argument is whether the canvas is narrow
    description: str
    sentence: str = ""  # sentence below the drawing


@dataclass(frozen=True)
class Figure:
    """A drawing at two widths with a text alternative; drawn on first use."""

    name: str  # file name and anchor
    draw: Callable[[bool], Canvas]
    """Function that draws the canvas of the first view; its argument is whether the canvas is narrow."""
    description: str  # text alternative; it begins with the finding
    caption: str
    title: str = ""  # title of the first view's tab, if there are others
    others: tuple[FigureView, ...] = ()
    toggles: tuple[str, ...] = ()
    """Labels of the groups of marks `printed-0`, `printed-1`, ..., which readers can show or hide."""
    sentence: str = ""

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


def whisker_figure(
    name: str, items: Sequence[Whisker], axis: str, description: str, caption: str, *, band: float | None = None
) -> Figure:
    """Return a figure of estimates with intervals on one axis through 0; see `draw_whiskers`."""
    return Figure(name, lambda narrow: draw_whiskers(items, axis, narrow=narrow, band=band), description, caption)


@dataclass(frozen=True)
class Text:
    """A paragraph, with an optional verdict badge."""

    text: str
    badge: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading within the section."""

    text: str


@dataclass(frozen=True)
class Notes:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """A list of names and values."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class WordTable:
    """A folded table of text that appears only on the page; `columns` may be empty."""

    title: str
    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Fold:
    """Blocks folded under a title."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Photograph:
    """An image with its text alternative."""

    source: str
    title: str
    description: str


@dataclass(frozen=True)
class Photographs:
    """Images side by side."""

    items: tuple[Photograph, ...]
    caption: str


Block = Text | Heading | Notes | Facts | WordTable | Table | Figure | Photographs | Fold


@dataclass(frozen=True)
class Card:
    """A verdict beside the section's entry in the table of contents."""

    word: str
    style: str  # CSS class, such as `sensitive`, `edge` or `better`


@dataclass(frozen=True, eq=False)
class Section:
    """The answer to one question."""

    name: str = ""  # prefix of the section's anchor
    title: str = ""  # the question; a section without a title is not on the page
    contents: str = ""  # entry in the table of contents
    body: Sequence[Block] = ()  # blocks from top to bottom; tables without rows are omitted
    card: Card | None = None
    verdicts: tuple[str, ...] = ()  # sentences for the terminal
    findings: tuple[str, ...] = ()  # problems that make `report --check` fail
    headline: str = ""  # sentence for the answer at the head of page and terminal; may be empty
    steps: tuple[Step, ...] = ()
    hint: str = ""  # reason why no further seeds are advised; part of the answer if no step is more urgent
    data: Mapping[str, object] = field(default_factory=dict)
    """Entries of verdicts.json: in the knob's object for a question about a knob, else at the top level.

    Values are dataclasses, mappings, sequences, numbers or text."""
    appendix: bool = False  # whether the section belongs to the folded appendix; set from the question's order
    style: str = ""
    knob: KnobAnalysis | None = None  # knob that the question is about; None for a question about the sweep

    @property
    def anchor(self) -> str:
        """Id of the section on the page."""
        return self._id(self.name)

    @property
    def heading(self) -> str:
        """Id of the section's title on the page."""
        return self._id(f"{self.name}-title")

    def _id(self, name: str) -> str:
        return f"{name}-{self.knob.slug}" if self.knob else name

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
