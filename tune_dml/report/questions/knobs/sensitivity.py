"""How sensitive is the outcome to the knob? Show the curve with every seed, the verdict, and the published curves."""

import math
from collections.abc import Sequence

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import CurvePoint, KnobAnalysis, SearchedEffect
from tune_dml.report.cells import interval_cells, metric_cell
from tune_dml.report.naming import MetricName, confidence
from tune_dml.report.questions import knob_question
from tune_dml.report.questions.knobs._curve import curve_figure
from tune_dml.report.section import Block, Card, Section, Table, Text
from tune_dml.report.steps import Step, add_seeds, chance_text, explain_no_extension, extend, training_time
from tune_dml.stats import Difference, SensitivityVerdict
from tune_dml.stats.forecast import Forecast, forecast_seeds, sensitivity_is_decided
from tune_dml.stats.verdicts.sensitivity import holds_at_extremes
from tune_dml.text import counted, joined

_INSTEAD = "Fewer values, a wider range, or a larger `--margin`"
_ONE_DIRECTION = 1.5  # number of directions of noise (epsilon times cells - 1) below which a chance may be too high


@knob_question(order=200)
def sensitivity(analysis: Analysis, knob: KnobAnalysis) -> Section:
    """Show the curve, the verdict, the chance that more seeds decide it, and every pairwise difference."""
    verdict, ahead = knob.sensitivity, _ahead(analysis, knob)
    sentences = _sentences(analysis, knob, ahead)
    badge = "effect" if knob.search_effect and verdict.effect else verdict.verdict
    body: list[Block] = [Text(" ".join(sentences), badge=badge), _table_of_differences(analysis.metric, knob)]
    drawn = next(item for item in analysis.knobs if item is knob or (knob.arm and item.path == knob.path))
    if drawn is not knob:
        body.insert(0, Text(f"The figure of {drawn.symbol} above shows all methods with this knob."))
    elif knob.published or _trained_points(knob):
        body.insert(0, curve_figure(analysis, knob, knob_headline(analysis, knob)))
    return Section(
        "curve",
        f"How sensitive is the outcome to {knob.symbol}?",
        f"Sensitivity to {knob.symbol}",
        body,
        Card(badge, verdict.verdict),
        (sentences[0],),
        (sentences[0],) if knob.unused else (),
        headline=_answer_sentence(analysis, knob),
        hint=explain_no_extension(ahead, _question(knob), _INSTEAD),
        steps=_steps(analysis, knob, ahead),
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
                "seeds_needed": ahead.seeds if ahead is not None and ahead.worth_it else None,
                "seeds_chance": ahead and ahead.chance,
                "diverged": [point.label for point in knob.points if point.diverged],
                "stopped": knob.stopped,
            },
            "sentences": sentences,
        },
    )


def _answer_sentence(analysis: Analysis, knob: KnobAnalysis) -> str:
    """Return the knob's headline; if there are many knobs, the undecided ones share one sentence."""
    verdicts = [(item, item.sensitivity) for item in analysis.knobs if not item.unused]
    undecided = [item for item, verdict in verdicts if verdict.largest and verdict.verdict == "undecided"]
    if len(analysis.knobs) < (2 if knob.arm else 3) or len(undecided) < 2 or knob not in undecided:
        return knob_headline(analysis, knob)
    if knob is not undecided[0]:
        return ""
    named = joined([item.symbol for item in undecided]) if len(undecided) <= 4 else f"{len(undecided)} knobs"
    return f"It is undecided whether {named} matter on {analysis.results.plan.dataset}."


def knob_headline(analysis: Analysis, knob: KnobAnalysis) -> str:
    """Return one sentence on whether the knob matters."""
    verdict = knob.sensitivity
    if knob.unused:
        where = f"on {analysis.results.plan.dataset}"
        return f"{knob.symbol} changes nothing {where}: {_same_results(knob)}. Check that it is used."
    if verdict.largest is None:
        return _headline_without_noise(analysis, knob)
    return knob.among + _headline_with_noise(analysis, knob, verdict.largest)


