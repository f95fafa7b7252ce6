"""Is the best value inside the tested range, or at its edge? If the values are names, which one is the best?"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trainables.registries import domain_of
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.cells import delta_cells
from tune_dml.report.drawing.charts import Bar, draw_bars
from tune_dml.report.naming import confidence
from tune_dml.report.questions import knob_question
from tune_dml.report.questions.validity.caveats import if_lost_by_result
from tune_dml.report.section import Block, Card, Figure, Fold, Section, Table, Text
from tune_dml.report.steps import Step, extend
from tune_dml.space import Value
from tune_dml.stats.intervals.simultaneous import Bounds
from tune_dml.stats.verdicts.best import HSU, extension, judge_best
from tune_dml.stats.verdicts.chance import p_best
from tune_dml.stats.verdicts.curve import Parabola, fit_parabola
from tune_dml.text import is_number, value_text

Side = Literal["low", "high", ""]  # an end of the range; empty for neither
_MAX_BARS = 20  # maximum number of bars; with more values, the least probable ones have none


@dataclass(frozen=True)
class BestValue:
    """Position of a knob's best value, and the values to add."""

    verdict: Literal["interior", "edge", "found", "undecided", "none"]
    """`found`: one value of an unordered knob is significantly better than every other."""
    reason: str
    best: str  # value with the best mean; empty if no value has a result
    side: Side = ""  # side of the edge, for the verdict `edge`
    candidates: tuple[str, ...] = ()  # values that may be the best; empty if the knob is not sensitive
    within: tuple[str, ...] = ()  # adjacent values that are equivalent to the best
    behind: tuple[tuple[str, float], ...] = ()  # (value, upper bound on its distance to the best) pairs
    natural_bound: bool = False  # whether the edge is the bound of the knob's domain
    ends_in_divergence: bool = False  # whether values beyond the edge diverged
    extend: tuple[float, ...] = ()  # values to add: the next two beyond the edge, on the knob's scale
    alpha: float = field(kw_only=True)
    algorithm: str = HSU


@knob_question(order=210)
def optimum(analysis: Analysis, knob: KnobAnalysis) -> Section:
    """Locate the best value; an optimum at an edge that can be extended is a finding.

    If the values cannot be compared, the section has no title and the page omits it.
    """
    verdict = locate_optimum(analysis, knob)
    title = f"Where is the best {knob.symbol}?" if _is_ordered(knob) else f"Which {knob.symbol} is the best?"
    sentence = f"{_sentence(verdict, knob)} {_caveat(analysis, knob, verdict)}".strip()
    steps = _steps(analysis, knob, verdict)
    probabilities = _best_probabilities(analysis, knob)
    body: list[Block] = [Text(sentence, badge=_verdict_badge(verdict))]
    if probabilities:
        figure = _figure(knob, verdict, probabilities)
        body = [figure, *body] if verdict.candidates else [*body, Fold("Probability of being the best", (figure,))]
    curve = _parabola(analysis, knob)
    if verdict.verdict != "none" and curve is not None and curve.verdict == "interior":
        where = f"between {curve.low:.3g} and {curve.high:.3g}" if math.isfinite(curve.low) else "inside the range"
        fit = f"suggests an optimum {where} (R² {curve.r2:.2f} on left-out values)"
        body.append(Text(f"A parabola through the curve {fit}. This assumes the shape and is not a verdict."))
    if verdict.extend and not steps:
        values = " and ".join(map(value_text, _as_tried(knob, verdict.extend)))
        body.append(Text(f"To extend the range, list more values in a new sweep file: the next are {values}."))
    open_edge = verdict.verdict == "edge" and not (verdict.natural_bound or verdict.ends_in_divergence)
    return Section(
        "optimum",
        "" if knob.isolated.problem else title,
        "Optimum",
        (*body, _table(analysis, knob, verdict)),
        Card(_verdict_badge(verdict), verdict.verdict),
        (sentence,),
        findings=(sentence,) if open_edge else (),
        headline=_headline(knob, verdict),
        steps=steps,
        data={
            "optimum": {
                **vars(verdict), "parabola": curve, "p_best": probabilities, "sentence": sentence,
                "command": steps[0].command if steps else "",
            }
        },
    )  # fmt: skip


