"""Does the sweep agree with the published curve? Level where that is fair, shape always, and why it may not be fair."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tune_dml.published import PublishedCurve
from tune_dml.report.measured import Measured
from tune_dml.report.naming import MetricName
from tune_dml.report.questions.curve import Curve
from tune_dml.space import Value
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
    """One knob's curve against the published one."""

    knob: str
    published: PublishedCurve
    agreement: Agreement
    sentences: tuple[str, ...]

    @property
    def brief(self) -> str:
        """Level and shape in a line."""
        found = self.agreement
        if not found.shared:
            return f"Against {self.published.source}: no value was tried in both."
        what = ", ".join(reason.partition(":")[0] for reason in found.reasons)
        level = f"level not comparable ({what})" if what else f"level: {found.verdict}"
        shape = f"shape: Kendall's tau {found.tau:.2f} over {found.shared} shared values"
        if not math.isfinite(found.tau):
            shape = f"shape: {found.shared} shared values are too few"
        return f"Against {self.published.source}: {level}; {shape}."


def extract(measured: Measured, curve: Curve) -> tuple[Comparison, ...]:
    """Compare with each curve that the papers printed for this knob."""
    return tuple(_compare(measured, curve, published) for published in curve.published)


def _compare(measured: Measured, curve: Curve, published: PublishedCurve) -> Comparison:
    found = judge_agreement(
        curve.fit,
        [_comparable(curve.measured.level(label)) for label in curve.fit.table.labels],
        published.values(),
        runs=published.published.runs,
        reasons=_reasons(measured, published, curve.knob.path),
        caveats=_caveats(published),
    )
    sentences = tuple(_sentences(found, published, measured.metric))
    return Comparison(curve.knob.path, published, found, sentences)


def _comparable(value: Value) -> float | str:
    return float(value) if is_number(value) else str(value)


def _reasons(measured: Measured, published: PublishedCurve, path: str) -> tuple[str, ...]:
    """What differs between the two studies and sets the level of the metric."""
    theirs = published.published
    settings = next((c.cell.settings for c in measured.cells if not c.cell.baseline), {})
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
        if key != path and _plain(ours) != _plain(printed)
    ]
    backbone = _plain(settings.get("model.backbone"))
    if backbone == _plain(theirs.backbone) and backbone in _PRETRAINED and not settings.get("model.weights"):
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


def _plain(name: object) -> str:
    text = "".join(letter for letter in str(name).lower() if letter.isalnum())
    return _ALIASES.get(text, text)


def _sentences(found: Agreement, published: PublishedCurve, metric: MetricName) -> list[str]:
    source = published.source
    said = []
    if found.verdict == "not comparable":
        why = "; ".join(found.reasons) or "no value was tried in both"
        said.append(f"Not comparable in level with {source}: {why}.")
    elif found.verdict == "undecided":
        said.append(f"Undecided whether the level agrees with {source}: there is no noise estimate.")
    else:
        word = {"matches": "matches", "higher": "is higher than", "lower": "is lower than"}.get(found.verdict)
        said.append(
            f"The level {word} {source}."
            if word
            else f"The level is higher at some values and lower at others than {source}."
        )
        widest = max(found.points, key=lambda point: abs(point.gap))
        said.append(
            f"The largest gap is {metric.signed(widest.gap)} {metric.unit} at {widest.value} (95% simultaneous "
            f"prediction interval {metric.number(widest.low)} to {metric.number(widest.high)}; Bonferroni over "
            f"{found.shared} values)."
        )
        said.append(f"Note: {'; '.join(found.caveats)}.")
    said.append(_shape(found))
    return said


def _shape(found: Agreement) -> str:
    if not math.isfinite(found.tau):
        return f"The shapes cannot be compared: {found.shared} shared values, and three are needed."
    interval = ""
    if math.isfinite(found.tau_low):
        interval = f"95% interval {found.tau_low:.2f} to {found.tau_high:.2f} over our noise, "
    return (
        f"Agreement in shape: Kendall's tau {found.tau:.2f} ({interval}{found.shared} shared values; 1 is the same order, "
        "-1 the reverse)."
    )