def _headline_with_noise(analysis: Analysis, knob: KnobAnalysis, largest: Difference) -> str:
    verdict, metric, symbol = knob.sensitivity, analysis.metric, knob.symbol
    where = analysis.results.plan.dataset + knob.isolated.partial_average
    change = _change(analysis, knob, largest.first, largest.second, largest.estimate)
    if verdict.verdict == "sensitive":
        return f"{symbol} matters on {where}: {change}."
    margin = metric.rough(verdict.margin)
    if verdict.verdict == "insensitive":
        where = analysis.results.plan.dataset + knob.isolated.average
        if equal := _equal_results(metric, knob):
            return f"{symbol} does not matter on {where}: {equal}{_but_unknown(knob)}. Check that it is used."
        return f"{symbol} does not matter on {where}: no two values differ by {margin} or more{_but_unknown(knob)}."
    if verdict.flat:
        diverged = any(point.diverged for point in knob.points)
        lost = "were stopped early" if knob.stopped else "failed" if knob.failed and not diverged else "diverged"
        return f"{symbol} does not matter on {where} among the values that trained, but other values {lost}."
    limit = largest.reach
    if limit < verdict.margin:  # another pair, with fewer seeds, leaves it undecided
        limit = max(limit, *(difference.reach for difference in verdict.differences))
    max_limit = 10 * max(verdict.margin, abs(largest.estimate))
    if metric.percent:  # two percentages differ by at most 100
        max_limit = min(max_limit, 100.0)
    reach = f"up to {metric.rough(limit)}" if limit < max_limit else "much larger"
    return (
        f"It is undecided whether {symbol} matters on {where}: {change}, and with {counted(knob.seeds, 'seed')} the true "
        f"difference may be {reach} (smallest that matters: {margin})."
    )


def _headline_without_noise(analysis: Analysis, knob: KnobAnalysis) -> str:
    symbol, where = knob.symbol, analysis.results.plan.dataset
    if knob.sensitivity.effect and knob.search_effect is not None:
        return f"{symbol} has an effect on {where}: {_difference_in_search(analysis.metric, knob.search_effect, rough=True)}."
    if knob.isolated.problem and len(analysis.knobs) > 1:  # the section on the best configuration says more
        return ""
    trained = [point for point in knob.points if math.isfinite(point.mean)]
    if len(trained) < 2:
        return f"Nothing can be said about {symbol} on {where}: {knob.sensitivity.reason}."
    widest = _widest_gap_within_seed(trained)
    change = f"{_change(analysis, knob, *widest)}, but " if widest else ""
    return f"{knob.among}It is undecided whether {symbol} matters on {where}: {change}{knob.sensitivity.reason}."


def _widest_gap_within_seed(points: Sequence[CurvePoint]) -> tuple[str, str, float] | None:
    """Return (higher value, lower value, gap) of the widest gap within one seed; None if no two values share a seed.

    Means of different seeds cannot be compared.
    """
    by_seed: dict[int, list[tuple[float, str]]] = {}
    for point in points:
        for seed, number in point.seeds:
            by_seed.setdefault(seed, []).append((number, point.label))
    ends = [(max(numbers), min(numbers)) for numbers in by_seed.values() if len(numbers) > 1]
    gaps = [(high[1], low[1], high[0] - low[0]) for high, low in ends]
    return max(gaps, key=lambda gap: gap[2], default=None)


def _change(analysis: Analysis, knob: KnobAnalysis, first: str, second: str, size: float) -> str:
    """Describe a difference, from the better value to the worse: `R@1 falls 19 points from rho = 1 to 0.1`."""
    if analysis.sign * size < 0:
        first, second = second, first
    if analysis.metric.rough(abs(size)) == analysis.metric.rough(0.0):
        return f"{analysis.metric.name} is the same at every {knob.symbol}"
    better, worse = knob.text_of(first), knob.text_of(second)
    verb = "falls" if analysis.sign > 0 else "rises"
    return f"{analysis.metric.name} {verb} {analysis.metric.rough(abs(size))} from {knob.symbol} = {better} to {worse}"


