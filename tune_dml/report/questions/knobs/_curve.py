"""Figure 1 of a knob: measured and published curves."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tune_dml.papers.published import PublishedCurve
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import seed_values
from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.drawing.colours import arm_colour
from tune_dml.report.drawing.curve import (
    CurveArm,
    CurvePicture,
    Level,
    PublishedLine,
    SeedDot,
    draw_absolute,
    draw_differences,
    thin_dots,
)
from tune_dml.report.naming import MetricName, confidence, floors_of
from tune_dml.report.published.comparable import by_published_metrics, published_at, reasons_against
from tune_dml.report.section import Figure, FigureView
from tune_dml.space import CurveReference, Value
from tune_dml.stats.intervals.contrasts import against_last, estimate_contrasts, fill_holes
from tune_dml.stats.intervals.simultaneous import Bounds
from tune_dml.stats.intervals.tuned import tuned_levels
from tune_dml.text import is_number, level_key, value_text


def curve_figure(analysis: Analysis, knob: KnobAnalysis, finding: str) -> Figure:
    """Return Figure 1 of a knob: differences to the baseline, with a toggle for each published curve.

    Further views show values, and other metrics that were published and logged.
    """
    sources = [curve.published for curve in _drawable_curves(knob)]
    picture = _picture(analysis, knob, sources)
    toggles = tuple(
        f"{'abcdefgh'[index % 8]}: {source.paper}, Table {source.table} ({_short_name(source, sources)})"
        for index, source in enumerate(sources)
    )
    absolute = FigureView(
        "values", lambda narrow: draw_absolute(picture, narrow=narrow), _description(analysis.metric, knob),
        "Values as measured." + " Each printed curve has a vertical axis of its own." * bool(picture.printed),
    )  # fmt: skip
    return Figure(
        f"curve-{knob.slug}",
        lambda narrow: draw_differences(picture, narrow=narrow),
        f"{finding} {_description(analysis.metric, knob)}",
        _caption(analysis, knob, picture),
        "difference",
        (absolute, *(_view(*by_metric, sources) for by_metric in by_published_metrics(analysis, knob))),
        toggles,
    )


def _view(name: str, analysis: Analysis, knob: KnobAnalysis, sources: Sequence[CurveReference]) -> FigureView:
    picture = _picture(analysis, knob, sources)
    text = f"{analysis.metric.label} as difference to the baseline. Intervals hold for this metric alone."
    description = _description(analysis.metric, knob)
    return FigureView(name, lambda narrow: draw_differences(picture, narrow=narrow), description, text)


def _drawable_curves(knob: KnobAnalysis) -> list[PublishedCurve]:
    """Return the published curves that can be drawn on our axis: both have numbers, or both have names."""
    curves = [curve for curve in knob.published if curve.points]
    return [curve for curve in curves if knob.numeric == all(is_number(point.x) for point in curve.points)]


def _picture(analysis: Analysis, knob: KnobAnalysis, sources: Sequence[CurveReference]) -> CurvePicture:
    """Return the content of Figure 1 for a knob; `sources` are the published curves in the order of their toggles."""
    printed = [_published_line(analysis, knob, curve, sources) for curve in _drawable_curves(knob)]
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
        tuple(floors_of(analysis.results).items()),
    )


def _arms(analysis: Analysis, knob: KnobAnalysis) -> tuple[CurveArm, ...]:
    """Return the knob's curve, and the curves of other methods with the same knob."""
    names = [arm.name for arm in analysis.arms]
    other_knobs = [item for item in analysis.knobs if knob.arm and item is not knob and item.path == knob.path]
    return tuple(
        CurveArm(
            item.arm, arm_colour(names.index(item.arm)) if item.arm else "mean",
            thin_dots(_levels(analysis, item), analysis.seeds),
        )
        for item in (knob, *other_knobs)
    )  # fmt: skip


def _published_line(
    analysis: Analysis, knob: KnobAnalysis, curve: PublishedCurve, sources: Sequence[CurveReference]
) -> PublishedLine:
    source = curve.published
    by_metric = [replace(item, metric=source.metric) for item in sources]  # a view of another metric has its name
    index = (sources if source in sources else by_metric).index(source)
    selected = {"test": "test", "validation": "validation"}.get(source.selection, "")
    title = f"{selected} {source.metric} [%]".strip() if source.metric.startswith("R@") else source.metric
    points = tuple((point.x, point.y) for point in curve.points)
    comparable = not reasons_against(analysis, knob, curve, published_at(knob, curve))
    name = _short_name(source, sources)
    name += f", Table {source.table}" * (name == source.dataset)
    return PublishedLine(name, points, curve.baseline, title, comparable, index)


