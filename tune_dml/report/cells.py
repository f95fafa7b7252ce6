"""Cells of tables: texts, counts, values of a metric, and differences."""

import math
from dataclasses import dataclass
from typing import Any

from tune_dml.report.naming import MetricName
from tune_dml.space import Value
from tune_dml.text import is_number, value_text


@dataclass(frozen=True)
class TableCell:
    """One cell of a table: the text that is shown, and the full value for CSV and sorting."""

    text: str
    value: Value = None  # full value of a number; None for text
    links: tuple[tuple[str, str], ...] = ()
    """(text, URL) pairs that the page shows instead of the text; `#...` is an anchor on the page."""
    anchor: str = ""  # id of the row; only the first cell of a row has one
    mark: str = ""

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


def metric_cells(metric: MetricName, *values: float) -> tuple[TableCell, ...]:
    """Return cells with a metric's values."""
    return tuple(metric_cell(metric, value) for value in values)


def delta_cells(metric: MetricName, *values: float) -> tuple[TableCell, ...]:
    """Return cells with signed differences."""
    return tuple(TableCell(metric.signed(value), value if math.isfinite(value) else None) for value in values)


def interval_cells(metric: MetricName, difference: float, low: float, high: float) -> tuple[TableCell, ...]:
    """Return cells with a difference and the ends of its interval, clipped to the metric's range."""
    return delta_cells(metric, difference, *metric.change_ends(low, high))


def as_cell(field: Any) -> TableCell:
    """Return a cell with a text, a count or a knob's value."""
    if isinstance(field, TableCell):
        return field
    if isinstance(field, float) and not math.isfinite(field):
        return TableCell("-")
    return TableCell(value_text(field), field if is_number(field) else None)
