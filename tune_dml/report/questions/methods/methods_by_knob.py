"""What else does a shared knob change? Draw one line per method.

The figures are like the DRO paper's Figure 1 (result against the ratio of positive to negative pairs) and Figure 3
(seconds per iteration against the batch size). Their numbers come from the trials of the sweep.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from tune_dml.planning.grouping import grouped
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import CurvePoint, KnobAnalysis
from tune_dml.report.analysis.traces import Line, Rows
from tune_dml.report.drawing.charts import draw_lines
from tune_dml.report.drawing.colours import arm_colour
from tune_dml.report.naming import slug, symbol_of
from tune_dml.report.questions import question
from tune_dml.report.section import Figure, FigureView, Section
from tune_dml.text import value_text

_BATCH_KNOBS = {"batch.batch_size", "batch.instances_per_class"}
"""Knobs that change the share of positive pairs in a batch."""


_Curve = list[tuple[float, list[float]]]
"""A quantity of one method: the value of the knob, ascending, and the numbers of the trials at that value."""


@question(order=155, reads_traces=True)
def methods_by_knob(analysis: Analysis) -> Section | None:
    """Compare methods that share a numeric knob; None if no two methods do."""
    numeric = [knob for knob in analysis.knobs if knob.numeric and len(knob.levels) > 1]
    by_path = grouped(numeric, lambda knob: knob.path)
    figures = tuple(figure for knobs in by_path.values() if len(knobs) > 1 and (figure := _figure(analysis, knobs)))
    if not figures:
        return None
    symbols = " and ".join(dict.fromkeys(symbol_of(knobs[0].knob) for knobs in by_path.values() if len(knobs) > 1))
    do = "do" if " and " in symbols else "does"
    return Section("methods-by-knob", f"What else {do} {symbols} change?", f"Methods by {symbols}", figures)


def _figure(analysis: Analysis, knobs: Sequence[KnobAnalysis]) -> Figure | None:
    symbol, path, views = symbol_of(knobs[0].knob), knobs[0].path, []
    if path in _BATCH_KNOBS:
        results = _curves(knobs, lambda point: [number for _, number in point.seeds])
        views += _by_ratio(analysis, results, _curves(knobs, _trial_medians(analysis, knobs, _pair_ratios)))
    seconds = _curves(knobs, _trial_medians(analysis, knobs, _seconds_per_step))
    if len(seconds) > 1:
        views.append(_view(analysis, seconds, (symbol, "seconds a step"), "time of a step", _fastest(symbol, seconds)))
    if not views:
        return None
    return Figure.of(f"methods-by-{slug(path)}", views, "Means over seeds (lines) and their range (bands).")


def _curves(knobs: Sequence[KnobAnalysis], numbers_of: Callable[[CurvePoint], list[float]]) -> dict[str, _Curve]:
    """Return the curve of each method that has the quantity at two or more values."""
    curves = {
        knob.arm: sorted((float(p.value or 0), numbers) for p in knob.points if (numbers := numbers_of(p)))
        for knob in knobs
    }
    return {arm: curve for arm, curve in curves.items() if len(curve) > 1}


def _trial_medians(
    analysis: Analysis, knobs: Sequence[KnobAnalysis], figures: Callable[[Rows], list[float]]
) -> Callable[[CurvePoint], list[float]]:
    """Return a function that gives the median quantity of each trial behind a point."""
    trials: dict[str, Rows] = {}
    for knob in knobs:
        for point in knob.points:
            trials |= analysis.histories[knob.key].by_label[point.label]
    return lambda point: [float(np.median(numbers)) for key in point.trials if (numbers := figures(trials[key]))]


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


def _by_ratio(analysis: Analysis, results: dict[str, _Curve], ratios: dict[str, _Curve]) -> list[FigureView]:
    curves = {}
    for arm, curve in results.items():
        ratio_at = {value: float(np.mean(numbers)) for value, numbers in ratios.get(arm, [])}
        points = sorted((ratio_at[value], numbers) for value, numbers in curve if value in ratio_at)
        if len(points) > 1:
            curves[arm] = points
    axes = ("positive to negative pairs in the batches", analysis.metric.axis)
    sentence = "The ratio is measured in logged batches."
    return [_view(analysis, curves, axes, "by ratio of pairs", sentence)] if curves else []


def _view(
    analysis: Analysis, curves: dict[str, _Curve], axes: tuple[str, str], title: str, sentence: str
) -> FigureView:
    arms, (x_title, y_title) = [arm.name for arm in analysis.arms], axes
    lines = [Line.of(arm, curve, arm_colour(arms.index(arm))) for arm, curve in curves.items()]
    described = f"{sentence} {y_title} against {x_title}, a line for each of {', '.join(curves)}."
    return FigureView(title, lambda narrow: draw_lines(lines, y_title, x_title, narrow=narrow), described, sentence)


def _fastest(symbol: str, curves: dict[str, _Curve]) -> str:
    times = [(value, float(np.mean(numbers)), arm) for arm, curve in curves.items() for value, numbers in curve]
    at_values = grouped(sorted(times), lambda time: time[0])
    last = max((value for value, at_value in at_values.items() if len(at_value) > 1), default=None)
    if last is None:
        return "No two methods were timed at the same value."
    (_, shortest, fastest), *_, (_, longest, slowest) = at_values[last]
    return (
        f"At {symbol} {value_text(last)} {fastest} is fastest ({shortest:.3g} s per step) and {slowest} slowest "
        f"({longest:.3g} s), without evaluation."
    )