def _short_name(source: CurveReference, sources: Sequence[CurveReference]) -> str:
    """Return the data set; if other curves are of the same table and data set, with the methods or the metric."""
    place = (source.paper, source.table, source.dataset)
    same = [item for item in sources if (item.paper, item.table, item.dataset) == place]
    methods, metric = len({item.methods for item in same}) > 1, len({item.metric for item in same}) > 1
    parts = (source.dataset, ", ".join(source.methods) * methods, source.metric * metric)
    return " ".join(filter(None, parts))


def _levels(analysis: Analysis, knob: KnobAnalysis) -> tuple[Level, ...]:
    references = _references(analysis, knob)
    differences = _differences(analysis, knob)
    seeds = {trial.key: trial.seed for trial in analysis.results.trials}
    levels = []
    for point in knob.points:
        keys = {seeds[key]: key for key in point.trials}
        if len(keys) < len(point.trials):  # several trials of a seed are averaged
            keys = {}
        dots = tuple(
            SeedDot(seed, number - references.get(seed, math.nan), number, keys.get(seed, ""))
            for seed, number in point.seeds
        )
        ends = differences.get(point.label, (math.nan, math.nan, math.nan))
        lost = Counter([*(status for _, status, _ in point.failures), *["stopped"] * point.stopped])
        levels.append(Level(point.value, dots, *ends, point.mean, point.half_bar, tuple(sorted(lost.items()))))
    return tuple(levels)


def _references(analysis: Analysis, knob: KnobAnalysis) -> dict[int, float]:
    """Return the reference of each seed: the baseline's value, or the mean over the knob's values."""
    if analysis.baseline is not None and analysis.baselines:
        return dict(analysis.baseline.values)
    table = knob.isolated.table
    if not table.labels:
        numbers = [number for point in knob.points for _, number in point.seeds]
        return dict.fromkeys(analysis.seeds, float(np.mean(numbers)) if numbers else math.nan)
    return dict(zip(table.seeds, fill_holes(table.values)[0].mean(0).tolist(), strict=True))


def _differences(analysis: Analysis, knob: KnobAnalysis) -> dict[str, tuple[float, float, float]]:
    """Return (difference, low, high) of each value: to the baseline with its interval, or to the mean with its bar."""
    if analysis.baselines:
        rows = _differences_of_cells(analysis, knob) or _differences_of_averages(analysis, knob)
        if rows is None:
            rows = _differences_of_levels(analysis, knob)
        for label, (estimate, low, high) in rows.items():
            ends = analysis.metric.change_ends(low, high) if math.isfinite(high - low) else (math.nan, math.nan)
            rows[label] = (estimate, *ends)
        return rows
    means = [point.mean for point in knob.points if math.isfinite(point.mean)]
    middle = float(np.mean(means)) if means else math.nan
    return {p.label: (p.mean - middle, p.mean - middle - p.half_bar, p.mean - middle + p.half_bar) for p in knob.points}


def _differences_of_cells(analysis: Analysis, knob: KnobAnalysis) -> dict[str, tuple[float, float, float]] | None:
    """Return each cell's difference to the baseline; None unless every cell is the only one of a value."""
    cells = {tuple(trial.key for trial in cell.trials): cell for cell in analysis.cells if not cell.cell.baseline}
    if analysis.race is not None or len(analysis.knobs) > 1 or cells.keys() != {point.trials for point in knob.points}:
        return None
    rows = {point.label: analysis.against(cells[point.trials]) for point in knob.points}
    return {label: (row.difference, row.low, row.high) for label, row in rows.items() if row is not None}


