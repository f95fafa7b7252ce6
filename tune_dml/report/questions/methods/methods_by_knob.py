"""What else does a shared knob change? Draw one line per method.

The figures are like the DRO paper's Figure 1 (result against the ratio of positive to negative pairs) and Figure 3
(seconds per iteration against the batch size). Their numbers come from the trials of the sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import CurvePoint, KnobAnalysis
from tune_dml.report.analysis.traces import Rows
from tune_dml.report.drawing.charts import Series, draw_lines
from tune_dml.report.drawing.colours import arm_colour
from tune_dml.report.naming import slug, symbol_of
from tune_dml.report.questions import question
from tune_dml.report.section import Figure, FigureView, Section
from tune_dml.text import value_text

_BATCH_KNOBS = {"batch.batch_size", "batch.instances_per_class"}
"""Knobs that change the share of positive pairs in a batch."""


@dataclass(frozen=True)
class _MethodSeries:
    """One quantity of one method at each value of the knob."""

    arm: str
    values: tuple[float, ...]
    """Values of the knob, ascending."""
    numbers: tuple[tuple[float, ...], ...]
    """The quantity in each trial at each value."""

    @property
    def means(self) -> list[float]:
        """Means over the trials at each value."""
        return [float(np.mean(numbers)) for numbers in self.numbers]


@question(order=155, reads_traces=True)
def methods_by_knob(analysis: Analysis) -> Section | None:
    """Compare methods that share a numeric knob; None if no two methods do."""
    by_path: dict[str, list[KnobAnalysis]] = {}
    for knob in analysis.knobs:
        if knob.numeric and len(knob.levels) > 1:
            by_path.setdefault(knob.path, []).append(knob)
    figures = tuple(figure for knobs in by_path.values() if len(knobs) > 1 and (figure := _figure(analysis, knobs)))
    if not figures:
        return None
    symbols = " and ".join(dict.fromkeys(symbol_of(knobs[0].knob) for knobs in by_path.values() if len(knobs) > 1))
    return Section("methods-by-knob", f"What else does {symbols} change?", f"Methods by {symbols}", figures)


def _figure(analysis: Analysis, knobs: Sequence[KnobAnalysis]) -> Figure | None:
    symbol, path, views = symbol_of(knobs[0].knob), knobs[0].path, []
    if path in _BATCH_KNOBS:
        results = _series(knobs, lambda point: [number for _, number in point.seeds])
        views += _by_ratio(analysis, results, _series(knobs, _trial_medians(analysis, knobs, _pair_ratios)))
    seconds = _series(knobs, _trial_medians(analysis, knobs, _seconds_per_step))
    if len(seconds) > 1:
        views.append(_view(analysis, seconds, (symbol, "seconds a step"), "time of a step", _fastest(symbol, seconds)))
    if not views:
        return None
    return Figure.of(f"methods-by-{slug(path)}", views, "Means over seeds (lines) and their range (bands).")


def _series(knobs: Sequence[KnobAnalysis], numbers_of: Callable[[CurvePoint], Sequence[float]]) -> list[_MethodSeries]:
    """Return a series for each method that has the quantity at two or more values."""
    series = []
    for knob in knobs:
        points = sorted((p for p in knob.points if numbers_of(p)), key=lambda point: float(point.value or 0))
        if len(points) > 1:
            values = tuple(float(point.value or 0) for point in points)
            series.append(_MethodSeries(knob.arm, values, tuple(tuple(numbers_of(point)) for point in points)))
    return series


def _trial_medians(
    analysis: Analysis, knobs: Sequence[KnobAnalysis], figures: Callable[[Rows], list[float]]
) -> Callable[[CurvePoint], list[float]]:
    """Return a function that gives the median quantity of each trial behind a point."""
    trials = {key: rows for knob in knobs for key, rows in _rows(analysis, knob)}
    return lambda point: [float(np.median(numbers)) for key in point.trials if (numbers := figures(trials[key]))]


def _rows(analysis: Analysis, knob: KnobAnalysis) -> Iterator[tuple[str, Rows]]:
    by_label = analysis.histories[knob.key].by_label
    for point in knob.points:
        yield from zip(point.trials, by_label[point.label], strict=True)


def _seconds_per_step(rows: Rows) -> list[float]:
    """Return the seconds per step between consecutive training rows, without evaluations."""
    return [
        (row["time/seconds"] - before["time/seconds"]) / (row["step"] - before["step"])
        for before, row in pairwise(rows)
        if "train/loss" in row and "time/seconds" in row and "time/seconds" in before and row["step"] > before["step"]
    ]


def _pair_ratios(rows: Rows) -> list[float]:
    shares = [row["train/positive_pairs"] for row in rows if "train/positive_pairs" in row]
    return [share / (1 - share) for share in shares if share < 1]


def _by_ratio(
    analysis: Analysis, results: Sequence[_MethodSeries], ratios: Sequence[_MethodSeries]
) -> list[FigureView]:
    ratios_by_arm = {item.arm: dict(zip(item.values, item.means, strict=True)) for item in ratios}
    series = []
    for item in results:
        ratio_at = ratios_by_arm.get(item.arm, {})
        rows = zip(item.values, item.numbers, strict=True)
        points = sorted((ratio_at[value], numbers) for value, numbers in rows if value in ratio_at)
        if len(points) > 1:
            series.append(_MethodSeries(item.arm, tuple(x for x, _ in points), tuple(numbers for _, numbers in points)))
    axes = ("positive to negative pairs in the batches", analysis.metric.axis)
    sentence = "The ratio is measured in logged batches."
    return [_view(analysis, series, axes, "by ratio of pairs", sentence)] if series else []


def _view(
    analysis: Analysis, answers: Sequence[_MethodSeries], axes: tuple[str, str], title: str, sentence: str
) -> FigureView:
    names, (x_title, y_title) = [arm.name for arm in analysis.arms], axes
    series = [
        Series(
            answer.arm, arm_colour(names.index(answer.arm)), answer.values, answer.means,
            [min(numbers) for numbers in answer.numbers], [max(numbers) for numbers in answer.numbers],
        )
        for answer in answers
    ]  # fmt: skip
    described = f"{sentence} {y_title} against {x_title}, a line for each of {', '.join(a.arm for a in answers)}."
    return FigureView(title, lambda narrow: draw_lines(series, y_title, x_title, narrow=narrow), described, sentence)


def _fastest(symbol: str, answers: Sequence[_MethodSeries]) -> str:
    last = max(answer.values[-1] for answer in answers)
    at_last = sorted((answer.means[-1], answer.arm) for answer in answers if answer.values[-1] == last)
    (shortest, fastest), (longest, slowest) = at_last[0], at_last[-1]
    return (
        f"At {symbol} {value_text(last)} {fastest} is fastest ({shortest:.3g} s per step) and {slowest} slowest "
        f"({longest:.3g} s), without evaluation."
    )
