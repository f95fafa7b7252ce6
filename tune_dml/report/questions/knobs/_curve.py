"""Figure 1 of a knob: measured and published curves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tune_dml.papers.published import PublishedCurve
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import seed_values
from tune_dml.report.analysis.knob import KnobAnalysis, level_key
from tune_dml.report.drawing.colours import arm_colour
from tune_dml.report.drawing.curve import (
    CurveArm,
    CurvePicture,
    Level,
    PublishedLine,
    SeedDot,
    draw_absolute,
    draw_differences,
    thinned,
)
from tune_dml.report.naming import MetricName, floor_name, floors_of
from tune_dml.report.published.comparable import published_at, reasons_against
from tune_dml.report.published.metrics import by_published_metrics
from tune_dml.report.section import Figure, FigureView, Toggle
from tune_dml.space import CurveReference, Value
from tune_dml.stats.intervals.contrasts import against_last, estimate_contrasts, fill_holes
from tune_dml.stats.intervals.simultaneous import Bounds
from tune_dml.stats.intervals.tuned import tuned_levels
from tune_dml.text import is_number, value_text


def curve_figure(analysis: Analysis, knob: KnobAnalysis, finding: str) -> Figure:
    """Draw differences to the baseline, with a toggle for each published curve; other views show values and other metrics."""
    places = [curve.published for curve in _drawable(knob)]
    shown = _picture(analysis, knob, places)
    toggles = tuple(
        Toggle(
            f"printed-{curve.place}",
            f"{'abcdefgh'[curve.place % 8]}: {source.paper}, Table {source.table} ({source.dataset})",
            f"printed{curve.place % 4}",
        )
        for source, curve in zip(places, shown.printed, strict=True)
    )
    absolute = FigureView(
        "values", lambda narrow: draw_absolute(shown, narrow=narrow), _described(analysis.metric, knob),
        "Values as measured." + " Each printed curve has a vertical axis of its own." * bool(shown.printed),
    )  # fmt: skip
    return Figure(
        f"curve-{knob.slug}",
        lambda narrow: draw_differences(shown, narrow=narrow),
        f"{finding} {_described(analysis.metric, knob)}",
        _caption(analysis, knob, shown),
        "difference",
        (absolute, *(_view(*by_metric, places) for by_metric in by_published_metrics(analysis, knob))),
        toggles,
    )


def _view(name: str, analysis: Analysis, knob: KnobAnalysis, places: Sequence[CurveReference]) -> FigureView:
    shown = _picture(analysis, knob, places)
    text = f"{analysis.metric.label} as difference to the baseline. Intervals hold for this metric alone."
    return FigureView(
        name, lambda narrow: draw_differences(shown, narrow=narrow), _described(analysis.metric, knob), text
    )


def _drawable(knob: KnobAnalysis) -> list[PublishedCurve]:
    """Return the published curves that fit our axis: both numeric, or both names."""
    return [
        curve for curve in knob.published
        if curve.points and knob.numeric == all(is_number(point.x) for point in curve.points)
    ]  # fmt: skip


def _picture(analysis: Analysis, knob: KnobAnalysis, places: Sequence[CurveReference]) -> CurvePicture:
    """Return the content of Figure 1 for a knob; `places` are the published curves in the order of their toggles."""
    printed = [_printed(analysis, knob, curve, places) for curve in _drawable(knob)]
    baseline = analysis.baseline if analysis.baseline and analysis.baseline.values else None
    return CurvePicture(
        analysis.metric,
        knob.knob.label,
        knob.axis,
        tuple(_all_values(analysis, knob, printed)),
        knob.numeric and not knob.isolated.problem,
        _arms(analysis, knob),
        tuple(printed),
        baseline.label if baseline else "",
        baseline.mean if baseline else math.nan,
        analysis.margin,
        tuple((floor_name(name), value) for name, value in floors_of(analysis.results).items()),
    )


def _arms(analysis: Analysis, knob: KnobAnalysis) -> tuple[CurveArm, ...]:
    """Return the knob's curve and those of other methods with the same knob."""
    names = [arm.name for arm in analysis.arms]
    others = [other for other in analysis.knobs if knob.arm and other is not knob and other.path == knob.path]
    return tuple(
        CurveArm(
            shown.arm, arm_colour(names.index(shown.arm)) if shown.arm else "mean",
            thinned(_levels(analysis, shown), analysis.seeds),
        )
        for shown in (knob, *others)
    )  # fmt: skip


