"""Why? Figures of the mechanism over training, for each value of the knob: norm mean and variance, mu, and what the loss logs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tune_dml.published import PublishedCurve
from tune_dml.report.naming import MetricName, metric_name
from tune_dml.report.questions import directions, histories
from tune_dml.report.questions.curve import Curve, CurvePoint, same_value
from tune_dml.report.questions.histories import Histories, Panel
from tune_dml.stats import mean_interval

_FIRST = ("train/norm_mean", "train/norm_variance", "train/mu")
_NOT_A_MECHANISM = {"train/loss", "train/lr", "train/eta", "train/step", "train/seconds", *directions.KEYS}
_PUBLISHED = {
    "train/norm_mean": ("final_norm_mean", "norm_mean"),
    "train/norm_variance": ("final_norm_var", "norm_var", "train_norm_var"),
}
MOST_PANELS = 6


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


@dataclass(frozen=True)
class Mechanism:
    """Panels over training and the final figures."""

    panels: tuple[Panel, ...]
    finals: tuple[Final, ...]
    source: str
    """Where the published figures come from; empty when there are none."""
    omitted: tuple[str, ...]
    """Values whose lines are left out so that the panels can be read; they are in the table."""


def extract(curve: Curve, logged: Histories) -> Mechanism | None:
    """Means over seeds for each value of the knob and the baseline; None when nothing of the kind was logged."""
    points = [*curve.points, *([curve.baseline] if curve.baseline else [])]
    keys = _keys(logged)
    if not keys:
        return None
    panels = [panel for key in keys if (panel := logged.panel(key)) is not None]
    finals = [_final(point, logged.by_label[point.label], key, curve.published) for key in keys for point in points]
    used = next((found.source for found in curve.published if _printed(found) is not None), "")
    return Mechanism(
        tuple(panels),
        tuple(final for final in finals if final.n),
        used if any(math.isfinite(final.published) for final in finals) else "",
        logged.omitted,
    )


def _keys(logged: Histories) -> list[str]:
    """The logged figures of a mechanism, the known ones first."""
    found = {key for key in logged.keys if key.startswith("train/")} - _NOT_A_MECHANISM
    return [*(key for key in _FIRST if key in found), *sorted(found - set(_FIRST))][:MOST_PANELS]


def _final(
    point: CurvePoint,
    trials: list[list[dict[str, float]]],
    key: str,
    published: tuple[PublishedCurve, ...],
) -> Final:
    last = [rows[-1][key] for rows in trials if rows and key in rows[-1]]
    found = mean_interval(last)
    printed = next((value for curve in published if (value := _printed_at(curve, key, point)) is not None), None)
    return Final(point.label, metric_name(key), found.n, found.mean, found.sd, math.nan if printed is None else printed)


def _printed(curve: PublishedCurve) -> str | None:
    return next((name for names in _PUBLISHED.values() for name in names if name in curve.others), None)


def _printed_at(curve: PublishedCurve, key: str, point: CurvePoint) -> float | None:
    """The paper's figure at a value of the knob; of its baseline at ours, which has no value."""
    for name in _PUBLISHED.get(key, ()):
        if point.value is None and name in curve.baseline_others:
            return curve.baseline_others[name]
        for x, y in curve.values(name).items():
            if same_value(point.value, x):
                return y
    return None


def draw(found: Mechanism, *, narrow: bool, name: str) -> str:
    """A panel for each figure: mean over seeds as a line, range over seeds as a band."""
    return histories.draw(found.panels, narrow=narrow, name=name)