def _steps(analysis: Analysis, knob: KnobAnalysis, ahead: Forecast | None) -> tuple[Step, ...]:
    """Return a step that adds seeds if they are likely to decide; a sweep of one seed is extended to three."""
    if len(analysis.seeds) == 1 and sum(bool(point.seeds) for point in knob.points) > 1:
        settles = "how much of each difference is noise"
        return extend(analysis.results, settles, 45, seeds=3)
    if ahead is None:
        return ()
    return add_seeds(analysis.results, f"{_question(knob)}{knob.isolated.average}", 40, ahead)


def _question(knob: KnobAnalysis) -> str:
    """Return the question that more seeds may decide; if values were lost, it can only be that the knob matters."""
    return f"{'that' if _has_lost_values(knob) else 'whether'} {knob.symbol} matters"


def _has_lost_values(knob: KnobAnalysis) -> bool:
    """Return whether a value diverged or was stopped, which excludes the verdict "does not matter"."""
    return any(point.diverged or point.stopped for point in knob.points)


def _ahead(analysis: Analysis, knob: KnobAnalysis) -> Forecast | None:
    """Forecast whether further seeds would decide an undecided verdict; None if more seeds cannot help."""
    verdict, isolated = knob.sensitivity, knob.isolated
    if verdict.noise is None or verdict.verdict != "undecided" or knob.stopped or knob.unused:
        return None
    if _is_flat_but_diverged(knob):
        return None
    cells = isolated.tuned or isolated.crossed
    rows, source = (cells.rows, cells) if cells else ((), isolated.table.with_numbers())
    values, step = source.values, source.resolution
    decided = sensitivity_is_decided(
        verdict.margin, rows=rows, tuned=bool(isolated.tuned), resolution=step, flat_decides=not _has_lost_values(knob)
    )
    share, looks = verdict.alpha / analysis.looks.level, analysis.looks
    return forecast_seeds(
        values, len(analysis.seeds), lambda seeds: share * looks.level_at(seeds), decided,
        scale=verdict.margin, resolution=step,
    )  # fmt: skip


def _sentences(analysis: Analysis, knob: KnobAnalysis, ahead: Forecast | None) -> list[str]:
    sentences = [_unused_sentence(knob) if knob.unused else knob.among + _verdict(analysis.metric, knob)]
    if ahead is not None:
        more = _seeds_sentence(analysis, knob, ahead) if ahead.worth_it else ""
        sentences.append(more or explain_no_extension(ahead, _question(knob), _INSTEAD))
    return [*sentences, *filter(None, [_lost_sentence(analysis, knob)])]


def _same_results(knob: KnobAnalysis, what: str = "results") -> str:
    return f"its {len(_trained_points(knob))} values gave exactly the same {what}"


def _unused_sentence(knob: KnobAnalysis) -> str:
    return (
        f"{knob.symbol} changed nothing: {_same_results(knob)} under every seed. Either the method does not read it, or other "
        f"settings switch it off; this says nothing about {knob.symbol}."
    )


def _equal_results(metric: MetricName, knob: KnobAnalysis) -> str:
    """Return a clause if all values gave the same result under every seed; else empty."""
    results = {result for point in knob.points for result in point.seeds}
    return "" if len(results) > len(dict(results)) else f"{_same_results(knob, metric.label)} under every seed"


def _trained_points(knob: KnobAnalysis) -> list[CurvePoint]:
    return [point for point in knob.points if point.seeds]


def _is_flat_but_diverged(knob: KnobAnalysis) -> bool:
    """Return whether values diverged and the trained ones hardly differ: more seeds could then not decide."""
    largest = knob.sensitivity.largest
    below = largest is not None and abs(largest.estimate) < knob.sensitivity.margin
    return below and any(point.diverged for point in knob.points)


