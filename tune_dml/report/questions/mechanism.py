"""Why? Figures of the mechanism over training, for each value of the knob: norm mean and variance, mu, and what the loss logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tune_dml.published import PublishedCurve
from tune_dml.report import figure as drawing
from tune_dml.report.knob import CurvePoint, MeasuredKnob, same_value
from tune_dml.report.measured import Measured
from tune_dml.report.naming import MetricName, metric_name
from tune_dml.report.questions import knob_question
from tune_dml.report.section import Block, Figure, Section, Table, number, plain, words
from tune_dml.report.traces import Histories, Rows

_FIRST = ("train/norm_mean", "train/norm_variance", "train/mu")
_NOT_A_MECHANISM = {
    "train/loss", "train/lr", "train/eta", "train/step", "train/seconds", "train/direction_variance",
    "train/direction_mean",
}  # fmt: skip
_PUBLISHED = {
    "train/norm_mean": ("final_norm_mean", "norm_mean"),
    "train/norm_variance": ("final_norm_var", "norm_var", "train_norm_var"),
}
MOST_PANELS = 6
MOST_ROWS = 14
"""A longer table is folded."""


@dataclass(frozen=True)
class Final:
    """What a figure was at the last evaluation, beside the paper's."""

    label: str
    metric: MetricName
    n: int
    mean: float
    sd: float
    published: float
    """NaN where the paper printed none."""


@knob_question(order=240, reads_traces=True, unanswered={"mechanism": ()})
def mechanism(measured: Measured, knob: MeasuredKnob) -> Section | None:
    """Means over seeds for each value of the knob and the baseline; None when nothing of the kind was logged."""
    histories = measured.histories[knob.key]
    keys = _keys(histories)
    if not keys:
        return None
    finals = [
        _final(point, histories.by_label[point.label], key, knob.published)
        for key in keys
        for point in knob.points_and_baseline
    ]
    finals = [final for final in finals if final.n]
    body: list[Block] = []
    if histories.panels(keys):
        body.append(_figure(knob, histories, keys))
    body.append(_table(knob, finals))
    title = f"Why? The mechanism behind {knob.symbol}"
    return Section("mechanism", title, "Mechanism", tuple(body), data={"mechanism": finals})


def _keys(histories: Histories) -> list[str]:
    """The logged figures of a mechanism, the known ones first."""
    keys = {key for key in histories.keys if key.startswith("train/")} - _NOT_A_MECHANISM
    return [*(key for key in _FIRST if key in keys), *sorted(keys - set(_FIRST))][:MOST_PANELS]


def _final(point: CurvePoint, trials: Sequence[Rows], key: str, published: Sequence[PublishedCurve]) -> Final:
    last = [rows[-1][key] for rows in trials if rows and key in rows[-1]]
    mean = float(np.mean(last)) if last else math.nan
    sd = float(np.std(last, ddof=1)) if len(last) > 1 else math.nan
    printed = next((value for curve in published if (value := _printed(curve, key, point)) is not None), math.nan)
    return Final(point.label, metric_name(key), len(last), mean, sd, printed)


def _printed(curve: PublishedCurve, key: str, point: CurvePoint) -> float | None:
    """The paper's figure at a value of the knob; of its baseline at ours, which has no value."""
    for name in _PUBLISHED.get(key, ()):
        if point.value is None and name in curve.baseline_others:
            return curve.baseline_others[name]
        for x, y in curve.values(name).items():
            if same_value(point.value, x):
                return y
    return None


def _source(knob: MeasuredKnob, finals: Sequence[Final]) -> str:
    """Where the published figures come from; empty when there are none."""
    names = {name for names in _PUBLISHED.values() for name in names}
    source = next((curve.source for curve in knob.published if names & curve.others.keys()), "")
    return source if any(math.isfinite(final.published) for final in finals) else ""


def _table(knob: MeasuredKnob, finals: Sequence[Final]) -> Table:
    source = _source(knob, finals)
    rows = tuple(
        (words(f.label), words(f.metric.label), plain(f.n), number(f.metric, f.mean), number(f.metric, f.sd),
         number(f.metric, f.published))
        for f in finals
    )  # fmt: skip
    caption = "Mechanism figures at the last evaluation: mean and standard deviation over seeds"
    caption += f", beside those of {source}." if source else "."
    folded = "The figures at the end of training" + (", beside the published ones" if source else "")
    columns = ("value", "figure", "seeds", "mean", "sd", "published")
    table = Table(f"mechanism-{knob.slug}", caption, columns, rows, folded=folded if len(rows) > MOST_ROWS else "")
    return table if source else table.without(["published"])


def _figure(knob: MeasuredKnob, histories: Histories, keys: Sequence[str]) -> Figure:
    panels, omitted = histories.panels(keys), len(histories.omitted)
    names = ", ".join(panel.metric.name for panel in panels)
    return Figure(
        f"mechanism-{knob.slug}",
        lambda narrow, name: drawing.over_training(panels, narrow=narrow, name=name),
        f"Over training, for each value: {names}. The figures at the end are in the table below.",
        "Mean over seeds (lines) and range over seeds (bands), on training batches."
        + (f" For clarity, {omitted} more values are in the table only." if omitted else ""),
    )
