"""The parts that pages about several sweeps share: interval figures, cells, and JSON without infinities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from tune_dml.report.analysis import Analysis
from tune_dml.report.drawing.charts import Whisker, whiskers
from tune_dml.report.naming import MetricName
from tune_dml.report.page import PageHead
from tune_dml.report.section import Figure, TableCell, delta_cell
from tune_dml.report.summary import Answer

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class SeveralSweeps:
    """Analyses of several sweeps; the first gives the metric."""

    sweeps: tuple[Analysis, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sweeps."""
        return tuple(sweep.results.name for sweep in self.sweeps)

    @property
    def metric(self) -> MetricName:
        """Metric of the first sweep."""
        return self.sweeps[0].metric


def sweeps_head(names: tuple[str, str, str], answer: tuple[tuple[str, ...], Facts], footer: str, file: str) -> PageHead:
    """Return the head of a page: name, kicker and title, sentences and facts, footer, file of the numbers."""
    return PageHead(*names, Answer(answer[0], None, "", answer[1]), footer, f"{file} (every number in full precision)")


def interval_figure(name: str, items: Sequence[Whisker], axis: str, texts: tuple[str, str]) -> Figure:
    """Return a figure of estimates with intervals on one axis through 0; `texts` are the description and the caption."""
    return Figure(name, lambda narrow: whiskers(items, axis, narrow=narrow, zero=True), *texts)


def delta_cells(metric: MetricName, *values: float) -> tuple[TableCell, ...]:
    """Return table cells of signed differences."""
    return tuple(delta_cell(metric, value) for value in values)


def with_unit(metric: MetricName, text: str) -> str:
    """Return a number's text followed by the metric's unit, if it has one."""
    return f"{text} {metric.unit}".strip()


def json_value(value: Any) -> Any:
    """Return a value as JSON stores it: dataclasses as objects, null for numbers that are not finite."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