def _verdict(metric: MetricName, knob: KnobAnalysis) -> str:
    verdict, symbol, average = knob.sensitivity, knob.symbol, knob.isolated.average
    diverged = [point.label for point in knob.points if point.diverged]
    counts = [f"{p.label} ({p.diverged} of {len(p.trials)} trials)" for p in knob.points if p.diverged]
    note = f" Diverged: {_listed(counts)}." if diverged else ""
    if knob.search_effect is not None:
        return _search_sentence(metric, knob, knob.search_effect) + note
    if verdict.largest is None:
        return f"It is undecided whether {symbol} matters: {verdict.reason}.{note}"
    margin, gap = metric.amount(verdict.margin), _gap(metric, knob, verdict.largest)
    if verdict.verdict == "sensitive":
        return f"{symbol} matters{average}: {gap}, more than {margin}, the smallest difference that matters.{note}"
    if verdict.verdict == "insensitive":
        equal = _equal_results(metric, knob)
        check = f" But {equal}. Check that it is used." if equal else ""
        return (
            f"{symbol} does not matter{average}: every difference is significantly below {margin}, the smallest that matters. "
            f"The largest: {gap}{_limit(metric, verdict.largest)}{_but_unknown(knob)}.{check}"
        )
    if verdict.flat:
        lost = [f"{_listed(diverged)} diverged"] if diverged else []
        lost += [f"{_listed(knob.stopped)} stopped early"] if knob.stopped else []
        lost += [f"trials of {_listed(knob.failed)} failed"] if knob.failed else []
        return (
            f"Among the values that trained, {symbol} does not matter{average}: every difference is significantly below "
            f"{margin}, the smallest that matters. But {' and '.join(lost)}. The largest difference: "
            f"{gap}{_limit(metric, verdict.largest)}."
        )
    return (
        f"It is undecided whether {symbol} matters{average}: {verdict.reason}. {gap[0].upper()}{gap[1:]}; the smallest "
        f"difference that matters is {margin}.{note}"
    )


def _search_sentence(metric: MetricName, knob: KnobAnalysis, tested: SearchedEffect) -> str:
    test = f"permutation test over {len(tested.test.inside)} configurations, p = {tested.test.p_value:.2g}"
    test += f"; significant up to {knob.sensitivity.alpha:.2g}"
    if not knob.sensitivity.effect:
        return (
            f"It is undecided whether {knob.symbol} matters: no effect is significant ({test}). A grid would compare its values "
            "at the same settings of the other knobs."
        )
    return (
        f"{knob.symbol} has an effect: {_difference_in_search(metric, tested)} ({test}). The test gives no interval, so it is "
        f"undecided whether some difference exceeds {metric.amount(knob.sensitivity.margin)}, the smallest that matters; a grid "
        "would show it."
    )


def _difference_in_search(metric: MetricName, tested: SearchedEffect, *, rough: bool = False) -> str:
    size = tested.test.difference
    direction = "higher" if size > 0 else "lower"
    amount = metric.rough(abs(size)) if rough else metric.amount(abs(size))
    return f"{metric.label} is {amount} {direction} at {tested.where} than elsewhere"


def _but_unknown(knob: KnobAnalysis) -> str:
    unknown = [point.label for point in knob.points if not math.isfinite(point.mean)]
    return f"; {_listed(unknown)} gave no result" if unknown else ""


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= 6 else f"{len(labels)} values"


def _gap(metric: MetricName, knob: KnobAnalysis, largest: Difference) -> str:
    higher, lower, size = largest.first, largest.second, largest.estimate
    low, high = largest.low, largest.high
    if size < 0:
        higher, lower, low, high, size = lower, higher, -high, -low, -size
    interval = "too few shared seeds for an interval"
    if ends := metric.interval(*metric.change_ends(low, high)):
        interval = f"{confidence(knob.sensitivity.alpha)} simultaneous interval {ends}"
    gap = f"is {metric.amount(size)} higher at {higher} than at {lower}"
    if metric.rough(size) == metric.rough(0.0):
        gap = "has the same mean at every value"
    shared, seeds = knob.shared_seeds(higher, lower), f"{knob.seeds} paired seeds"
    if shared < knob.seeds:
        seeds = f"{knob.seeds} seeds, of which these two share {shared}"
    return f"{metric.label} {gap} ({interval}; {len(knob.sensitivity.labels)} values x {seeds})"


def _limit(metric: MetricName, largest: Difference) -> str:
    return f", and taken alone at most {metric.amount(largest.at_most)}" if largest.at_most < math.inf else ""


