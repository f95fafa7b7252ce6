"""Does the sweep agree with the published curve? Compare orders, and levels if the conditions are equal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tune_dml.papers.published import PublishedCurve
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.cells import delta_cells, metric_cells
from tune_dml.report.naming import MetricName, confidence
from tune_dml.report.published.comparable import published_at, reasons_against, summarize_reasons, unknown_conditions
from tune_dml.report.published.order import (
    PaperDeviation,
    compare_orders,
    order_counts,
    order_in_plain_words,
    order_sentence,
    paper_deviation,
)
from tune_dml.report.questions import knob_question
from tune_dml.report.section import Block, Card, Fold, Heading, Notes, Section, Table, Text
from tune_dml.stats.verdicts.equivalence import TOST, Equivalence, OrderAgreement, judge_equivalence, judge_published
from tune_dml.text import counted, is_number


@dataclass(frozen=True)
class PointGap:
    """Our mean minus the published number, at one value."""

    value: float | str
    ours: float
    published: float
    gap: float
    low: float  # lower end of the gap's interval; NaN if levels are not comparable, or without a noise estimate
    high: float

    @property
    def text(self) -> str:
        """The value as text: `512` for 512.0."""
        return f"{self.value:g}" if isinstance(self.value, float) else self.value


@dataclass(frozen=True)
class CurveAgreement:
    """Comparison of a knob's curve with a published curve."""

    published: PublishedCurve
    verdict: Literal["matches", "higher", "lower", "mixed", "compatible", "not comparable", "undecided"]
    reasons: tuple[str, ...]  # reasons why levels are not comparable; empty if they are
    not_printed: tuple[str, ...]  # conditions that the paper does not print, and that are assumed to equal ours
    caveats: tuple[str, ...]
    points: tuple[PointGap, ...]
    level: Equivalence | None
    order: OrderAgreement | None  # None with fewer than three shared values, or without intervals
    deviation: PaperDeviation  # run-to-run deviation that is assumed for the printed numbers
    alpha: float

    @property
    def brief(self) -> str:
        """The comparison of level and order in one sentence."""
        source = self.published.source
        count, level = len(self.points), f"level: {self.verdict}"
        if not count:
            return f"Against {source}: no shared values."
        if self.reasons:
            level = f"level not comparable ({summarize_reasons(self.reasons)})"
        elif self.not_printed:
            level += f" ({counted(len(self.not_printed), 'condition')} not printed)"
        order = "order: no noise estimate"
        if self.order is not None:
            order = order_counts(self.order, self.deviation)
        elif count < 3:
            order = f"order: {counted(count, 'shared value')} {'is' if count == 1 else 'are'} too few"
        return f"Against {source}: {level}; {order}."


@knob_question(order=220, unanswered={"agreement": ()})
def agreement(analysis: Analysis, knob: KnobAnalysis) -> Section | None:
    """Compare with each published curve of the knob; None without any, or if values were stopped early."""
    if knob.stopped:
        return None
    comparisons = [_compare(analysis, knob, published) for published in knob.published]
    if not comparisons:
        return None
    body: list[Block] = []
    unusable: list[Block] = []
    for index, comparison in enumerate(comparisons):
        source = comparison.published.source
        if comparison.level is None and comparison.order is None and len(comparisons) > 1:
            why = f"{counted(len(comparison.points), 'shared value')}, and levels differ in conditions"
            why = f"{why} ({summarize_reasons(comparison.reasons)})" if comparison.points else "no shared values"
            unusable.append(Notes((f"{source}: {why}.",)))
            continue
        body += [Heading(source), Text(" ".join(_sentences(comparison, analysis)))]
        table = _table(analysis.metric, comparison, f"agreement-{knob.slug}-{index + 1}")
        lists = [Notes(items) for items in (comparison.reasons, comparison.published.notes) if items]
        title = "Value by value, what differs, and notes on the printed numbers"
        body.append(Fold(title if comparison.reasons else title.replace(" what differs,", ""), (table, *lists)))
    if unusable:
        body.append(Fold(f"{counted(len(unusable), 'published table')} that cannot be compared", unusable))
    level = comparisons[0].verdict
    return Section(
        "agreement",
        "Does it agree with the published curve?",
        "Agreement",
        body,
        Card("level not comparable" if level == "not comparable" else level, level.replace(" ", "-")),
        tuple(comparison.brief for comparison in comparisons),
        headline=_headline(comparisons),
        data={"agreement": [_data(comparison, analysis) for comparison in comparisons]},
    )


