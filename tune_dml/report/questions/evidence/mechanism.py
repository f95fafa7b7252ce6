"""Why? Logged quantities over training for each value of the knob: norms, mu, and quantities of the loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tune_dml.papers.published import PublishedCurve
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import CurvePoint, KnobAnalysis, same_value
from tune_dml.report.analysis.traces import Histories, Rows
from tune_dml.report.cells import metric_cells
from tune_dml.report.naming import MetricName, metric_name
from tune_dml.report.questions import knob_question
from tune_dml.report.questions.evidence._over_training import figure_of, last_values_sentence, means_and_ranges
from tune_dml.report.section import Block, Figure, Fold, Section, Table, Text

_FIRST = ("train/norm_mean", "train/norm_variance", "train/mu")
_EXCLUDED = {"train/loss", "train/lr", "train/eta", "train/step", "train/seconds"}
_DIRECTIONS = ("train/direction_variance", "train/direction_mean")
"""How evenly the embeddings turn between snapshots (Zhang et al., Spherical Embedding, supplement C.2 and Figure 2)."""
_NO_DIRECTIONS = (
    "No trial logged how its embeddings turned: each was shorter than 25 steps, or ran before this was recorded."
)
_PUBLISHED = {
    "train/norm_mean": ("final_norm_mean", "norm_mean"),
    "train/norm_variance": ("final_norm_var", "norm_var", "train_norm_var"),
}
_MAX_PANELS = 8


@dataclass(frozen=True)
class FinalFigure:
    """A logged quantity at the last evaluation, and the published number."""

    label: str
    metric: MetricName
    n: int
    mean: float
    sd: float
    published: float  # the published number; NaN if the paper prints none


@knob_question(order=410, reads_traces=True, unanswered={"mechanism": ()})
def mechanism(analysis: Analysis, knob: KnobAnalysis) -> Section | None:
    """Show the means over seeds for each value and the baseline.

    Return None if no such quantity was logged, or if the knob's values cannot be compared.
    """
    if knob.isolated.problem:
        return None
    histories, finished = analysis.histories[knob.key], analysis.finished_histories[knob.key]
    keys = _keys(histories)
    if not keys:
        return None
    finals = [
        _final(point, list(finished.by_label[point.label].values()), key, knob.published)
        for key in keys
        for point in knob.points_and_baseline
    ]
    finals = [final for final in finals if final.n]
    sentences = {
        key: _directions_sentence(knob, finished) if key in _DIRECTIONS else last_values_sentence(finished, key)
        for key in keys
    }
    figure = _figure(analysis, knob, histories, sentences)
    body: list[Block] = [figure] if figure else []
    if not set(_DIRECTIONS) & set(keys):
        body.append(Text(_NO_DIRECTIONS))
    fold = Fold("What training logged, for each value", (*body, _table(knob, finals)))
    title = f"Why? The mechanism behind {knob.symbol}"
    return Section("mechanism", title, "Mechanism", (fold,), data={"mechanism": finals})


def _keys(histories: Histories) -> list[str]:
    keys = {key for key in histories.keys if key.startswith("train/")} - _EXCLUDED
    directions = [key for key in _DIRECTIONS if key in keys]
    ordered = [*(key for key in _FIRST if key in keys), *sorted(keys - {*_FIRST, *directions})]
    return [*ordered[: _MAX_PANELS - len(directions)], *directions]


def _final(point: CurvePoint, trials: Sequence[Rows], key: str, published: Sequence[PublishedCurve]) -> FinalFigure:
    last = [rows[-1][key] for rows in trials if rows and key in rows[-1]]
    mean = float(np.mean(last)) if last else math.nan
    sd = float(np.std(last, ddof=1)) if len(last) > 1 else math.nan
    printed = next((value for curve in published if (value := _printed(curve, key, point)) is not None), math.nan)
    return FinalFigure(point.label, metric_name(key), len(last), mean, sd, printed)


def _printed(curve: PublishedCurve, key: str, point: CurvePoint) -> float | None:
    """Return the published number at a value of the knob, or for the baseline; None if there is none."""
    for name in _PUBLISHED.get(key, ()):
        if point.value is None and name in curve.baseline_others:
            return curve.baseline_others[name]
        for x, y in curve.values(name).items():
            if same_value(point.value, x):
                return y
    return None


def _source(knob: KnobAnalysis, finals: Sequence[FinalFigure]) -> str:
    names = {name for names in _PUBLISHED.values() for name in names}
    source = next((curve.source for curve in knob.published if names & curve.others.keys()), "")
    return source if any(math.isfinite(final.published) for final in finals) else ""


def _table(knob: KnobAnalysis, finals: Sequence[FinalFigure]) -> Table:
    source = _source(knob, finals)
    rows = [(f.label, f.metric.label, f.n, *metric_cells(f.metric, f.mean, f.sd, f.published)) for f in finals]
    caption = "Logged quantities at the last evaluation: mean and standard deviation over the seeds that finished"
    caption += f", beside those of {source}." if source else "."
    folded = "The quantities at the end of training" + (", beside the published ones" if source else "")
    columns = ("value", "figure", "seeds", "mean", "sd", "published")
    table = Table(f"mechanism-{knob.slug}", caption, columns, rows, folded=folded)
    return table if source else table.without(["published"])


def _figure(
    analysis: Analysis, knob: KnobAnalysis, histories: Histories, sentences: Mapping[str, str]
) -> Figure | None:
    caption = f"{means_and_ranges(analysis, knob)}, on training batches."
    if set(_DIRECTIONS) & set(sentences):
        caption += (
            " Directions: how far the unit embeddings of a fixed sample of training pictures moved between two snapshots "
            "(chord, 0 to 2); after Zhang et al., supplement C.2."
        )
    name = f"mechanism-{knob.slug}"
    return figure_of(
        name, histories, sentences, caption, labels=knob.labels, ordered=knob.numeric, metric=analysis.metric
    )


def _directions_sentence(knob: KnobAnalysis, histories: Histories) -> str:
    variances, means = histories.lines(_DIRECTIONS[0]), histories.lines(_DIRECTIONS[1])
    if not variances:
        return ""
    period = min(line.xs[0] for line in variances.values())
    last = {label: line.mean[-1] for label, line in variances.items()}
    low, high = min(last, key=lambda label: last[label]), max(last, key=lambda label: last[label])

    def numbers(label: str) -> str:
        return f"{last[label]:.2g}{f', mean turn {means[label].mean[-1]:.2g}' if label in means else ''}"

    found = f"the smallest variance for {low} ({numbers(low)}) and the largest for {high} ({numbers(high)})"
    if low == high:
        found = f"a variance of {numbers(low)} {f'for {low}' if len(last) == 1 else 'at every value'}"
    text = f"At step {variances[high].xs[-1]}, the turns over the last {period} steps had {found}."
    baseline = knob.baseline.label if knob.baseline else None
    if baseline in last and baseline not in {low, high}:
        text += f" The baseline {baseline} had {numbers(baseline)}."
    meaning = "A smaller variance means that embeddings turned more equally; with a small mean, they hardly turned."
    return f"{text} {meaning}"