def _lost_sentence(analysis: Analysis, knob: KnobAnalysis) -> str:
    labels: dict[str, list[str]] = {}
    for point in knob.points:
        seeds: dict[str, dict[str, None]] = {}
        for seed, _, why in point.failures:
            seeds.setdefault(why, {})[str(seed)] = None
        reasons = [f"seed{'' if len(s) == 1 else 's'} {joined(list(s))} {why}" for why, s in seeds.items()]
        labels.setdefault("; ".join(reasons), []).append(point.label)
    parts = [f"{_listed(names)} ({reason})" for reason, names in labels.items() if reason]
    if not parts:
        return ""
    partly = any(point.failures and point.seeds for point in knob.points)
    widened = " A value with other seeds keeps them, with wider intervals." if partly else ""
    return f"Without a result: {'; '.join(parts)}.{widened}{_if_extreme(analysis, knob)}"


def _if_extreme(analysis: Analysis, knob: KnobAnalysis) -> str:
    """Return a sentence if the claim depends on why trials failed; else empty. A race runs failed trials again."""
    isolated, verdict = knob.isolated, knob.sensitivity
    unknown = {"missing", "running", "stopped"} & analysis.counts.keys()
    if unknown or analysis.race is not None or isolated.tuned is not None or isolated.problem or knob.unused:
        return ""
    if holds_at_extremes(verdict, isolated.table, crossed=isolated.crossed):
        return ""
    claim = f"it would be undecided whether {knob.symbol} matters"
    if verdict.verdict == "undecided" and not verdict.flat:
        claim = "no difference would be significant"
    return f" If these trials failed because of their results, {claim}."


def _seeds_sentence(analysis: Analysis, knob: KnobAnalysis, ahead: Forecast) -> str:
    added = ahead.seeds - len(analysis.seeds)
    trials, chance = added * len(analysis.cells), chance_text(ahead.chance)
    time = training_time(analysis.results, trials)
    cost = f", {trials} trials{time}" if time else ""
    text = f"{counted(added, 'more seed')} ({ahead.seeds} in all{cost}) would decide it with {chance}."
    if not _has_one_direction(knob):
        return text
    epsilon = f"epsilon {knob.sensitivity.epsilon:.2f}"
    return f"{text} The chance may be lower, because seeds seem to react differently to {knob.symbol} ({epsilon})."


def _has_one_direction(knob: KnobAnalysis) -> bool:
    """Return whether most of the noise seems to be an effect of the knob that differs from seed to seed.

    The forecast is then too optimistic (docs/verdicts.md).
    """
    cells = len(knob.sensitivity.labels)
    one_knob = knob.isolated.crossed is None and knob.isolated.tuned is None
    return one_knob and cells > 2 and knob.sensitivity.epsilon * (cells - 1) < _ONE_DIRECTION


def _table_of_differences(metric: MetricName, knob: KnobAnalysis) -> Table:
    verdict = knob.sensitivity
    rows = [
        (d.first, d.second, *interval_cells(metric, d.estimate, d.low, d.high), metric_cell(metric, d.at_most),
         _against_margin(d, verdict))
        for d in verdict.differences
    ]  # fmt: skip
    caption = (
        f"Differences of {metric.label} between the values, first minus second, with simultaneous "
        f"{confidence(verdict.alpha)} intervals: {verdict.algorithm}. At most: one-sided bound on its "
        "size; if all are below the smallest difference that matters, the knob does not matter. Two comparison bars "
        "together are at least as long as half of an interval, mostly longer: they compare all cells."
    )
    columns = ("first", "second", "difference", "low", "high", "at most", "against what matters")
    folded = "Every pairwise difference"
    if len(rows) < math.comb(len(verdict.labels), 2):
        folded = f"The difference that decides, of all pairs of {len(verdict.labels)} values"
    return Table(f"differences-{knob.slug}", caption, columns, rows, folded=folded)


def _against_margin(difference: Difference, verdict: SensitivityVerdict) -> str:
    if difference.at_least > verdict.margin:
        return "larger"
    return "smaller" if verdict.flat or difference.reach < verdict.margin else "undecided"