def _headline(comparisons: Sequence[CurveAgreement]) -> str:
    """Return the outcomes for the papers' orders; curves with the same outcome share a sentence."""
    by_outcome: dict[str, list[str]] = {}
    for comparison in comparisons:
        if comparison.order is not None:
            by_outcome.setdefault(order_in_plain_words(comparison.order), []).append(_conditions(comparison))
    return " ".join(f"{outcome} ({'; '.join(conditions)})." for outcome, conditions in by_outcome.items())


def _conditions(comparison: CurveAgreement) -> str:
    """Return the data set, and the first difference in conditions, such as `another backbone`."""
    dataset = comparison.published.published.dataset
    if not comparison.reasons:
        return dataset
    names = [reason.partition(":")[0].removeprefix("other ") for reason in comparison.reasons]
    return f"{dataset}, another {next((name for name in names if name != 'data set'), 'data set')}"


def _compare(analysis: Analysis, knob: KnobAnalysis, published: PublishedCurve) -> CurveAgreement:
    means, printed = knob.isolated.means, published_at(knob, published)
    reasons, alpha = reasons_against(analysis, knob, published, printed), knob.sensitivity.alpha
    level = None if reasons or not printed else _level(analysis, knob, published, printed)
    ends = zip(level.low, level.high, strict=True) if level else [(math.nan, math.nan)] * len(printed)
    points = tuple(
        PointGap(
            float(value) if is_number(value := knob.level(label)) else str(value), means[label], number,
            means[label] - number, *analysis.metric.change_ends(low, high),
        )
        for (label, number), (low, high) in zip(printed.items(), ends, strict=True)
    )  # fmt: skip
    verdict = level.verdict if level else "not comparable"
    deviation = paper_deviation(analysis, published)
    order = _order(knob, published, printed, deviation)
    unprinted = unknown_conditions(analysis, knob, published, printed)
    caveats = _caveats(published, level, unprinted)
    return CurveAgreement(published, verdict, reasons, unprinted, caveats, points, level, order, deviation, alpha)


def _level(
    analysis: Analysis, knob: KnobAnalysis, published: PublishedCurve, printed: Mapping[str, float]
) -> Equivalence:
    table = knob.isolated.table
    rows, numbers = table.values[[table.labels.index(label) for label in printed]], list(printed.values())
    return judge_equivalence(
        rows, numbers, analysis.margin, run_sd=analysis.paper_sd, runs=published.published.runs,
        alpha=knob.sensitivity.alpha, resolution=table.resolution,
    )  # fmt: skip


def _order(
    knob: KnobAnalysis, published: PublishedCurve, printed: Mapping[str, float], deviation: PaperDeviation
) -> OrderAgreement | None:
    bounds, labels = knob.sensitivity.bounds, knob.sensitivity.labels
    if bounds is None or len(printed) < 3:
        return None
    by_row = {labels.index(label): number for label, number in printed.items()}
    return compare_orders(bounds, by_row, published, deviation, knob.sensitivity.alpha)


def _caveats(published: PublishedCurve, level: Equivalence | None, not_printed: tuple[str, ...]) -> tuple[str, ...]:
    theirs = published.published
    runs = "one run" if theirs.runs == 1 else f"the mean of {theirs.runs} runs"
    sd = "equal to ours" if level is None or level.assumed_sd is None else f"{level.assumed_sd:g}, as given"
    if level and math.isfinite(level.holds_up_to):
        sd += f", and the verdict holds up to {level.holds_up_to:.2g}"
    caveats = [f"the paper prints {runs} and no standard deviation: assumed {sd}"]
    if theirs.selection == "unknown":
        caveats.append("the paper does not say how it selected")
    if not_printed:
        caveats.append(f"not printed: {', '.join(not_printed)}")
    return tuple(caveats)