def _verdict_badge(verdict: BestValue) -> str:
    return {"edge": "at the edge", "none": "flat"}.get(verdict.verdict, verdict.verdict)


def _headline(knob: KnobAnalysis, verdict: BestValue) -> str:
    if verdict.verdict == "edge":
        best = knob.text_of(verdict.best)
        bound = {"low": "lowest", "high": "highest"}[verdict.side]
        return f"The best {knob.symbol} is {best}, the {bound} value that trained."
    if verdict.verdict == "interior" and len(verdict.candidates) == 1:
        return f"The best {knob.symbol} is {knob.text_of(verdict.best)}, inside the tested range."
    if verdict.verdict in {"interior", "found"} or verdict.candidates:
        values = list(map(knob.text_of, verdict.candidates))
        if len(values) == 1 and verdict.verdict == "found":
            return f"The best {knob.symbol} is {values[0]}."
        if 1 < len(values) <= 4:
            return f"The best {knob.symbol} is {', '.join(values[:-1])} or {values[-1]}."
    return ""


def _steps(analysis: Analysis, knob: KnobAnalysis, verdict: BestValue) -> tuple[Step, ...]:
    if not verdict.extend:
        return ()
    if 0 in verdict.extend and min(_numbers(knob, knob.isolated.table.labels)) > 0:
        return ()  # a value of 0 switches a method off, or makes it collapse
    settles = f"whether the best {knob.symbol} lies beyond the tested range"
    urgency = 50 if verdict.verdict == "edge" else 35
    return extend(analysis.results, settles, urgency, values={knob.path: _as_tried(knob, verdict.extend)})


def _best_probabilities(analysis: Analysis, knob: KnobAnalysis) -> dict[str, float]:
    """Return each value's probability of being the best; empty without a noise estimate."""
    table = knob.better
    if len(table.labels) < 2 or knob.stopped or not table.testable:
        return {}
    tuned = knob.isolated.tuned
    cells = tuned or table
    shares = p_best(cells.values, resolution=cells.resolution, noise=cells.noise)
    if tuned is not None:  # a value is the best if any of its settings is
        shares = np.array([shares[np.array(tuned.rows) == level].sum() for level in range(tuned.levels)])
    return {} if np.isnan(shares).all() else dict(zip(table.labels, shares.tolist(), strict=True))


def _figure(knob: KnobAnalysis, verdict: BestValue, chances: Mapping[str, float]) -> Figure:
    labels = list(chances)
    edges = {labels[0], labels[-1]} if _is_ordered(knob) else set()
    shown = [label for label in labels if chances[label] >= 0.005] if len(labels) > _MAX_BARS else labels
    items = []
    for label in shown:
        notes = ["edge of the range"] if label in edges else []
        notes += ["equivalent to the best"] if label in verdict.within and len(verdict.within) > 1 else []
        colour = "lost" if label in edges else "mean"
        items.append(Bar(label, chances[label], colour, ", ".join(notes), f"{label}: {100 * chances[label]:.1f}%"))
    likely = max(chances, key=lambda label: chances[label])
    listed = "; ".join(f"{label}: {100 * chance:.0f}%" for label, chance in chances.items())
    omitted = len(chances) - len(shown)
    return Figure(
        f"best-{knob.slug}",
        lambda narrow: draw_bars(items, "Probability of being the best", narrow=narrow),
        f"{likely} is the best with probability {100 * chances[likely]:.0f}%. {listed}.",
        "Bayesian probability with a flat prior and the noise of the paired differences. The verdict below is a test instead."
        + (f" {omitted} values below 0.5% are left out." if omitted else ""),
    )


def _is_ordered(knob: KnobAnalysis) -> bool:
    return knob.numeric and knob.knob.domain.scale != "category"


