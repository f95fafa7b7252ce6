"""Does the sweep agree with the published curve? Level where that is fair, shape always, and why it may not be fair."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tune_dml.published import PublishedCurve
from tune_dml.report.measured import Measured, MeasuredKnob
from tune_dml.report.naming import MetricName
from tune_dml.report.questions import knob_question
from tune_dml.report.section import Block, Card, Heading, Notes, Section, Table, Text, number, signed, words
from tune_dml.stats import Agreement, judge_agreement
from tune_dml.text import is_number

_ALIASES = {
    "cub2002011": "cub200",
    "caltechucsdbirds": "cub200",
    "stanfordcars": "cars196",
    "stanfordonlineproducts": "sop",
    "verificationaccuracy": "verificationacc",
    "linearevaluationtop1": "top1",
    "linearevaluationtop5": "top5",
}
# The three papers never train these from scratch.
_PRETRAINED = {"bninception"}
_SELECTED = {
    "validation": "chosen on validation classes",
    "class_disjoint": "chosen on validation classes",
    "shared_classes": "chosen on validation pictures",
    "paper_test_selection": "chosen on the test classes",
    "test": "chosen on the test classes",
}


@dataclass(frozen=True)
class Comparison:
    """One knob's curve against a published one."""

    published: PublishedCurve
    agreement: Agreement
    sentences: tuple[str, ...]

    @property
    def brief(self) -> str:
        """Level and shape in a line."""
        verdict, source = self.agreement, self.published.source
        if not verdict.shared:
            return f"Against {source}: no value was tried in both."
        what = ", ".join(reason.partition(":")[0] for reason in verdict.reasons)
        level = f"level not comparable ({what})" if what else f"level: {verdict.verdict}"
        shape = f"shape: Kendall's tau {verdict.tau:.2f} over {verdict.shared} shared values"
        if not math.isfinite(verdict.tau):
            shape = f"shape: {verdict.shared} shared values are too few"
        return f"Against {source}: {level}; {shape}."


@knob_question(order=220, unanswered={"agreement": ()})
def agreement(measured: Measured, knob: MeasuredKnob) -> Section | None:
    """One comparison for each curve that the papers printed for this knob; the first has a card."""
    comparisons = [_compare(measured, knob, published) for published in knob.published]
    if not comparisons:
        return None
    body: list[Block] = []
    for index, comparison in enumerate(comparisons):
        body += [Heading(comparison.published.source), Text(" ".join(comparison.sentences))]
        body += [Notes(comparison.published.notes)] if comparison.published.notes else []
        body.append(_table(measured.metric, comparison, f"agreement-{knob.slug}-{index + 1}"))
    first = comparisons[0]
    level = first.agreement.verdict
    word = "level not comparable" if level == "not comparable" else level
    about = f"Does it agree with {first.published.published.paper}?"
    return Section(
        "agreement",
        "Does it agree with the published curve?",
        "Agreement",
        tuple(body),
        Card(word, level.replace(" ", "-"), about, first.brief),
        tuple(comparison.brief for comparison in comparisons),
        data={"agreement": [_data(comparison) for comparison in comparisons]},
    )


def _compare(measured: Measured, knob: MeasuredKnob, published: PublishedCurve) -> Comparison:
    levels = [knob.level(label) for label in knob.fit.table.labels]
    verdict = judge_agreement(
        knob.fit,
        [float(level) if is_number(level) else str(level) for level in levels],
        published.values(),
        runs=published.published.runs,
        reasons=_reasons(measured, published, knob.path),
        caveats=_caveats(published),
    )
    return Comparison(published, verdict, tuple(_sentences(verdict, published, measured.metric)))