def _differences_of_averages(analysis: Analysis, knob: KnobAnalysis) -> dict[str, tuple[float, float, float]] | None:
    """Return the difference to the baseline of each value's average over the other knobs; None for other tables.

    As in `verdicts.sensitivity`, a seed that lost one trial of an average keeps its other trials. With several baseline
    cells, values are compared with the best one (`stats.intervals.tuned`): the limits are those of the smallest gain,
    and the upper limits share the error.
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
    bounds = Bounds(ends[0].estimate, ends[0].low, ends[1].high).times(sign)
    return dict(zip(table.labels, bounds.rows(), strict=False))


def _differences_of_levels(analysis: Analysis, knob: KnobAnalysis) -> dict[str, tuple[float, float, float]]:
    """Return the difference of each value, at its best setting if tuned, to the best baseline cell."""
    table, tuned, sign = knob.isolated.table, knob.isolated.tuned, analysis.sign
    if tuned is None:
        levels = [sign * row[None] for row in table.values]
    else:
        levels = [tuned.values[np.array(tuned.rows) == level] for level in range(tuned.levels)]
    compared = tuned_levels([*levels, sign * seed_values(analysis.baselines, table.seeds)], analysis.resolution)
    bounds = compared.against(len(levels), knob.sensitivity.alpha).times(sign)
    return dict(zip(table.labels, bounds.rows(), strict=False))


def _all_values(analysis: Analysis, knob: KnobAnalysis, printed: Sequence[PublishedLine]) -> list[Value]:
    """Return our values, those of other methods with this knob, and the published ones, each once."""
    values = {level_key(level): level for level in knob.levels}
    of_methods = [level for item in analysis.knobs if item.path == knob.path for level in item.levels]
    for x in (*of_methods, *(x for curve in printed for x, _ in curve.points)):
        if not is_number(x) or x > 0 or knob.axis != "log":
            values.setdefault(level_key(x), x)
    if not all(is_number(value) for value in values.values()):
        return list(values.values())
    return sorted(values.values(), key=lambda value: float(value) if is_number(value) else 0.0)


def _description(metric: MetricName, knob: KnobAnalysis) -> str:
    numbers = [(p.value, metric.number(p.mean) if math.isfinite(p.mean) else "no result") for p in knob.points]
    means = "; ".join(f"{value_text(value)}: {number}" for value, number in numbers)
    text = f"Curve of {metric.label} over {knob.knob.label}. Means: {means}."
    if knob.baseline is not None and math.isfinite(knob.baseline.mean):
        text += f" Baseline {knob.baseline.label}: {metric.number(knob.baseline.mean)}."
    for published in knob.published:
        points = [(f"{p.x:g}" if isinstance(p.x, float) else p.x, p.y) for p in published.points]
        text += f" Published curve of {published.source}: {'; '.join(f'{x}: {y:g}' for x, y in points)}."
    return text


def _caption(analysis: Analysis, knob: KnobAnalysis, picture: CurvePicture) -> str:
    level = confidence(knob.sensitivity.alpha)
    parts = []
    if any(math.isfinite(item.low) for arm in picture.arms for item in arm.levels):
        what = "comparison bar: values whose bars do not overlap differ"
        what = "simultaneous interval" if picture.baseline else what
        thin, thick = ("Thin lines", "Thick") if picture.connected else ("Dots", "Diamonds")
        parts.append(f"{thin}: one seed each. {thick}: mean with {level} {what}.")
    elif knob.isolated.problem:
        parts.append("Each point is one seed of one cell; the other knobs vary.")
    elif any(point.seeds for point in knob.points):
        has_one_seed = max(len(point.seeds) for point in knob.points) == 1
        reason = "One seed gives" if has_one_seed else "No two values share two seeds, so there is"
        parts.append(f"{reason} no interval.")
    values = sum(math.isfinite(point.mean) for point in knob.points)
    if (shown := sum(math.isfinite(level.absolute) for level in picture.arms[0].levels)) < values:
        parts.append(f"{shown} of {values} values are drawn, evenly chosen.")
    drawn = {dot.seed for arm in picture.arms for level in arm.levels for dot in level.dots}
    if len(drawn) < knob.seeds:
        parts.append(f"{len(drawn)} of {knob.seeds} seeds are drawn; means and intervals are of all.")
    parts.append(f"Shaded: differences below {analysis.metric.amount(analysis.margin)}, the smallest that matters.")
    if knob.isolated.how:
        parts.append(f"Means and seeds are {knob.isolated.how}.")
    if picture.printed:
        lacking = [line.name for line in picture.printed if line.baseline is None]
        means = f", without one ({', '.join(lacking)}) to its mean" if lacking else ""
        parts.append(f"Dashed: printed curves, each as difference to its own baseline{means}.")
    if picture.floors:
        floors = ", ".join(f"{name} {analysis.metric.number(value)}" for name, value in picture.floors)
        parts.append(
            f"Dotted, in the view of values: reached without training, over at most three seeds of the sweep's start ({floors})."
        )
    return " ".join(parts)