def locate_optimum(analysis: Analysis, knob: KnobAnalysis) -> BestValue:
    """Judge which value of a knob is the best; if the values have an order, judge its position in the range as well."""
    table, sensitivity = knob.isolated.table, knob.sensitivity
    trained = [label for label in table.labels if math.isfinite(knob.isolated.means[label])]
    best = max(trained, key=lambda label: analysis.sign * knob.isolated.means[label], default="")
    if knob.stopped and not knob.isolated.problem:
        reason = f"{len(knob.stopped)} of {len(knob.points)} values were stopped early, and have no final result"
        return BestValue("undecided", reason, best, alpha=sensitivity.alpha)
    if sensitivity.verdict == "insensitive":
        return BestValue("none", "no two values differ by an amount that matters", best, alpha=sensitivity.alpha)
    if sensitivity.verdict == "undecided":
        matters = f"it is undecided whether {knob.symbol} matters"
        reason = "the size of its effect is undecided" if sensitivity.effect else matters
        return BestValue("undecided", reason, best, alpha=sensitivity.alpha)
    values = _numbers(knob, table.labels) if _is_ordered(knob) else range(len(table.labels))
    judged = judge_best(
        knob.better.values, values, analysis.margin, alpha=sensitivity.alpha,
        raced=knob.raced, resolution=table.resolution, noise=knob.better.noise, pairs=_pairs(analysis, knob),
        crossed=knob.isolated.crossed, tuned=knob.isolated.tuned,
    )  # fmt: skip
    candidates, within = ([table.labels[row] for row in rows] for rows in (judged.candidates, judged.within))
    best = max(candidates or trained, key=lambda label: analysis.sign * knob.isolated.means[label])
    behind = tuple((label, judged.behind[row]) for row, label in enumerate(table.labels) if label in trained)
    if not _is_ordered(knob):
        reason = f"{len(candidates)} values may be the best" if candidates else judged.reason
        is_found = len(candidates) == 1
        return BestValue(
            "found" if is_found else "undecided", "every other value is significantly worse" if is_found else reason,
            best, candidates=tuple(candidates), behind=behind, alpha=sensitivity.alpha,
        )  # fmt: skip
    side: Side = "low" if judged.place == "low edge" else "high" if judged.place == "high edge" else ""
    nearest_side: Side = side
    if not side and len(table.labels) > 2 and best in candidates:
        nearest_side = "low" if best == table.labels[0] else "high" if best == table.labels[-1] else ""
    edge = knob.labels.index(trained[-1 if nearest_side == "high" else 0])
    outside = {"low": knob.points[: edge + 1], "high": knob.points[edge:], "": ()}[nearest_side]
    diverges = any(point.diverged for point in outside)
    extend = () if diverges else _values_beyond(analysis, knob, nearest_side, trained)
    return BestValue(
        "edge" if side else "interior" if judged.place == "interior" else "undecided",
        judged.reason, best, side, tuple(candidates), tuple(within), behind,
        natural_bound=bool(side) and not diverges and not extend,
        ends_in_divergence=diverges, extend=extend, alpha=sensitivity.alpha,
    )  # fmt: skip


def _pairs(analysis: Analysis, knob: KnobAnalysis) -> Bounds | None:
    """Return the intervals of the sensitivity verdict, tightened by the intervals against the baseline.

    Larger is better. The tightening ensures that a value above the baseline is better than a value below it.
    """
    if knob.sensitivity.bounds is None:
        return None
    bounds, labels = knob.sensitivity.bounds.times(analysis.sign), knob.sensitivity.labels
    against = {row.label: row for row in analysis.against_baseline or ()}
    cells = dict(zip(knob.labels, knob.cells or knob.labels, strict=True))
    rows = [against.get(cells[label]) for label in labels]
    ends = [sorted((analysis.sign * row.low, analysis.sign * row.high)) for row in rows if row and knob.cells]
    if len(ends) == len(labels):
        low, high = np.array(ends).T
        lower = low[:, None] - high[None, :]
        np.fill_diagonal(lower, 0.0)
        bounds = Bounds(bounds.estimate, np.maximum(bounds.low, lower), np.minimum(bounds.high, -lower.T))
    return bounds.tightened()


def _numbers(knob: KnobAnalysis, labels: Iterable[str]) -> list[float]:
    return [float(value) for label in labels if is_number(value := knob.level(label))]


