"""How sensitive is the outcome to the knob? The curve with every seed, the verdict, and the published curve beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tune_dml.published import PublishedCurve
from tune_dml.report import figure as drawing
from tune_dml.report.knob import CurvePoint, MeasuredKnob, same_value
from tune_dml.report.measured import Measured
from tune_dml.report.naming import MetricName, extend_command
from tune_dml.report.questions import knob_question
from tune_dml.report.section import Block, Card, Command, Figure, Section, Table, Text, number, signed, words
from tune_dml.space import Value
from tune_dml.stats import Difference, Matters
from tune_dml.stats.power import seeds_to_decide
from tune_dml.text import duration, is_number, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@knob_question(order=200)
def sensitivity(measured: Measured, knob: MeasuredKnob) -> Section:
    """The verdict in words, how many seeds would decide it, the curve, and every pairwise difference."""
    verdict, needed = knob.sensitivity, _seeds_needed(measured, knob)
    sentences = _sentences(measured, knob, needed)
    command = extend_command(measured.results, f"--seeds {needed}") if needed else ""
    body: list[Block] = [Text(" ".join(sentences), badge=verdict.verdict)]
    if command:
        body.append(Command(command))
    if knob.points:
        body.append(_figure(measured.metric, knob))
    return Section(
        "curve",
        f"How sensitive is the outcome to {knob.symbol}?",
        f"Sensitivity to {knob.symbol}",
        (*body, _table_of_differences(measured.metric, knob)),
        Card(verdict.verdict, verdict.verdict, f"Does {knob.symbol} matter?", sentences[0]),
        (sentences[0],),
        commands=(command,) if command else (),
        data={
            "path": knob.path,
            "arm": knob.arm or None,
            "symbol": knob.knob.symbol,
            "axis": knob.axis,
            "isolated": knob.isolated.how or None,
            "points": knob.points,
            "sensitivity": {
                **{name: value for name, value in vars(verdict).items() if name not in {"labels", "bounds", "noise"}},
                "cells": len(verdict.labels),
                "seeds": knob.seeds,
                "seeds_needed": needed,
                "diverged": [point.label for point in knob.points if point.diverged],
            },
            "sentences": sentences,
        },
    )


def _seeds_needed(measured: Measured, knob: MeasuredKnob) -> int | None:
    """Seeds in all that would about decide an undecided verdict; None when none would, or when it is not for want of seeds."""
    verdict = knob.sensitivity
    if verdict.noise is None or verdict.verdict != "undecided":
        return None
    if _flat_for_those_that_trained(knob):
        return None
    share, judged = verdict.alpha / measured.looks.level, len(knob.isolated.table.seeds)

    def level(seeds: int) -> float:
        return share * measured.looks.level_at(_in_all(measured, knob, seeds))

    needed = seeds_to_decide(verdict.noise, verdict.margin, judged + 1, level)
    return needed and _in_all(measured, knob, needed)


def _in_all(measured: Measured, knob: MeasuredKnob, judging: int) -> int:
    """The seeds that a sweep needs so that `judging` are left to judge after tuning, where a third tunes other knobs."""
    return judging if len(knob.isolated.table.seeds) == len(measured.seeds) else -(-3 * judging // 2)


def _sentences(measured: Measured, knob: MeasuredKnob, needed: int | None) -> list[str]:
    """The verdict in words, then how sure, then what was lost."""
    verdict = knob.sensitivity
    sentences = [_verdict(measured.metric, knob)]
    if needed:
        sentences.append(_more_seeds(measured, knob, needed))
    elif verdict.verdict == "undecided" and verdict.noise is not None and not _flat_for_those_that_trained(knob):
        sentences.append("No reasonable number of seeds would decide it: the largest difference sits on the margin.")
    lost = _lost(knob)
    return [*sentences, lost] if lost else sentences


def _flat_for_those_that_trained(knob: MeasuredKnob) -> bool:
    """Whether more seeds could at most show that the values that trained do not differ, while others diverged."""
    largest = knob.sensitivity.largest
    below = largest is not None and abs(largest.estimate) < knob.sensitivity.margin
    return below and any(point.diverged for point in knob.points)


def _verdict(metric: MetricName, knob: MeasuredKnob) -> str:
    verdict, symbol = knob.sensitivity, knob.symbol
    diverged = [point.label for point in knob.points if point.diverged]
    counts = [f"{p.label} ({p.diverged} of {len(p.trials)} trials)" for p in knob.points if p.diverged]
    beside = f" Diverged: {_listed(counts)}." if diverged else ""
    if verdict.largest is None:
        return f"Undecided whether {symbol} matters: {verdict.reason}.{beside}"
    margin, gap = metric.amount(verdict.margin), _gap(metric, knob, verdict.largest)
    if verdict.verdict == "sensitive":
        return f"{symbol} matters: {gap}, more than the margin of {margin}.{beside}"
    if verdict.verdict == "insensitive":
        return (
            f"{symbol} does not matter within {margin}: every difference is certainly below the margin. "
            f"The largest: {gap}{_limit(metric, verdict.largest)}."
        )
    if verdict.flat:
        return (
            f"Among the values that trained {symbol} does not matter within {margin}, but {_listed(diverged)} diverged. "
            f"The largest difference: {gap}{_limit(metric, verdict.largest)}."
        )
    text = f"Undecided whether {symbol} matters: {verdict.reason}. {gap[0].upper()}{gap[1:]}; the margin is {margin}."
    return text + beside


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= 6 else f"{len(labels)} values"


def _gap(metric: MetricName, knob: MeasuredKnob, largest: Difference) -> str:
    high, low, size = largest.first, largest.second, largest.estimate
    near, far = largest.low, largest.high
    if size < 0:
        high, low, near, far, size = low, high, -far, -near, -size
    sure = (
        f"{100 * (1 - knob.sensitivity.alpha):.3g}% simultaneous interval {metric.number(near)} to {metric.number(far)}"
    )
    if not (math.isfinite(near) and math.isfinite(far)):
        sure = "too few shared seeds for an interval"
    return (
        f"{metric.label} is {metric.amount(size)} higher at {high} than at {low} ({sure}; "
        f"{len(knob.sensitivity.labels)} values x {knob.seeds} paired seeds)"
    )


def _limit(metric: MetricName, largest: Difference) -> str:
    return f", and by itself certainly at most {metric.amount(largest.at_most)}" if largest.at_most < math.inf else ""


def _lost(knob: MeasuredKnob) -> str:
    """Every trial without a number, by reason; empty when there is none."""
    labels: dict[str, list[str]] = {}
    for point in knob.points:
        if point.failures:
            reason = "; ".join(f"seed {seed} {why}" for seed, _, why in point.failures)
            labels.setdefault(reason, []).append(point.label)
    if not labels:
        return ""
    parts = [f"{_listed(names)} ({reason})" for reason, names in labels.items()]
    widened = " A value keeps its other seeds, with wider intervals." if any(p.seeds for p in knob.points) else ""
    return f"Lost: {'; '.join(parts)}.{widened}"


def _more_seeds(measured: Measured, knob: MeasuredKnob, needed: int) -> str:
    more = needed - len(measured.seeds)
    seconds = [trial.seconds for trial in measured.results.trials if trial.status == "finished"]
    trials = more * len(measured.cells)
    cost = f", {trials} trials, about {duration(trials * sum(seconds) / len(seconds))} of training" if seconds else ""
    plural = "" if more == 1 else "s"
    return f"About {more} more seed{plural} ({needed} in all{cost}) would decide it, if the estimates stay as they are."


def _table_of_differences(metric: MetricName, knob: MeasuredKnob) -> Table:
    verdict = knob.sensitivity
    rows = tuple(
        (words(d.first), words(d.second), signed(metric, d.estimate), signed(metric, d.low), signed(metric, d.high),
         number(metric, d.at_most), words(_against_margin(d, verdict)))
        for d in verdict.differences
    )  # fmt: skip
    caption = (
        f"Differences of {metric.label} between the values, first minus second, with simultaneous "
        f"{100 * (1 - verdict.alpha):.3g}% intervals: {verdict.algorithm}. At most: what its size by itself may be on one "
        "side; where all are below the margin the knob does not matter."
    )
    columns = ("first", "second", "difference", "low", "high", "at most", "against the margin")
    return Table(f"differences-{knob.slug}", caption, columns, rows, folded="Every pairwise difference")


def _against_margin(difference: Difference, verdict: Matters) -> str:
    """By the simultaneous intervals; where every difference is below the margin, each is."""
    if difference.at_least > verdict.margin:
        return "larger"
    inside = max(-difference.low, difference.high) < verdict.margin
    return "smaller" if verdict.flat or inside else "open"


def _figure(metric: MetricName, knob: MeasuredKnob) -> Figure:
    def draw(narrow: bool, name: str) -> str:
        return _draw(metric, knob, narrow=narrow, name=name)

    return Figure(f"curve-{knob.slug}", draw, _described(metric, knob), _caption(knob))


def _described(metric: MetricName, knob: MeasuredKnob) -> str:
    """The curve in words, for readers who do not see it."""
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
        text += f" Beside it the published curve of {published.source}: {values}."
    return text


def _caption(knob: MeasuredKnob) -> str:
    parts = []
    if any(math.isfinite(point.half_bar) for point in knob.points):
        parts.append("Values whose comparison bars do not overlap differ (within seeds, all at once).")
    if knob.isolated.problem:
        parts.append("Each point is one seed of one cell; the other knobs differ from point to point.")
    elif knob.isolated.how:
        parts.append(f"Means and seed points are {knob.isolated.how}.")
    if any(point.failures for point in knob.points):
        parts.append("Trials without a result are marked along the bottom, with their number.")
    if knob.published:
        parts.append("The published curve has a vertical axis of its own.")
    return " ".join(parts)


def _draw(metric: MetricName, knob: MeasuredKnob, *, narrow: bool, name: str) -> str:
    """The curve; the published one in a panel of its own, on its own vertical axis, over the same values."""
    published = [curve for curve in knob.published if _shares_axis(knob, curve)]
    axis = drawing.KnobAxis(knob.axis, _all_values(knob, published))
    count = 1 + len(published)
    rows = count if narrow else -(-count // 2)
    with drawing.canvas(narrow=narrow, height=3.5 * rows + 0.1) as figure:
        panels = drawing.panels(figure, count, narrow=narrow)
        width = 2.75 if narrow else (6.6 if count == 1 else 2.9)
        _draw_ours(panels[0], metric, knob, axis)
        for ax, curve in zip(panels[1:], published, strict=True):
            _draw_published(ax, curve, axis)
        for ax in panels:
            axis.label(ax, knob.knob.label, width)
        return drawing.svg(figure, name)


def _shares_axis(knob: MeasuredKnob, published: PublishedCurve) -> bool:
    """A published curve can be drawn over our axis when both are numbers, or both are names."""
    return knob.numeric == all(is_number(point.x) for point in published.points)


def _all_values(knob: MeasuredKnob, published: Sequence[PublishedCurve]) -> list[Value]:
    """Our values and the published ones, each once."""
    values: list[Value] = list(knob.levels)
    for point in (point for curve in published for point in curve.points):
        drawable = not is_number(point.x) or point.x > 0 or knob.axis != "log"
        if drawable and not any(same_value(value, point.x) for value in values):
            values.append(point.x)
    return sorted(values, key=lambda value: value if is_number(value) else 0.0)


def _draw_ours(ax: Axes, metric: MetricName, knob: MeasuredKnob, axis: drawing.KnobAxis) -> None:
    _draw_baseline(ax, knob.baseline)
    placed = [(axis.position(point.value), point) for point in knob.points]
    seeds = [(x, number) for x, point in placed for _, number in point.seeds]
    line = [(x, point) for x, point in placed if math.isfinite(point.mean)]
    if seeds:
        label = "one seed (at left)" if line else "one seed"
        ax.plot(
            [x for x, _ in seeds], [number for _, number in seeds], "o", ms=3.5, mfc="none", mec=drawing.BLUE,
            mew=0.8, label=label, transform=drawing.beside(ax, -8 if line else 0),
        )  # fmt: skip
        ax.update_datalim(seeds)
        ax.autoscale_view()
    if line:
        style = "-" if axis.numeric else "none"
        xs, ys = [x for x, _ in line], [point.mean for _, point in line]
        ax.plot(xs, ys, ls=style, color=drawing.BLUE, lw=1.4, marker="D", ms=5.5, label="mean", zorder=4)
    barred = [(x, point) for x, point in line if math.isfinite(point.half_bar)]
    if barred:
        ax.errorbar(
            [x for x, _ in barred], [p.mean for _, p in barred], yerr=[p.half_bar for _, p in barred],
            fmt="none", ecolor=drawing.BLUE, elinewidth=1.4, capsize=4, label="comparison bar", zorder=3,
        )  # fmt: skip
    if not ax.has_data():
        ax.set_yticks([])
        ax.text(0.5, 0.5, "no trial has a result", transform=ax.transAxes, ha="center", color=drawing.GREY)
    _draw_failures(ax, placed)
    ax.set_ylabel(metric.axis)
    ax.set_title("This sweep")
    _draw_legend(ax)


def _draw_baseline(ax: Axes, baseline: CurvePoint | None) -> None:
    if baseline is None or not math.isfinite(baseline.mean):
        return
    mean, bar = baseline.mean, baseline.half_bar
    if math.isfinite(bar):
        ax.axhspan(mean - bar, mean + bar, color=drawing.GREY, alpha=0.18, lw=0)
    ax.axhline(mean, color=drawing.GREY, ls="--", lw=1.2, label=f"baseline: {baseline.label}")


def _draw_failures(ax: Axes, placed: Sequence[tuple[float, CurvePoint]]) -> None:
    """Failed and diverged trials as marks along the bottom edge, with their count."""
    if not any(point.failures for _, point in placed):
        return
    low, high = ax.get_ylim()
    ax.set_ylim(low - 0.2 * (high - low), high)
    across = ax.get_xaxis_transform()
    for kind, height, marker in (("diverged", 0.12, "X"), ("failed", 0.04, "s")):
        legend: str | None = kind
        for x, point in placed:
            count = sum((status == "diverged") == (kind == "diverged") for _, status, _ in point.failures)
            if not count:
                continue
            ax.plot(
                x, height, marker, transform=across, color=drawing.VERMILLION, ms=8, mec="white", mew=0.7,
                label=legend, clip_on=False, zorder=6, ls="none",
            )  # fmt: skip
            legend = None
            if count > 1:
                ax.annotate(
                    f"{count}", (x, height), xycoords=across, xytext=(-7, 0), textcoords="offset points",
                    va="center", ha="right", color=drawing.VERMILLION, fontsize=8.5,
                )  # fmt: skip


def _draw_published(ax: Axes, curve: PublishedCurve, axis: drawing.KnobAxis) -> None:
    points = [(axis.position(value), p.y) for p in curve.points for value in axis.values if same_value(value, p.x)]
    source = curve.published
    label = f"published, {source.runs} run{'' if source.runs == 1 else 's'}"
    style = "-" if axis.numeric else "none"
    xs, ys = [x for x, _ in points], [y for _, y in points]
    ax.plot(xs, ys, ls=style, color=drawing.VERMILLION, lw=1.4, marker="s", ms=5.5, label=label)
    if curve.baseline is not None:
        ax.axhline(curve.baseline, color=drawing.GREY, ls="--", lw=1.2, label=f"baseline: {source.baseline_method}")
    ax.set_title(f"{source.paper}, Table {source.table}\n{source.dataset}, {source.backbone}, d={source.embedding_dim}")
    selected = {"test": "test", "validation": "validation"}.get(source.selection, "")
    ax.set_ylabel(f"{selected} {source.metric} [%]".strip() if source.metric.startswith("R@") else source.metric)
    _draw_legend(ax)


def _draw_legend(ax: Axes) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, columnspacing=1.2, handlelength=1.8)