def _printed(
    analysis: Analysis, knob: KnobAnalysis, curve: PublishedCurve, places: Sequence[CurveReference]
) -> PublishedLine:
    source = curve.published
    place = [replace(other, metric=source.metric) for other in places].index(source)
    selected = {"test": "test", "validation": "validation"}.get(source.selection, "")
    title = f"{selected} {source.metric} [%]".strip() if source.metric.startswith("R@") else source.metric
    points = tuple((point.x, point.y) for point in curve.points)
    comparable = not reasons_against(analysis, knob, curve, published_at(knob, curve))
    return PublishedLine(f"{source.dataset}, Table {source.table}", points, curve.baseline, title, comparable, place)


def _levels(analysis: Analysis, knob: KnobAnalysis) -> tuple[Level, ...]:
    zero = _zero(analysis, knob)
    against = _against(analysis, knob)
    seeds = {trial.key: trial.seed for trial in analysis.results.trials}
    levels = []
    for point in knob.points:
        keys = (
            {seeds[key]: key for key in point.trials}
            if len({seeds[key] for key in point.trials}) == len(point.trials)
            else {}
        )
        dots = tuple(
            SeedDot(seed, number - zero.get(seed, math.nan), number, keys.get(seed, "")) for seed, number in point.seeds
        )
        difference, low, high = against.get(point.label, (math.nan,) * 3)
        lost = Counter({**Counter(status for _, status, _ in point.failures), "stopped": point.stopped})
        levels.append(
            Level(
                point.value, dots, difference, low, high, point.mean, point.half_bar,
                tuple(sorted((+lost).items())),
            )
        )  # fmt: skip
    return tuple(levels)


def _zero(analysis: Analysis, knob: KnobAnalysis) -> dict[int, float]:
    """Return the reference of each seed: the baseline's value, or the mean over the knob's values."""
    if analysis.baseline is not None and analysis.baseline.values:
        return dict(analysis.baseline.values)
    table = knob.isolated.table
    if not table.labels:
        everything = [number for point in knob.points for _, number in point.seeds]
        return dict.fromkeys(analysis.seeds, float(np.mean(everything)) if everything else math.nan)
    return dict(zip(table.seeds, fill_holes(table.values)[0].mean(0).tolist(), strict=True))


def _against(analysis: Analysis, knob: KnobAnalysis) -> dict[str, tuple[float, float, float]]:
    """Return each value's difference to the baseline with its interval, or to the mean with its comparison bar."""
    baseline, nothing = analysis.baseline, math.nan
    if baseline is not None and baseline.values:
        found = _of_its_cells(analysis, knob) or _of_averages(analysis, knob)
        if found is None:
            found = _of_levels(analysis, knob)
        return {
            label: (
                estimate,
                *(analysis.metric.change_ends(low, high) if math.isfinite(high - low) else (nothing,) * 2),
            )
            for label, (estimate, low, high) in found.items()
        }
    means = [point.mean for point in knob.points if math.isfinite(point.mean)]
    middle = float(np.mean(means)) if means else nothing
    return {p.label: (p.mean - middle, p.mean - middle - p.half_bar, p.mean - middle + p.half_bar) for p in knob.points}


def _of_its_cells(analysis: Analysis, knob: KnobAnalysis) -> dict[str, tuple[float, float, float]] | None:
    """Return each cell's difference to the baseline; None unless the knob's table is that of all cells."""
    cells = {tuple(trial.key for trial in cell.trials): cell for cell in analysis.cells if not cell.cell.baseline}
    if analysis.race is not None or len(analysis.knobs) > 1 or cells.keys() != {point.trials for point in knob.points}:
        return None
    rows = {point.label: analysis.against(cells[point.trials]) for point in knob.points}
    return {label: (row.difference, row.low, row.high) for label, row in rows.items() if row is not None}


def _of_averages(analysis: Analysis, knob: KnobAnalysis) -> dict[str, tuple[float, float, float]] | None:
    """Return each value's average over the other knobs against the baseline; None unless the table is an average.

    The values are judged as by `verdicts.sensitivity`: a seed that lost one trial of an average keeps the others. Of several
    baseline cells the best counts (`stats.intervals.tuned`): limits are those of the smallest gain; upper ones share the error.
    """
    table, crossed, sign = knob.isolated.table, knob.isolated.crossed, analysis.sign
    if crossed is None:
        return None
    weights, cells = against_last((*crossed.rows, len(table.labels))), seed_values(analysis.baselines, table.seeds)
    ends = []
    for alpha in (knob.sensitivity.alpha, knob.sensitivity.alpha / len(cells)):
        effects = [
            estimate_contrasts(sign * np.vstack([crossed.values, cell]), weights, alpha, resolution=crossed.resolution)
            for cell in cells
        ]
        ends.append(Bounds(*(np.min([getattr(e, end) for e in effects], 0) for end in ("estimate", "low", "high"))))
    both = Bounds(ends[0].estimate, ends[0].low, ends[1].high).times(sign)
    rows = zip(both.estimate.tolist(), both.low.tolist(), both.high.tolist(), strict=True)
    return dict(zip(table.labels, rows, strict=True))


