"""How long are the embeddings? Compare the norms of two cells' embeddings."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import pstdev

import numpy as np

from trainables.evidence.record import Histogram, Snapshot
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.traces import Pair, ShownCell
from tune_dml.report.drawing.canvas import Canvas, Pen
from tune_dml.report.drawing.charts import figure_width
from tune_dml.report.drawing.colours import arm_colour
from tune_dml.report.drawing.frame import AxisRange, Frame
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Figure, FigureView, Fold, Section, Text


@question(order=430, reads_traces=True)
def norms(analysis: Analysis) -> Section | None:
    """Show the norms of both cells at the end and over training, and the turns of directions; None without evidence."""
    pair = analysis.pair
    if not pair.sides:
        return None
    body: list[Block] = [*map(Text, pair.missing), Text(_sentence(pair)), Fold("Their distribution", (_figure(pair),))]
    return Section("norms", "How long are the embeddings?", "Norms", body)


def _figure(pair: Pair) -> Figure:
    sentence = _sentence(pair)
    shown = [(side.title, side.evidence.norms) for side in pair.sides]
    others = (_over_training(pair), _turns(pair))
    return Figure(
        "norms",
        partial(_draw_histograms, shown, "norm of the raw embedding"),
        sentence,
        "Share of the images per unit; each histogram has its own vertical axis. Over training: the same training "
        "images, recorded during the trial (Zhang et al., rebuttal, Figure 1; turns: supplement C.2).",
        "at the end",
        tuple(view for view in others if view is not None),
        sentence=sentence,
    )


def _sentence(pair: Pair) -> str:
    shown = f"Norms of the raw embeddings of {pair.sides[0].evidence.part}, seed {pair.seed}"
    return f"{shown}: {'; '.join(map(_in_words, pair.sides))}."


def _in_words(side: ShownCell) -> str:
    norms = side.evidence.norms
    spread = math.sqrt(norms.variance) / norms.mean if norms.mean else math.nan
    return (
        f"{side.title} has mean {norms.mean:.3g}, variance {norms.variance:.3g}, "
        f"standard deviation {100 * spread:.2g}% of the mean"
    )


def _over_training(pair: Pair) -> FigureView | None:
    watched = [(side.title, side.evidence.watched.snapshots) for side in pair.sides if side.evidence.watched]
    shown = [(title, snapshots) for title, snapshots in watched if len(snapshots) > 1]
    if not shown:
        return None
    ends = [(title, *(pstdev(snapshots[end].norms) for end in (0, -1))) for title, snapshots in shown]
    spreads = "; ".join(f"{title} from {first:.3g} to {last:.3g}" for title, first, last in ends)
    first, *_, last = shown[0][1]
    sentence = (
        f"Standard deviation of the norms of {len(first.norms)} training images, from step {first.step} to {last.step}, "
        f"seed {pair.seed}: {spreads}."
    )
    draw = partial(_draw_norms_over_training, shown)
    return FigureView("over training", draw, sentence, sentence)


def _turns(pair: Pair) -> FigureView | None:
    snapshots = [(side, side.evidence.watched.snapshots[-1]) for side in pair.sides if side.evidence.watched]
    shown = [(side.title, snapshot.turns) for side, snapshot in snapshots if snapshot.turns is not None]
    if not shown:
        return None
    named = "; ".join(f"{title} mean {turns.mean:.3g}, variance {turns.variance:.2g}" for title, turns in shown)
    where = f"between the last two snapshots, up to step {snapshots[0][1].step}, seed {pair.seed}"
    sentence, axis = f"Turns of the directions {where}: {named}.", "turn (chord, 0 to 2)"
    draw = partial(_draw_histograms, shown, axis)
    return FigureView("turns of directions", draw, sentence, sentence)


def _draw_histograms(shown: Sequence[tuple[str, Histogram]], x_title: str, narrow: bool) -> Canvas:
    """Draw (title, histogram) pairs below each other, with a common horizontal axis."""
    width, tall = figure_width(narrow), 76.0
    canvas = Canvas(width, 10 + (tall + 38) * len(shown) + 32)
    span = AxisRange.of([end for _, counted in shown for end in (counted.low, counted.high)], pad=0.03)
    for index, (title, counted) in enumerate(shown):
        top = 34 + (tall + 38) * index
        edges = np.linspace(counted.low, counted.high, len(counted.counts) + 1)
        share = (100 * np.array(counted.counts) / max(sum(counted.counts), 1) / np.diff(edges)).tolist()
        frame = Frame(canvas, 56, top, width - 14, top + tall, AxisRange(0.0, 1.08 * max(share) or 1.0), span)
        frame.draw_y(ticks=3)
        frame.name_y(f"{title}, % per unit")
        xs = [frame.x_at(edge) for edge in edges.tolist()]
        steps = [(xs[0], frame.bottom)]
        for (left, right), height in zip(pairwise(xs), share, strict=True):
            steps += [(left, frame.y_at(height)), (right, frame.y_at(height))]
        steps.append((xs[-1], frame.bottom))
        canvas.area(steps, Pen(arm_colour(index), opacity=0.3))
        canvas.line(steps, Pen(arm_colour(index), 1.2))
        middle = frame.x_at(counted.mean)
        canvas.line([(middle, frame.top), (middle, frame.bottom)], Pen("ink", 1.2, "5 3"), f"mean {counted.mean:.3g}")
        last = index == len(shown) - 1
        frame.draw_x(f"{x_title} (dashed: mean)" if last else "", None if last else [])
    return canvas


def _draw_norms_over_training(shown: Sequence[tuple[str, Sequence[Snapshot]]], narrow: bool) -> Canvas:
    """Draw (title, snapshots) pairs as panels, with a line per picture and a common vertical axis."""
    columns = 1 if narrow else len(shown)
    width, tall = figure_width(narrow) / columns, 190.0
    canvas = Canvas(columns * width, (tall + 84) * (len(shown) // columns))
    vertical = AxisRange.of([norm for _, snapshots in shown for snapshot in snapshots for norm in snapshot.norms])
    across = AxisRange.of([float(snapshot.step) for _, snapshots in shown for snapshot in snapshots], pad=0.02)
    for index, (title, snapshots) in enumerate(shown):
        left, top = (0.0, 34 + (tall + 84) * index) if narrow else (width * index, 34.0)
        frame = Frame(canvas, left + 56, top, left + width - 14, top + tall, vertical, across)
        frame.draw_y(ticks=5)
        frame.name_y(f"{title}: norm of each picture")
        for picture in range(min(len(snapshot.norms) for snapshot in snapshots)):
            line = [(frame.x_at(shot.step), frame.y_at(shot.norms[picture])) for shot in snapshots]
            ends = f"{snapshots[0].norms[picture]:.3g} to {snapshots[-1].norms[picture]:.3g}"
            canvas.line(line, Pen(arm_colour(index), 1.3, opacity=0.65), f"one picture: {ends}")
        frame.draw_x("training step", across.whole_ticks(5))
    return canvas
