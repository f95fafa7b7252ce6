"""Charts of embedding norms of two cells: histograms, and norms of the same pictures over training."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from trainables.evidence.record import Histogram, Snapshot
from tune_dml.report.drawing.canvas import Canvas, Pen
from tune_dml.report.drawing.charts import figure_width
from tune_dml.report.drawing.colours import arm_colour
from tune_dml.report.drawing.frame import AxisRange, Frame


def draw_histograms(shown: Sequence[tuple[str, Histogram]], x_title: str, *, narrow: bool) -> Canvas:
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


def draw_norms_over_training(shown: Sequence[tuple[str, Sequence[Snapshot]]], *, narrow: bool) -> Canvas:
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