def _of_levels(analysis: Analysis, knob: KnobAnalysis) -> dict[str, tuple[float, float, float]]:
    """Return each value, at its best setting if tuned, against the best baseline cell."""
    table, tuned, sign = knob.isolated.table, knob.isolated.tuned, analysis.sign
    if tuned is None:
        levels = [sign * row[None] for row in table.values]
    else:
        levels = [tuned.values[np.array(tuned.rows) == level] for level in range(tuned.levels)]
    together = tuned_levels([*levels, sign * seed_values(analysis.baselines, table.seeds)], analysis.resolution)
    bounds = together.against(len(levels), knob.sensitivity.alpha).times(sign)
    rows = zip(bounds.estimate.tolist(), bounds.low.tolist(), bounds.high.tolist(), strict=True)
    return dict(zip(table.labels, rows, strict=False))


def _all_values(analysis: Analysis, knob: KnobAnalysis, printed: Sequence[PublishedLine]) -> list[Value]:
    """Return our values, those of other methods with this knob, and the published ones, each once."""
    values = {level_key(level): level for level in knob.levels}
    elsewhere = [level for other in analysis.knobs if other.path == knob.path for level in other.levels]
    for x in (*elsewhere, *(x for curve in printed for x, _ in curve.points)):
        drawable = not is_number(x) or x > 0 or knob.axis != "log"
        if drawable:
            values.setdefault(level_key(x), x)
    if not all(is_number(value) for value in values.values()):
        return list(values.values())
    return sorted(values.values(), key=lambda value: float(value) if is_number(value) else 0.0)


def _described(metric: MetricName, knob: KnobAnalysis) -> str:
    means = [
        f"{value_text(p.value)}: {metric.number(p.mean) if math.isfinite(p.mean) else 'no result'}" for p in knob.points
    ]
    text = f"Curve of {metric.label} over {knob.knob.label}. Means: {'; '.join(means)}."
    if knob.baseline is not None and math.isfinite(knob.baseline.mean):
        text += f" Baseline {knob.baseline.label}: {metric.number(knob.baseline.mean)}."
    for published in knob.published:
        values = "; ".join(
            f"{p.x:g}: {p.y:g}" if isinstance(p.x, float) else f"{p.x}: {p.y:g}" for p in published.points
        )
        text += f" Published curve of {published.source}: {values}."
    return text


def _caption(analysis: Analysis, knob: KnobAnalysis, shown: CurvePicture) -> str:
    level = f"{100 * (1 - knob.sensitivity.alpha):.3g}%"
    parts = []
    if any(math.isfinite(item.low) for arm in shown.arms for item in arm.levels):
        what = "simultaneous interval" if shown.baseline else "comparison bar: values whose bars do not overlap differ"
        small, large = ("Thin lines", "Thick") if shown.connected else ("Dots", "Diamonds")
        parts.append(f"{small}: one seed each. {large}: mean with {level} {what}.")
    elif knob.isolated.problem:
        parts.append("Each point is one seed of one cell; the other knobs vary.")
    elif any(point.seeds for point in knob.points):
        alone = max(len(point.seeds) for point in knob.points) == 1
        parts.append(f"{'One seed gives' if alone else 'No two values share two seeds, so there is'} no interval.")
    drawn = {dot.seed for arm in shown.arms for level in arm.levels for dot in level.dots}
    if len(drawn) < knob.seeds:
        parts.append(f"{len(drawn)} of {knob.seeds} seeds are drawn; means and intervals are of all.")
    parts.append(f"Shaded: differences below {analysis.metric.amount(analysis.margin)}, the smallest that matters.")
    if knob.isolated.how:
        parts.append(f"Means and seeds are {knob.isolated.how}.")
    if shown.printed:
        parts.append("Dashed: printed curves, each as difference to its own baseline.")
    if shown.floors:
        floors = ", ".join(f"{name} {analysis.metric.number(value)}" for name, value in shown.floors)
        parts.append(f"Dotted, in the view of values: reached without training ({floors}).")
    return " ".join(parts)