def _reasons(measured: Measured, published: PublishedCurve, path: str) -> tuple[str, ...]:
    """What differs between the two studies and sets the level of the metric."""
    theirs, settings = published.published, measured.settings
    selection = str(settings.get("data.split", "class_disjoint"))
    pairs = [
        ("data set", measured.results.plan.dataset, theirs.dataset, ""),
        ("backbone", settings.get("model.backbone"), theirs.backbone, "model.backbone"),
        ("embedding size", settings.get("model.embedding_dim"), theirs.embedding_dim, "model.embedding_dim"),
        ("metric", measured.metric.name, theirs.metric, ""),
    ]
    reasons = [
        f"other {what}: {ours}, not {printed}"
        for what, ours, printed, key in pairs
        if key != path and _letters(ours) != _letters(printed)
    ]
    backbone = _letters(settings.get("model.backbone"))
    if backbone == _letters(theirs.backbone) and backbone in _PRETRAINED and not settings.get("model.weights"):
        reasons.append("other initial weights: ours random, the paper's trained on ImageNet")
    if theirs.selection != "unknown" and _SELECTED[selection] != _SELECTED[theirs.selection]:
        reasons.append(f"other selection: ours {_SELECTED[selection]}, the paper's {_SELECTED[theirs.selection]}")
    return tuple(reasons)


def _caveats(published: PublishedCurve) -> tuple[str, ...]:
    theirs = published.published
    runs = "one run" if theirs.runs == 1 else f"the mean of {theirs.runs} runs"
    caveats = [f"the paper prints {runs} and no standard deviation: its noise is taken to be ours"]
    if theirs.selection == "unknown":
        caveats.append("how the paper selected is not known")
    return tuple(caveats)


def _letters(name: object) -> str:
    """A name without capitals and punctuation, under its usual spelling."""
    text = "".join(letter for letter in str(name).lower() if letter.isalnum())
    return _ALIASES.get(text, text)


def _sentences(verdict: Agreement, published: PublishedCurve, metric: MetricName) -> list[str]:
    source = published.source
    if verdict.verdict == "not comparable":
        why = "; ".join(verdict.reasons) or "no value was tried in both"
        level = [f"Not comparable in level with {source}: {why}."]
    elif verdict.verdict == "undecided":
        level = [f"Undecided whether the level agrees with {source}: there is no noise estimate."]
    else:
        word = {"matches": "matches", "higher": "is higher than", "lower": "is lower than"}.get(verdict.verdict)
        mixed = f"The level is higher at some values and lower at others than {source}."
        widest = max(verdict.points, key=lambda point: abs(point.gap))
        level = [
            f"The level {word} {source}." if word else mixed,
            f"The largest gap is {metric.signed(widest.gap)} {metric.unit} at {widest.value} (95% simultaneous "
            f"prediction interval {metric.number(widest.low)} to {metric.number(widest.high)}; Bonferroni over "
            f"{verdict.shared} values).",
            f"Note: {'; '.join(verdict.caveats)}.",
        ]
    return [*level, _shape(verdict)]


def _shape(verdict: Agreement) -> str:
    if not math.isfinite(verdict.tau):
        return f"The shapes cannot be compared: {verdict.shared} shared values, and three are needed."
    interval = ""
    if math.isfinite(verdict.tau_low):
        interval = f"95% interval {verdict.tau_low:.2f} to {verdict.tau_high:.2f} over our noise, "
    return (
        f"Agreement in shape: Kendall's tau {verdict.tau:.2f} ({interval}{verdict.shared} shared values; 1 is the same "
        "order, -1 the reverse)."
    )


def _table(metric: MetricName, comparison: Comparison, name: str) -> Table:
    """Ours and the paper's, value by value."""
    verdict = comparison.agreement
    rows = tuple(
        (words(f"{p.value:g}" if isinstance(p.value, float) else p.value), number(metric, p.ours),
         number(metric, p.published), signed(metric, p.gap), signed(metric, p.low), signed(metric, p.high))
        for p in verdict.points
    )  # fmt: skip
    how = "No intervals, since the level is not comparable" if verdict.reasons else verdict.algorithm
    caption = f"Our means and the numbers of {comparison.published.source}. {how}."
    table = Table(name, caption, ("value", "ours", "published", "gap", "low", "high"), rows)
    return table.without(["low", "high"]) if verdict.reasons else table


def _data(comparison: Comparison) -> dict[str, object]:
    return {
        **vars(comparison.agreement),
        "source": comparison.published.source,
        "published": comparison.published.published,
        "notes": comparison.published.notes,
        "sentences": comparison.sentences,
    }
