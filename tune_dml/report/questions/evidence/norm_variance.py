"""Do larger gains come with larger reductions of the norms' variance?

As in the rebuttal of Zhang, Li, Zhang, Deep Metric Learning with Spherical Embedding, each configuration with a penalty
on norms is compared with the same loss and knobs without the penalty.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np

from trainables.config import canonical
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.report.cells import delta_cells
from tune_dml.report.drawing.canvas import Canvas, Pen, text_width
from tune_dml.report.drawing.charts import figure_width
from tune_dml.report.drawing.colours import SHAPES, arm_colour
from tune_dml.report.drawing.frame import AxisRange, Frame
from tune_dml.report.questions import question
from tune_dml.report.section import Figure, Section, Table, Text

_VARIANCE = "train/norm_variance"
_MIN_CONFIGURATIONS = 4  # minimum number of configurations for a rank correlation
_LINE_HEIGHT = 17.0  # pixels between a dot and its name, and between two names


@dataclass(frozen=True)
class _PenaltyEffect:
    """A configuration with a penalty on norms, compared with the same configuration without it."""

    cell: CellAnalysis
    without: str
    left: float  # final norm variance with the penalty, as a share of that without it, over shared seeds
    gain: float  # mean improvement of the sweep's metric over the same seeds


@question(order=432, reads_traces=True, unanswered={"norm_variance": ()})
def norm_variance(analysis: Analysis) -> Section | None:
    """Relate gains to norm variances; None with fewer than two losses or four configurations."""
    gains = _gains(analysis)
    if len(gains) < _MIN_CONFIGURATIONS or len({_loss_of(gain.cell) for gain in gains}) < 2:
        return None
    sentence = _sentence(analysis, gains)
    figure = Figure(
        "norm-variance",
        lambda narrow: _draw(analysis, gains, narrow),
        f"{sentence} A dot for each configuration: gain over the same loss without the penalty against the variance left.",
        "Variance of the raw embeddings' norms on training batches at the end, mean over seeds; left: reduced most.",
    )
    title = "Do larger gains come with larger reductions of the norms' variance?"
    data = [{**vars(gain), "cell": gain.cell.label} for gain in gains]
    body = (Text(sentence), figure, _table(analysis, gains))
    return Section("norm-variance", title, "Norms and gains", body, data={"norm_variance": data})


def _gains(analysis: Analysis) -> list[_PenaltyEffect]:
    knobs = {knob.path for arm in analysis.arms for knob in arm.knobs if not knob.path.startswith("regularizer.")}
    references = {_loss_of(cell, knobs): cell for cell in analysis.cells if _penalty(cell) == "none"}
    gains = []
    for cell in analysis.cells:
        reference = references.get(_loss_of(cell, knobs))
        if reference is None or _penalty(cell) in {None, "none"}:
            continue
        variances, reference_variances = _variances(cell), _variances(reference)
        seeds = variances.keys() & reference_variances.keys() & cell.values.keys() & reference.values.keys()
        total, reference_total = (sum(by_seed[s] for s in seeds) for by_seed in (variances, reference_variances))
        if total > 0 and reference_total > 0:
            gain = analysis.sign * float(np.mean([cell.values[seed] - reference.values[seed] for seed in seeds]))
            gains.append(_PenaltyEffect(cell, reference.label, total / reference_total, gain))
    return gains


def _penalty(cell: CellAnalysis) -> object:
    return cell.cell.settings.get("regularizer.name")


def _loss_of(cell: CellAnalysis, knobs: Set[str] = frozenset()) -> str:
    """Return the settings of the loss and of `knobs`, as text."""
    settings = cell.cell.settings.items()
    return canonical({key: value for key, value in settings if key.startswith("loss.") or key in knobs})


def _variances(cell: CellAnalysis) -> Mapping[int, float]:
    return {trial.seed: trial.metrics[_VARIANCE] for trial in cell.trials if _VARIANCE in trial.metrics}


def _sentence(analysis: Analysis, gains: list[_PenaltyEffect]) -> str:
    reductions, improvements = [1 - gain.left for gain in gains], [gain.gain for gain in gains]
    lowest, best = min(gains, key=lambda gain: gain.left), max(gains, key=lambda gain: gain.gain)
    from scipy.stats import spearmanr  # takes a second

    varies = np.ptp(reductions) and np.ptp(improvements)
    correlation = spearmanr(reductions, improvements).statistic if varies else 0.0
    return (
        f"Over {len(gains)} configurations of {len({_loss_of(gain.cell) for gain in gains})} losses, reduction and gain have a "
        f"Spearman correlation of {correlation:.2f} (untested: configurations of one loss share a reference). "
        f"{lowest.cell.label} has the least variance, {100 * lowest.left:.2g}% of that of {lowest.without}; "
        f"{best.cell.label} has the largest gain, {analysis.metric.signed_amount(best.gain)}; gains are not tested here."
    )


def _draw(analysis: Analysis, gains: list[_PenaltyEffect], narrow: bool) -> Canvas:
    width, names = figure_width(narrow), [arm.name for arm in analysis.arms]
    canvas = Canvas(width, 290)
    across = AxisRange.of([1.0, *(gain.left for gain in gains)], scale="log", pad=0.05)
    frame = Frame(canvas, 56, 34, width - 14, 240, AxisRange.of([0.0, *(gain.gain for gain in gains)]), across)
    frame.draw_y()
    frame.name_y(f"gain in {analysis.metric.axis}")
    frame.draw_x("variance of norms, as a share of that without the penalty (log)", across.named_ticks(5))
    frame.horizontal_line(0.0, Pen("ink", 1.0, "5 3"))
    named: list[tuple[float, float]] = []
    for gain in sorted(gains, key=lambda gain: gain.left):
        arm = names.index(gain.cell.cell.arm)
        tip = f"{gain.cell.label}: {analysis.metric.signed(gain.gain)} at {100 * gain.left:.2g}% of the variance"
        x, y = frame.x_at(gain.left), frame.y_at(gain.gain)
        canvas.dot(x, y, Pen(arm_colour(arm)), SHAPES[arm % len(SHAPES)], size=4.0, text=tip)
        reach = text_width(gain.cell.label) / 2 + 4
        is_free = all(abs(x - named_x) > 2 * reach or abs(y - named_y) > _LINE_HEIGHT for named_x, named_y in named)
        if is_free and frame.left + reach < x < frame.right - reach:  # tooltips and the table name the other dots
            canvas.text(x, y + _LINE_HEIGHT, gain.cell.label, arm_colour(arm), anchor="middle")
            named.append((x, y))
    return canvas


def _table(analysis: Analysis, gains: list[_PenaltyEffect]) -> Table:
    rows = [
        (gain.cell.label, gain.without, float(f"{gain.left:.3g}"), *delta_cells(analysis.metric, gain.gain))
        for gain in sorted(gains, key=lambda gain: gain.left)
    ]
    columns = ("configuration", "without the penalty", "share of the variance left", "gain")
    caption = "Remaining share of the norms' variance, and the gain, over shared seeds."
    return Table("norm-variance", caption, columns, rows, folded="Configuration by configuration")
