"""Parts that pages about several sweeps share: the head, interval figures and table cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tune_dml.report.analysis import Analysis
from tune_dml.report.drawing.charts import Whisker, draw_whiskers
from tune_dml.report.naming import MetricName
from tune_dml.report.page import PageHead
from tune_dml.report.section import Figure, TableCell, delta_cell
from tune_dml.report.summary import Answer

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class SeveralSweeps:
    """Analyses of several sweeps; the metric is that of the first."""

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
    """Return the head of a page.

    Args:
        names: name, kicker and title of the page.
        answer: sentences and facts of the answer.
        footer: text at the foot of the page.
        file: name of the JSON file with the numbers.
    """
    return PageHead(*names, Answer(answer[0], None, "", answer[1]), footer, f"{file} (every number in full precision)")


def interval_figure(name: str, items: Sequence[Whisker], axis: str, texts: tuple[str, str]) -> Figure:
    """Return a figure of estimates with intervals on one axis through 0; `texts` are its description and caption."""
    return Figure(name, lambda narrow: draw_whiskers(items, axis, narrow=narrow, zero=True), *texts)


def delta_cells(metric: MetricName, *values: float) -> tuple[TableCell, ...]:
    """Return table cells of signed differences."""
    return tuple(delta_cell(metric, value) for value in values)
