"""Why? Figures of the mechanism over training, for each value of the knob: norm mean and variance, mu, and what the loss logs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tune_dml.published import PublishedCurve
from tune_dml.report import figure as drawing
from tune_dml.report.curve import Curve, CurvePoint, same_value
from tune_dml.report.measured import Measured, is_number
from tune_dml.report.naming import MetricName, metric_name
from tune_dml.stats import mean_interval

__all__ = ["Final", "Line", "Mechanism", "Panel", "draw", "extract"]

_FIRST = ("train/norm_mean", "train/norm_variance", "train/mu")
_NOT_A_MECHANISM = {"train/loss", "train/lr", "train/eta", "train/step", "train/seconds"}
_PUBLISHED = {
    "train/norm_mean": ("final_norm_mean", "norm_mean"),
    "train/norm_variance": ("final_norm_var", "norm_var", "train_norm_var"),
}
MOST_PANELS, MOST_LINES = 6, 6


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
    """One figure of the mechanism."""

    metric: MetricName
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Final:
    """What a figure was at the last evaluation, beside the paper's."""

    label: str
    metric: MetricName
    n: int
    mean: float
    sd: float
    published: float
    """NaN where the paper printed none."""


@dataclass(frozen=True)
class Mechanism:
    """Panels over training and the final figures."""

    panels: tuple[Panel, ...]
    finals: tuple[Final, ...]
    source: str
    """Where the published figures come from; empty when there are none."""
    omitted: tuple[str, ...]
    """Values whose lines are left out so that the panels can be read; they are in the table."""


def extract(measured: Measured, curve: Curve) -> Mechanism | None:
    """Means over seeds for each value of the knob and the baseline; None when nothing of the kind was logged."""
    points = [*curve.points, *([curve.baseline] if curve.baseline else [])]
    histories = {
        point.label: [_finite(measured.results.history(key)) for key in point.trials] for point in points
    }
    keys = _keys(row for rows in histories.values() for history in rows for row in history)
    if not keys:
        return None
    shown = _thinned([point.label for point in curve.points])
    baseline = [curve.baseline.label] if curve.baseline else []
    panels = [Panel(metric_name(key), _lines(histories, key, [*shown, *baseline])) for key in keys]
    finals = [_final(point, histories[point.label], key, curve.published) for key in keys for point in points]
    used = next((found.source for found in curve.published if _printed(found) is not None), "")
    return Mechanism(
        tuple(panel for panel in panels if panel.lines),
        tuple(final for final in finals if final.n),
        used if any(math.isfinite(final.published) for final in finals) else "",
        tuple(point.label for point in curve.points if point.label not in shown),
    )


def _finite(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    return [
        {key: float(value) for key, value in row.items() if is_number(value) and math.isfinite(value)}
        for row in history
    ]


def _keys(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """The logged figures of a mechanism, the known ones first."""
    found = {key for row in rows for key in row if key.startswith("train/")} - _NOT_A_MECHANISM
    return [*(key for key in _FIRST if key in found), *sorted(found - set(_FIRST))][:MOST_PANELS]


def _thinned(labels: list[str]) -> list[str]:
    """Ends and evenly spaced values between, when there are too many to tell apart."""
    if len(labels) <= MOST_LINES:
        return labels
    return [labels[i] for i in np.linspace(0, len(labels) - 1, MOST_LINES).round().astype(int)]


def _lines(
    histories: Mapping[str, list[list[dict[str, float]]]], key: str, labels: list[str]
) -> tuple[Line, ...]:
    lines = []
    for label in labels:
        by_step: dict[int, list[float]] = {}
        for row in (row for history in histories[label] for row in history if key in row):
            by_step.setdefault(int(row["step"]), []).append(row[key])
        if by_step:
            steps = tuple(sorted(by_step))
            columns = [by_step[step] for step in steps]
            mean = tuple(float(np.mean(column)) for column in columns)
            lines.append(Line(label, steps, mean, tuple(map(min, columns)), tuple(map(max, columns))))
    return tuple(lines)


def _final(
    point: CurvePoint,
    histories: list[list[dict[str, float]]],
    key: str,
    published: tuple[PublishedCurve, ...],
) -> Final:
    last = [history[-1][key] for history in histories if history and key in history[-1]]
    found = mean_interval(last)
    printed = next(
        (value for curve in published if (value := _printed_at(curve, key, point)) is not None), None
    )
    return Final(
        point.label, metric_name(key), found.n, found.mean, found.sd, math.nan if printed is None else printed
    )


def _printed(curve: PublishedCurve) -> str | None:
    return next((name for names in _PUBLISHED.values() for name in names if name in curve.others), None)


def _printed_at(curve: PublishedCurve, key: str, point: CurvePoint) -> float | None:
    """The paper's figure at a value of the knob; of its baseline at ours, which has no value."""
    for name in _PUBLISHED.get(key, ()):
        if point.value is None and name in curve.baseline_others:
            return curve.baseline_others[name]
        for x, y in curve.values(name).items():
            if same_value(point.value, x):
                return y
    return None


def draw(found: Mechanism, *, narrow: bool, name: str) -> str:
    """A panel for each figure: mean over seeds as a line, range over seeds as a band."""
    count = len(found.panels)
    columns = 1 if narrow else min(count, 3) if count != 4 else 2
    with drawing.figure(narrow=narrow, height=2.6 * -(-count // columns) + 0.6) as made:
        axes = drawing.panels(made, count, narrow=narrow, columns=columns)
        for ax, panel in zip(axes, found.panels, strict=True):
            for index, line in enumerate(panel.lines):
                colour, style, marker = drawing.CYCLE[index % len(drawing.CYCLE)]
                ax.fill_between(line.steps, line.low, line.high, color=colour, alpha=0.13, lw=0)
                ax.plot(
                    line.steps, line.mean, color=colour, ls=style, marker=marker, ms=3.5, lw=1.4,
                    markevery=max(1, len(line.steps) // 8), label=line.label,
                )  # fmt: skip
            ax.set_title(panel.metric.name)
            ax.set_xlabel("training step")
            ax.locator_params(axis="x", nbins=5)
        handles, labels = axes[0].get_legend_handles_labels() if axes else ([], [])
        made.legend(handles, labels, loc="outside lower center", ncols=2 if narrow else 4, handlelength=2.6)
        return drawing.svg(made, name)
