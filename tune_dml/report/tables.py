"""The report's tables: each number once, as text for people and as a value for machines. HTML, CSV and LaTeX write these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tune_dml.report.naming import MetricName, metric_name
from tune_dml.space import Value
from tune_dml.text import is_number, value_text


@dataclass(frozen=True)
class Entry:
    """One field of a table."""

    text: str
    value: Value = None
    """The full number behind the text; None for words."""
    links: tuple[tuple[str, str], ...] = ()
    """(text, anchor) pairs shown instead of the text."""
    anchor: str = ""
    """The id of the row, on its first field."""
    mark: str = ""
    """A class for the page: `better`, `diverged` ..."""

    @property
    def numeric(self) -> bool:
        """Whether it is set flush right."""
        return is_number(self.value)


@dataclass(frozen=True)
class Table:
    """Columns and rows with a caption."""

    name: str
    """File name and anchor."""
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]

    @cached_property
    def numeric(self) -> tuple[bool, ...]:
        """For each column, whether it holds numbers."""
        return tuple(any(row[index].numeric for row in self.rows) for index in range(len(self.columns)))

    def without(self, columns: Sequence[str]) -> Table:
        """The table less some columns."""
        kept = [index for index, column in enumerate(self.columns) if column not in columns]
        rows = tuple(tuple(row[index] for index in kept) for row in self.rows)
        return Table(self.name, self.caption, tuple(self.columns[index] for index in kept), rows)


def words(text: str, mark: str = "", anchor: str = "") -> Entry:
    """A field of words."""
    return Entry(text, None, mark=mark, anchor=anchor)


def number(metric: MetricName | str, value: float) -> Entry:
    """A metric's value; a dash, and an empty value, where there is none."""
    name = metric_name(metric) if isinstance(metric, str) else metric
    return Entry(name.number(value), value if math.isfinite(value) else None)


def signed(metric: MetricName, value: float) -> Entry:
    """A difference."""
    return Entry(metric.signed(value), value if math.isfinite(value) else None)


def entry(value: Value) -> Entry:
    """A plain value: a count, a knob's value, a name."""
    if isinstance(value, float) and not math.isfinite(value):
        return Entry("-")
    return Entry(value_text(value), value if is_number(value) else None)
