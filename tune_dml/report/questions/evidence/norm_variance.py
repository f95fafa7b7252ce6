"""Do larger gains come with larger reductions of the norms' variance?

After Zhang, Li, Zhang, Deep Metric Learning with Spherical Embedding, rebuttal: each configuration with a penalty on norms
is compared with the same loss and knobs without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainables.config import canonical
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.report.drawing.canvas import Canvas, Pen, text_width
from tune_dml.report.drawing.charts import width_of
from tune_dml.report.drawing.colours import SHAPES, arm_colour
from tune_dml.report.drawing.frame import AxisRange, Frame, number_text
from tune_dml.report.questions import question
from tune_dml.report.section import Figure, Section, Table, Text, delta_cell, text_cell, value_cell

_VARIANCE = "train/norm_variance"
_LEAST = 4  # configurations for a rank correlation
_LINE = 17.0  # pixels between a dot and its name, and between two names


@dataclass(frozen=True)
class _Gain:
    """A configuration with a penalty on norms, compared with the one without."""

    cell: CellAnalysis
    without: str
    left: float
    """Ratio of the final norm variances, with over without the penalty, over shared seeds."""
    gain: float
    """Mean improvement of the sweep's metric over the same seeds."""


@question(order=432, reads_traces=True, unanswered={"norm_variance": ()})
def norm_variance(analysis: Analysis) -> Section | None:
    """Relate gain to variance; None with fewer than two losses or four configurations."""
    gains = _gains(analysis)
    if len(gains) < _LEAST or len({gain.without for gain in gains}) < 2:
        return None
    sentence = _sentence(gains)
    figure = Figure(
        "norm-variance",
        lambda narrow: _draw(analysis, gains, narrow),
        f"{sentence} A dot for each configuration: gain over the same loss without the penalty against the variance left.",
        "Variance of the raw embeddings' norms on training batches at the end, mean over seeds; left: reduced most.",
    )
    title = "Do larger gains come with larger reductions of the norms' variance?"
    data = {
        "norm_variance": [{"cell": g.cell.label, "without": g.without, "left": g.left, "gain": g.gain} for g in gains]
    }
    return Section(
        "norm-variance", title, "Norms and gains", (Text(sentence), figure, _table(analysis, gains)), data=data
    )


def _gains(analysis: Analysis) -> list[_Gain]:
    plain_ones = {_loss_of(cell): cell for cell in analysis.cells if _penalty(cell) == "none"}
    gains = []
    for cell in analysis.cells:
        other = plain_ones.get(_loss_of(cell))
        if other is not None and _penalty(cell) not in {None, "none"}:
            kept, known = _variances(cell), _variances(other)
            seeds = kept.keys() & known.keys() & cell.values.keys() & other.values.keys()
            if seeds and sum(known[seed] for seed in seeds) > 0 and sum(kept[seed] for seed in seeds) > 0:
                left = sum(kept[seed] for seed in seeds) / sum(known[seed] for seed in seeds)
                gain = analysis.sign * float(np.mean([cell.values[seed] - other.values[seed] for seed in seeds]))
                gains.append(_Gain(cell, other.label, left, gain))
    return gains


def _penalty(cell: CellAnalysis) -> object:
    return cell.cell.settings.get("regularizer.name")


def _loss_of(cell: CellAnalysis) -> str:
    return canonical({key: value for key, value in cell.cell.settings.items() if key.startswith("loss.")})


def _variances(cell: CellAnalysis) -> Mapping[int, float]:
    return {trial.seed: trial.metrics[_VARIANCE] for trial in cell.trials if _VARIANCE in trial.metrics}


def _sentence(gains: list[_Gain]) -> str:
    cuts, won = [1 - gain.left for gain in gains], [gain.gain for gain in gains]
    most, best = max(gains, key=lambda gain: 1 - gain.left), max(gains, key=lambda gain: gain.gain)
    from scipy.stats import spearmanr  # takes a second

    rank = spearmanr(cuts, won).statistic if np.ptp(cuts) and np.ptp(won) else 0.0
    return (
        f"Over {len(gains)} configurations of {len({gain.without for gain in gains})} losses, reduction and gain have a "
        f"Spearman correlation of {rank:.2f} (untested: configurations of one loss share a reference). "
        f"{most.cell.label} reduces the variance most, to {100 * most.left:.2g}% of that of {most.without}; "
        f"{best.cell.label} gains most."
    )


def _draw(analysis: Analysis, gains: list[_Gain], narrow: bool) -> Canvas:
    width, names = width_of(narrow), [arm.name for arm in analysis.arms]
    canvas = Canvas(width, 290)
    across = AxisRange.of([gain.left for gain in gains] + [1.0], scale="log", pad=0.05)
    frame = Frame(canvas, 56, 34, width - 14, 240, AxisRange.of([gain.gain for gain in gains] + [0.0]))
    frame.draw_y()
    frame.name_y(f"gain in {analysis.metric.axis}")
    ticks = [(across.share(tick), number_text(tick)) for tick in across.ticks(5)]
    frame.draw_x(ticks, "variance of norms, as a share of that without the penalty (log)")
    frame.across(0.0, Pen("ink", 1.0, "5 3"))
    named: list[tuple[float, float]] = []
    for gain in sorted(gains, key=lambda gain: gain.left):
        place = names.index(gain.cell.cell.arm)
        tip = f"{gain.cell.label}: {analysis.metric.signed(gain.gain)} at {100 * gain.left:.2g}% of the variance"
        x, y = frame.at(across.share(gain.left)), frame.up(gain.gain)
        canvas.dot(x, y, Pen(arm_colour(place)), SHAPES[place % len(SHAPES)], size=4.0, text=tip)
        reach = text_width(gain.cell.label) / 2 + 4
        free = all(abs(x - other) > 2 * reach or abs(y - height) > _LINE for other, height in named)
        if free and frame.left + reach < x < frame.right - reach:  # tooltips and the table name the others
            canvas.text(x, y + _LINE, gain.cell.label, arm_colour(place), anchor="middle")
            named.append((x, y))
    return canvas


def _table(analysis: Analysis, gains: list[_Gain]) -> Table:
    rows = tuple(
        (
            text_cell(gain.cell.label),
            text_cell(gain.without),
            value_cell(float(f"{gain.left:.3g}")),
            delta_cell(analysis.metric, gain.gain),
        )
        for gain in sorted(gains, key=lambda gain: gain.left)
    )
    columns = ("configuration", "without the penalty", "share of the variance left", "gain")
    caption = "Remaining share of the norms' variance, and the gain, over shared seeds."
    return Table("norm-variance", caption, columns, rows, folded="Configuration by configuration")
