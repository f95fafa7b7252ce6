"""How sensitive is the outcome to the knob? The curve with every seed, the verdict, and the published curve beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tune_dml.published import PublishedCurve, published_curve
from tune_dml.report import figure as drawing
from tune_dml.report.measured import Measured, MeasuredCell, MeasuredKnob, level_key
from tune_dml.report.naming import MetricName, symbol_of
from tune_dml.space import Knob, Value
from tune_dml.stats import BlockFit, Excluded, SeedTable, Sensitivity, fit_blocks, judge_sensitivity
from tune_dml.text import duration, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class CurvePoint:
    """One value of the knob."""

    label: str
    value: Value
    seeds: tuple[tuple[int, float], ...]
    """(seed, metric) behind the mean, the other knobs removed; every number there is for a value that is left out."""
    mean: float
    """NaN when the value is left out of the arithmetic or has no number."""
    half_bar: float
    """Half the comparison bar; NaN without a noise estimate."""
    failures: tuple[tuple[int, str, str], ...]
    """(seed, status, reason)."""
    trials: tuple[str, ...]
    """Keys of the trials behind it."""


@dataclass(frozen=True, eq=False)
class Curve:
    """A knob's curve with its verdict."""

    knob: Knob
    measured: MeasuredKnob
    metric: MetricName
    points: tuple[CurvePoint, ...]
    baseline: CurvePoint | None
    sensitivity: Sensitivity
    fit: BlockFit
    how: str
    published: tuple[PublishedCurve, ...]
    """The papers' curves for this knob, those on the same data set first."""
    sentences: tuple[str, ...]


def extract(measured: Measured, knob: MeasuredKnob) -> Curve:
    """The numbers of one knob's curve; the intervals of several knobs share their 5% (Bonferroni)."""
    confidence = 1 - 0.05 / max(1, len(measured.knobs))
    fit = fit_blocks(knob.isolated.table)
    verdict = judge_sensitivity(knob.isolated.table, measured.margin, confidence=confidence, fit=fit)
    if not knob.isolated.crossed and verdict.verdict == "undecided" and not verdict.differences:
        reason = "its values were not tried with the same settings of the other knobs; a grid would compare them"
        verdict = replace(verdict, reason=reason)
    bars, means = dict(verdict.half_widths), dict(zip(fit.table.labels, fit.means.tolist(), strict=True))
    by_level: dict[object, list[MeasuredCell]] = {}
    for cell in measured.cells:
        if knob.knob.path in cell.cell.knobs and not cell.cell.baseline:
            by_level.setdefault(level_key(cell.cell.knobs[knob.knob.path]), []).append(cell)
    points = []
    for label, level in zip(knob.labels, knob.levels, strict=True):
        cells = by_level[level_key(level)]
        seeds = _isolated_seeds(knob.isolated.table, label)
        points.append(_point(label, level, cells, means.get(label, math.nan), bars.get(label, math.nan), seeds=seeds))
    baseline = _baseline(measured, len(points))
    published = published_for(measured, knob.knob)
    sentences = tuple(_sentences(measured, knob, verdict))
    return Curve(
        knob.knob,
        knob,
        measured.metric,
        tuple(points),
        baseline,
        verdict,
        fit,
        knob.isolated.how,
        published,
        sentences,
    )


def published_for(measured: Measured, knob: Knob) -> tuple[PublishedCurve, ...]:
    """The space's published curves for this knob: those whose hyperparameter is its last name or its symbol."""
    names = {knob.path.rpartition(".")[2], symbol_of(knob)}
    space, dataset = measured.results.plan.space, _plain(measured.results.plan.dataset)
    named = [item for item in space.published if item.hyperparameter in names]
    if not named and len(measured.knobs) == 1:
        named = list(space.published)
    same_first = sorted(named, key=lambda item: not _plain(item.dataset).startswith(dataset))
    return tuple(published_curve(item) for item in same_first)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _point(
    label: str,
    level: Value,
    cells: list[MeasuredCell],
    mean: float,
    bar: float,
    *,
    seeds: tuple[tuple[int, float], ...] = (),
) -> CurvePoint:
    raw = tuple((seed, number) for cell in cells for seed, number in sorted(cell.values.items()))
    failures = tuple((trial.seed, trial.status, why) for cell in cells for trial, why in cell.failures)
    trials = tuple(trial.key for cell in cells for trial in cell.trials)
    return CurvePoint(label, level, seeds or raw, mean, bar, failures, trials)


def _isolated_seeds(table: SeedTable, label: str) -> tuple[tuple[int, float], ...]:
    if label not in table.labels:
        return ()
    row = table.values[table.labels.index(label)].tolist()
    return tuple((seed, number) for seed, number in zip(table.seeds, row, strict=True) if math.isfinite(number))