def _sentences(comparison: CurveAgreement, analysis: Analysis) -> list[str]:
    source = comparison.published.source
    if comparison.level is None:
        level = [f"Not comparable in level with {source}: {summarize_reasons(comparison.reasons)}."]
    elif comparison.verdict == "undecided":
        level = [f"It is undecided whether the level agrees with {source}: a value has fewer than two seeds."]
    else:
        level = _level_sentences(comparison, analysis)
    order, count = comparison.order, len(comparison.points)
    if order is not None:
        sentence = order_sentence(order, comparison.deviation, "values")
    else:
        why = "there is no noise estimate" if count > 2 else f"that takes three shared values, not {count}"
        sentence = f"The orders cannot be compared: {why}."
    return [*level, sentence, *_printed_sentence(comparison, analysis)]


def _level_sentences(comparison: CurveAgreement, analysis: Analysis) -> list[str]:
    source, metric = comparison.published.source, analysis.metric
    margin = metric.amount(analysis.margin)
    sentence = {
        "matches": f"The level matches {source}: every difference is significantly below {margin}.",
        "higher": f"The level is higher than {source}.",
        "lower": f"The level is lower than {source}.",
        "mixed": f"The level is higher at some values and lower at others than {source}.",
    }.get(
        comparison.verdict,
        f"The level is compatible with {source}: no difference is significant, but {margin} cannot be ruled out. "
        "This does not show agreement.",
    )
    widest = max(comparison.points, key=lambda point: abs(point.gap))
    return [
        sentence,
        f"The largest difference is {metric.signed_amount(widest.gap)} at {widest.text} "
        f"({confidence(comparison.alpha)} simultaneous interval {metric.number(widest.low)} to "
        f"{metric.number(widest.high)}; {len(comparison.points)} values).",
        f"Note: {'; '.join(comparison.caveats)}.",
    ]


def _printed_sentence(comparison: CurveAgreement, analysis: Analysis) -> list[str]:
    """Return the verdict on the published curve alone, and the run-to-run deviation up to which it holds."""
    published = comparison.published
    points = [(point.x, point.y) for point in published.points if is_number(point.x)]
    if len(points) < 3:
        return []
    xs, ys = map(list, zip(*points, strict=True))
    runs, sd = published.published.runs, comparison.deviation.sd
    printed = judge_published(xs, ys, run_sd=sd, runs=runs, goal=analysis.goal)
    return [f"The published curve by itself: {printed.sentence}."]


def _table(metric: MetricName, comparison: CurveAgreement, name: str) -> Table:
    rows = [
        (p.text, *metric_cells(metric, p.ours, p.published), *delta_cells(metric, p.gap, p.low, p.high))
        for p in comparison.points
    ]  # fmt: skip
    how = "No intervals, since the level is not comparable" if comparison.level is None else TOST.capitalize()
    caption = f"Our means and the numbers of {comparison.published.source}. {how}."
    table = Table(name, caption, ("value", "ours", "published", "gap", "low", "high"), rows)
    return table.without(["low", "high"]) if comparison.level is None else table


def _data(comparison: CurveAgreement, analysis: Analysis) -> dict[str, object]:
    level, order = comparison.level, comparison.order
    return {
        **{name: value for name, value in vars(comparison).items() if name not in {"level", "order"}},
        "algorithm": TOST,
        "margin": analysis.margin,
        "shared": len(comparison.points),
        "assumed_sd": level.assumed_sd if level else None,
        "holds_up_to": level.holds_up_to if level else None,
        "order": {**vars(order), "low": order.low, "high": order.high} if order else None,
        "source": comparison.published.source,
        "published": comparison.published.published,
        "notes": comparison.published.notes,
        "sentences": _sentences(comparison, analysis),
    }
