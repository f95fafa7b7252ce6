"""What trials logged while they trained, value by value of a knob: read once for every question about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tune_dml.report import figure as drawing
from tune_dml.report.measured import Measured
from tune_dml.report.naming import MetricName, metric_name
from tune_dml.report.questions.curve import Curve
from tune_dml.text import is_number

MOST_LINES = 6


@dataclass(frozen=True)
class Line:
    """One value of the knob over training."""

    label: str
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    """Smallest over the seeds."""
    high: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """One figure over training."""

    metric: MetricName
    lines: tuple[Line, ...]


@dataclass(frozen=True, eq=False)
class Histories:
    """The rows of every trial behind a curve, its baseline included."""

    by_label: Mapping[str, list[list[dict[str, float]]]]
    """Value of the knob -> its trials' rows, in order of step; numbers that are not finite are left out."""
    shown: tuple[str, ...]
    """The values that are drawn, the baseline last."""
    omitted: tuple[str, ...]
    """Values whose lines are left out so that panels can be read."""

    @cached_property
    def keys(self) -> frozenset[str]:
        """Every figure that some row has."""
        return frozenset(key for trials in self.by_label.values() for rows in trials for row in rows for key in row)

    def panel(self, key: str) -> Panel | None:
        """A figure over training, a line for each value that is drawn; None where nobody logged it."""
        lines = [line for label in self.shown if (line := self.line(label, key)) is not None]
        return Panel(metric_name(key), tuple(lines)) if lines else None

    def line(self, label: str, key: str) -> Line | None:
        """A figure over training, for one value: mean and range over its trials."""
        by_step: dict[int, list[float]] = {}
        for row in (row for rows in self.by_label[label] for row in rows if key in row):
            by_step.setdefault(int(row["step"]), []).append(row[key])
        if not by_step:
            return None
        steps = tuple(sorted(by_step))
        columns = [by_step[step] for step in steps]
        mean = tuple(float(np.mean(column)) for column in columns)
        return Line(label, steps, mean, tuple(map(min, columns)), tuple(map(max, columns)))


def read(measured: Measured, curve: Curve) -> Histories:
    """The rows of the trials of each value and of the baseline."""
    points = [*curve.points, *([curve.baseline] if curve.baseline else [])]
    labels = [point.label for point in curve.points]
    shown = _thinned(labels)
    return Histories(
        {point.label: [_finite(measured.results.history(key)) for key in point.trials] for point in points},
        (*shown, *(point.label for point in points[len(labels) :])),
        tuple(label for label in labels if label not in shown),
    )


def _finite(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    return [
        {key: float(value) for key, value in row.items() if is_number(value) and math.isfinite(value)}
        for row in history
    ]


def _thinned(labels: list[str]) -> list[str]:
    """Ends and evenly spaced values between, when there are too many to tell apart."""
    if len(labels) <= MOST_LINES:
        return labels
    return [labels[i] for i in np.linspace(0, len(labels) - 1, MOST_LINES).round().astype(int)]


def draw(
    panels: Sequence[Panel], *, narrow: bool, name: str, with_set: bool = False, log_beyond: float = math.inf
) -> str:
    """A panel for each figure: mean over seeds as a line, range over seeds as a band.

    Args:
        panels: what to draw.
        narrow: below one another.
        name: begins the ids of the drawing.
        with_set: titles say of which pictures a figure is.
        log_beyond: a panel of positive means whose largest is so many times the least has a logarithmic axis.
    """
    from matplotlib.ticker import FuncFormatter, NullFormatter

    count = len(panels)
    columns = 1 if narrow else min(count, 3) if count != 4 else 2
    with drawing.figure(narrow=narrow, height=2.6 * -(-count // columns) + 0.6) as made:
        axes = drawing.panels(made, count, narrow=narrow, columns=columns)
        # A value keeps its colour from panel to panel, also where one of them lacks it.
        labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
        handles = {}
        for ax, panel in zip(axes, panels, strict=True):
            for line in panel.lines:
                colour, style, marker = drawing.CYCLE[labels.index(line.label) % len(drawing.CYCLE)]
                ax.fill_between(line.steps, line.low, line.high, color=colour, alpha=0.13, lw=0)
                (handles[line.label],) = ax.plot(
                    line.steps, line.mean, color=colour, ls=style, marker=marker, ms=3.5, lw=1.4,
                    markevery=max(1, len(line.steps) // 8),
                )  # fmt: skip
            ax.set_title(panel.metric.axis if with_set else panel.metric.name)
            ax.set_xlabel("training step")
            ax.locator_params(axis="x", nbins=5)
            means = [mean for line in panel.lines for mean in line.mean]
            if min(means) > 0 and max(means) > log_beyond * min(means):
                ax.set_yscale("log")
                ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                ax.yaxis.set_minor_formatter(NullFormatter())
        made.legend(
            [handles[label] for label in labels], labels,
            loc="outside lower center", ncols=2 if narrow else 4, handlelength=2.6,
        )  # fmt: skip
        return drawing.svg(made, name)