def _baseline(measured: Measured, cells: int) -> CurvePoint | None:
    """The baseline with the comparison bar it has among all cells."""
    cell = measured.baseline
    if cell is None:
        return None
    fit = fit_blocks(measured.table())
    if cell.label not in fit.table.labels:
        return _point(cell.label, None, [cell], math.nan, math.nan)
    mean = float(fit.means[fit.table.labels.index(cell.label)])
    bars = dict(judge_sensitivity(measured.table(), measured.margin, fit=fit).half_widths) if cells > 1 else {}
    return _point(cell.label, None, [cell], mean, bars.get(cell.label, math.nan))


def _sentences(measured: Measured, knob: MeasuredKnob, found: Sensitivity) -> list[str]:
    """The verdict in words, then how sure, then what was left out."""
    metric, symbol = measured.metric, symbol_of(knob.knob)
    margin = metric.amount(found.margin)
    said = []
    if found.largest is None:
        said.append(f"Undecided whether {symbol} matters: {found.reason}.")
    else:
        high, low = found.largest.first, found.largest.second
        near, far, size = found.largest.low, found.largest.high, found.largest.estimate
        if size < 0:
            high, low, near, far, size = low, high, -far, -near, -size
        level = f"{100 * found.confidence:.3g}%"
        interval = (
            f"{level} simultaneous interval {metric.number(near)} to {metric.number(far)}; "
            f"Tukey, {found.cells} values x {found.seeds} paired seeds"
        )
        gap = f"{metric.label} is {metric.amount(size)} higher at {high} than at {low} ({interval})"
        if found.verdict == "sensitive":
            said.append(f"{symbol} matters: {gap}, more than the margin of {margin}.")
        elif found.verdict == "insensitive":
            said.append(
                f"{symbol} does not matter within {margin}: every interval lies within the margin. "
                f"The largest difference: {gap}."
            )
        else:
            said.append(
                f"Undecided whether {symbol} matters: {found.reason}. {gap[0].upper()}{gap[1:]}; the margin is {margin}."
            )
            said.append(_more_seeds(measured, found))
    if found.excluded:
        said.append(f"Left out of the arithmetic: {_left_out(found.excluded)}.")
    if found.differences and found.seeds >= 5 and found.noise_ratio > 3:
        said.append(
            "The noise differs between the values; a pair noisier than the pooled estimate is judged by its own noise."
        )
    if found.design == "least squares" and found.differences:
        said.append("Some trials are not there yet: means are least-squares means, adjusted for the missing seeds.")
    return said


def _left_out(excluded: tuple[Excluded, ...]) -> str:
    """The labels by reason."""
    by_reason: dict[str, list[str]] = {}
    for item in excluded:
        by_reason.setdefault(item.reason, []).append(item.label)
    return "; ".join(
        f"{', '.join(labels) if len(labels) <= 6 else f'{len(labels)} values'} ({reason})"
        for reason, labels in by_reason.items()
    )


def _more_seeds(measured: Measured, found: Sensitivity) -> str:
    if found.seeds_needed is None:
        return "No reasonable number of seeds would decide it: the largest difference sits on the margin."
    more = found.seeds_needed - found.seeds
    seconds = [trial.seconds for trial in measured.results.trials if trial.status == "finished"]
    trials = more * len(measured.cells)
    cost = f", {trials} trials, about {duration(trials * sum(seconds) / len(seconds))} of training" if seconds else ""
    plural = "" if more == 1 else "s"
    return (
        f"About {more} more seed{plural} ({found.seeds_needed} in all{cost}) would decide it, "
        "if the estimates stay as they are."
    )