def _values_beyond(analysis: Analysis, knob: KnobAnalysis, side: Side, trained: Sequence[str]) -> tuple[float, ...]:
    """Return the next values beyond the outermost trained value; empty at the domain's bound, or without a side."""
    numbers = sorted(_numbers(knob, trained))
    if not side or len(numbers) < 2:
        return ()
    domain = domain_of(knob.path, analysis.settings_of(knob.arm))
    tried = {float(level) for level in knob.levels if is_number(level)}
    return tuple(value for value in extension(numbers, side, scale=_scale(knob), domain=domain) if value not in tried)


def _as_tried(knob: KnobAnalysis, values: Sequence[float]) -> list[Value]:
    """Return the values to add, as integers if all tried values are integers."""
    tried = _numbers(knob, knob.isolated.table.labels)
    are_whole = all(float(value).is_integer() for value in [*tried, *values])
    return [int(value) if are_whole else value for value in values]


def _scale(knob: KnobAnalysis) -> Literal["linear", "log"]:
    return "log" if knob.axis == "log" else "linear"


def _sentence(verdict: BestValue, knob: KnobAnalysis) -> str:
    symbol = knob.symbol
    if verdict.verdict == "none":
        return f"{symbol} has no optimum to locate: {verdict.reason}."
    beyond = "Training diverges there or beyond, so the range cannot be extended."
    if verdict.verdict == "edge":
        if not verdict.ends_in_divergence:
            beyond = "The true optimum may lie outside the tested range."
        if verdict.natural_bound:
            beyond = "It is the bound of the knob, so the range cannot be extended."
        return f"The optimum of {symbol} is at the edge: {verdict.reason} ({verdict.best}). {beyond}"
    if verdict.verdict == "found":
        return f"The best {symbol} is {knob.text_of(verdict.best)}: {verdict.reason}."
    named = f" {_named(verdict)}" if verdict.candidates else ""
    if verdict.verdict == "interior":
        return f"The optimum of {symbol} is inside the tested range: {verdict.reason}.{named}"
    end = f" {beyond}" if verdict.ends_in_divergence and named else ""
    clause = f"where the optimum of {symbol} lies" if _is_ordered(knob) else f"which {symbol} is the best"
    return f"It is undecided {clause}: {verdict.reason}.{named}{end}"


def _caveat(analysis: Analysis, knob: KnobAnalysis, verdict: BestValue) -> str:
    """Name the cells of the knob whose lost trials may have changed which value is the best; empty without a claim."""
    cells = next((arm.cells for arm in analysis.arms if arm.name == knob.arm and not arm.baseline), ())
    return if_lost_by_result(cells) if verdict.candidates else ""


def _named(verdict: BestValue) -> str:
    count = len(verdict.candidates)
    named = ", ".join(verdict.candidates) if count <= 6 else f"{count} values"
    text = f"The best is {named}." if count == 1 else f"The best is one of {named}; the best mean is at {verdict.best}."
    if len(verdict.within) > 1:
        text += f" All values from {verdict.within[0]} to {verdict.within[-1]} are equivalent to the best."
    return text


def _parabola(analysis: Analysis, knob: KnobAnalysis) -> Parabola | None:
    """Fit a parabola through the values that trained; None for fewer than five, or without a numeric axis."""
    rows = np.flatnonzero(np.isfinite(knob.isolated.table.values).any(1))
    if len(rows) < 5 or knob.axis == "ordered" or knob.stopped:
        return None
    values = np.array(_numbers(knob, [knob.isolated.table.labels[row] for row in rows]))
    table, resolution = analysis.sign * knob.isolated.table.values[rows], knob.isolated.table.resolution
    return fit_parabola(table, values, scale=_scale(knob), alpha=knob.sensitivity.alpha, resolution=resolution)


def _table(analysis: Analysis, knob: KnobAnalysis, verdict: BestValue) -> Table:
    entries = [
        (label, "yes" if label in verdict.candidates else "no", *delta_cells(analysis.metric, bound))
        for label, bound in verdict.behind
    ]
    caption = f"Each value against the best. {verdict.algorithm}; {confidence(verdict.alpha)} for all at once."
    columns = ("value", "may be the best", "behind by at most")
    folded = "How far each value is behind the best"
    return Table(f"behind-{knob.slug}", caption, columns, entries, folded=folded, for_paper=False)
