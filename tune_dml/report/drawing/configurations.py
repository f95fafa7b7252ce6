"""Many configurations at once: parallel coordinates, the best so far, each knob alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tune_dml.report.drawing.canvas import Anchor, Canvas, Pen
from tune_dml.report.drawing.charts import width_of
from tune_dml.report.drawing.colours import RAMP
from tune_dml.report.drawing.frame import RULE, Frame, KnobAxis, Range, number_text
from tune_dml.report.measured.knob import Axis
from tune_dml.space import Value


@dataclass(frozen=True)
class TriedConfiguration:
    """One configuration."""

    label: str
    values: tuple[Value, ...]
    """One for each knob."""
    score: float
    tip: str


@dataclass(frozen=True)
class SearchedKnob:
    """One knob as an axis."""

    name: str
    axis: Axis
    levels: tuple[Value, ...]


def parallel(knobs: Sequence[SearchedKnob], cells: Sequence[TriedConfiguration], score: str, *, narrow: bool) -> Canvas:
    """A line for each configuration across its knobs to its score, coloured by it; the best lie on top."""
    canvas = Canvas(width_of(narrow), 300)
    top, bottom, left, right = 44.0, 268.0, 56.0, canvas.width - 62.0
    axes = [KnobAxis(knob.axis, knob.levels, bottom - top) for knob in knobs]
    span = Range.of([cell.score for cell in cells])
    step = (right - left) / len(knobs)
    for cell in sorted(cells, key=lambda cell: cell.score):
        shares = [axis.share(value) for axis, value in zip(axes, cell.values, strict=True)] + [span.share(cell.score)]
        points = [(left + step * i, bottom - share * (bottom - top)) for i, share in enumerate(shares)]
        depth = round(span.share(cell.score) * (RAMP - 1))
        canvas.line([p for p in points if math.isfinite(p[1])], Pen(f"ramp{depth}", 1.6, opacity=0.75), cell.tip)
    for place, (name, axis) in enumerate(
        [*((knob.name, axis) for knob, axis in zip(knobs, axes, strict=True)), (score, None)]
    ):
        x = left + step * place
        canvas.line([(x, top), (x, bottom)], RULE)
        last = place == len(knobs)
        anchor: Anchor = "end" if last else "start" if place == 0 else "middle"
        canvas.text(x if place else 4, 15 + 16 * (place % 2), name, "ink", bold=True, anchor=anchor)
        ticks = axis.ticks() if axis else [(span.share(tick), number_text(tick)) for tick in span.ticks(5)]
        end = -math.inf
        for share, text in sorted(ticks):
            if math.isfinite(share) and (bottom - top) * (share - end) >= 15:
                y = bottom - share * (bottom - top)
                canvas.text(x + (6 if last else -6), y + 4, text, "ink", anchor="start" if last else "end", halo=True)
                end = share
    return canvas


def best_so_far(cells: Sequence[TriedConfiguration], sign: float, score: str, *, narrow: bool) -> Canvas:
    """Configurations in the order in which they were proposed, and the best of those before."""
    canvas = Canvas(width_of(narrow), 300)
    frame = Frame(canvas, 56, 36, canvas.width - 14, 246, Range.of([cell.score for cell in cells]))
    across = Range(0.5, len(cells) + 0.5)
    frame.draw_y()
    frame.name_y(score)
    best, steps = -math.inf, []
    for place, cell in enumerate(cells, 1):
        x = frame.at(across.share(place))
        if best > -math.inf:
            steps.append((x, frame.up(sign * best)))
        best = max(best, sign * cell.score)
        steps.append((x, frame.up(sign * best)))
    canvas.line(steps, Pen("mean", 2.2), "best so far")
    for place, cell in enumerate(cells, 1):
        canvas.dot(frame.at(across.share(place)), frame.up(cell.score), Pen("seed"), "circle", size=3.2, text=cell.tip)
    ticks = [tick for tick in across.ticks(8) if tick >= 1 and tick == round(tick)]
    frame.draw_x([(across.share(tick), number_text(tick)) for tick in ticks], "configurations, in order")
    return canvas


def alone(
    knobs: Sequence[SearchedKnob], cells: Sequence[TriedConfiguration], sign: float, score: str, *, narrow: bool
) -> Canvas:
    """A panel for each knob: every configuration at its value, and the best of each value."""
    columns = 1 if narrow else min(len(knobs), 3)
    width = width_of(narrow)
    canvas = Canvas(width, 290.0 * -(-len(knobs) // columns))
    span = Range.of([cell.score for cell in cells])
    for place, knob in enumerate(knobs):
        left, top = (place % columns) * width / columns, 290.0 * (place // columns)
        frame = Frame(canvas, left + 52, top + 36, left + width / columns - 12, top + 236, span)
        axis = KnobAxis(knob.axis, knob.levels, frame.width)
        frame.draw_y(most=5)
        frame.name_y(score if place == 0 else "")
        at = [(axis.share(cell.values[place]), cell) for cell in cells]
        best: dict[float, float] = {}
        for share, cell in at:
            if math.isfinite(share):
                canvas.dot(
                    frame.at(share), frame.up(cell.score), Pen("seed", opacity=0.8), "circle", size=3.2, text=cell.tip
                )
                best[share] = max(best.get(share, -math.inf), sign * cell.score)
        if len(best) < len(cells):
            canvas.line([(frame.at(share), frame.up(sign * best[share])) for share in sorted(best)], Pen("mean", 2.2))
        frame.draw_x(axis.ticks(), knob.name)
    return canvas