def draw(curve: Curve, *, narrow: bool, name: str) -> str:
    """The curve; the published one in a panel of its own, on its own vertical axis, over the same values."""
    published = [found for found in curve.published if _shares_axis(curve, found)]
    place = drawing.Place(curve.measured.axis, _merged(curve, published))
    count = 1 + len(published)
    rows = count if narrow else -(-count // 2)
    with drawing.figure(narrow=narrow, height=3.5 * rows + 0.1) as made:
        axes = drawing.panels(made, count, narrow=narrow)
        width = 2.75 if narrow else (6.6 if count == 1 else 2.9)
        _draw_ours(axes[0], curve, place)
        for ax, found in zip(axes[1:], published, strict=True):
            _draw_published(ax, found, place)
        for ax in axes:
            place.dress(ax, curve.knob.label, width)
        return drawing.svg(made, name)


def _shares_axis(curve: Curve, published: PublishedCurve) -> bool:
    """A published curve can be drawn over our axis when both are numbers, or both are names."""
    numbers = all(is_number(point.x) for point in published.points)
    return bool(curve.points) and curve.measured.numeric == numbers


def _merged(curve: Curve, published: list[PublishedCurve]) -> list[Value]:
    """Our values and the published ones, each once."""
    values: list[Value] = list(curve.measured.levels)
    for point in (point for found in published for point in found.points):
        drawable = not is_number(point.x) or point.x > 0 or curve.measured.axis != "log"
        if drawable and not any(same_value(value, point.x) for value in values):
            values.append(point.x)
    return sorted(values, key=lambda value: value if is_number(value) else 0.0)


def same_value(value: Value, x: float | str) -> bool:
    """Whether a knob's value is the one a paper printed."""
    if is_number(value) and is_number(x):
        return math.isclose(value, x, rel_tol=1e-9)
    return str(value) == str(x)


def _draw_ours(ax: Axes, curve: Curve, place: drawing.Place) -> None:
    if curve.baseline is not None and math.isfinite(curve.baseline.mean):
        bar = curve.baseline.half_bar
        if math.isfinite(bar):
            ax.axhspan(curve.baseline.mean - bar, curve.baseline.mean + bar, color=drawing.GREY, alpha=0.18, lw=0)
        ax.axhline(
            curve.baseline.mean,
            color=drawing.GREY,
            ls="--",
            lw=1.2,
            label=f"baseline: {curve.baseline.label}",
        )
    drawn = [(place(p.value), p) for p in curve.points]
    seeds = [(x, number) for x, point in drawn for _, number in point.seeds]
    line = [(x, p) for x, p in drawn if math.isfinite(p.mean)]
    if seeds:
        label = "one seed (at left)" if line else "one seed"
        ax.plot(
            [x for x, _ in seeds], [number for _, number in seeds], "o", ms=3.5, mfc="none", mec=drawing.BLUE,
            mew=0.8, label=label, transform=drawing.beside(ax, -8 if line else 0),
        )  # fmt: skip
        ax.update_datalim(seeds)
        ax.autoscale_view()
    if line:
        style = "-" if drawing.spread(place.values) else "none"
        xs, ys = [x for x, _ in line], [p.mean for _, p in line]
        ax.plot(xs, ys, ls=style, color=drawing.BLUE, lw=1.4, marker="D", ms=5.5, label="mean", zorder=4)
    barred = [(x, p) for x, p in line if math.isfinite(p.half_bar)]
    if barred:
        ax.errorbar(
            [x for x, _ in barred], [p.mean for _, p in barred], yerr=[p.half_bar for _, p in barred],
            fmt="none", ecolor=drawing.BLUE, elinewidth=1.4, capsize=4, label="comparison bar", zorder=3,
        )  # fmt: skip
    if not ax.has_data():
        ax.set_yticks([])
        ax.text(0.5, 0.5, "no trial has a result", transform=ax.transAxes, ha="center", color=drawing.GREY)
    _draw_failures(ax, drawn)
    ax.set_ylabel(curve.metric.axis)
    ax.set_title("This sweep")
    _legend(ax)


def _draw_failures(ax: Axes, drawn: list[tuple[float, CurvePoint]]) -> None:
    """Failed and diverged trials as marks along the bottom edge, with their count."""
    if not any(point.failures for _, point in drawn):
        return
    low, high = ax.get_ylim()
    ax.set_ylim(low - 0.2 * (high - low), high)
    marks = (("diverged", 0.12, "X", "diverged"), ("failed", 0.04, "s", "failed"))
    across = ax.get_xaxis_transform()
    for status, height, marker, label in marks:
        shown: str | None = label
        for x, point in drawn:
            count = sum((found == "diverged") == (status == "diverged") for _, found, _ in point.failures)
            if not count:
                continue
            ax.plot(
                x, height, marker, transform=across, color=drawing.VERMILLION, ms=8, mec="white", mew=0.7,
                label=shown, clip_on=False, zorder=6, ls="none",
            )  # fmt: skip
            shown = None
            if count > 1:
                ax.annotate(
                    f"{count}", (x, height), xycoords=across, xytext=(-7, 0), textcoords="offset points",
                    va="center", ha="right", color=drawing.VERMILLION, fontsize=8.5,
                )  # fmt: skip


def _draw_published(ax: Axes, published: PublishedCurve, place: drawing.Place) -> None:
    placed = [(_placed(place, point.x), point.y) for point in published.points]
    xs, ys = [x for x, _ in placed if x is not None], [y for x, y in placed if x is not None]
    style = "-" if drawing.spread(place.values) else "none"
    runs = published.published.runs
    label = f"published, {runs} run{'' if runs == 1 else 's'}"
    ax.plot(xs, ys, ls=style, color=drawing.VERMILLION, lw=1.4, marker="s", ms=5.5, label=label)
    if published.baseline is not None:
        name = published.published.baseline_method
        ax.axhline(published.baseline, color=drawing.GREY, ls="--", lw=1.2, label=f"baseline: {name}")
    source = published.published
    ax.set_title(f"{source.paper}, Table {source.table}\n{source.dataset}, {source.backbone}, d={source.embedding_dim}")
    selected = {"test": "test", "validation": "validation"}.get(source.selection, "")
    ax.set_ylabel(f"{selected} {source.metric} [%]".strip() if source.metric.startswith("R@") else source.metric)
    _legend(ax)


def _placed(place: drawing.Place, x: float | str) -> float | None:
    return next((place(value) for value in place.values if same_value(value, x)), None)


def _legend(ax: Axes) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, columnspacing=1.2, handlelength=1.8)
