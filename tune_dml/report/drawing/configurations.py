"""Charts of many configurations: parallel coordinates, best so far, one panel per knob."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tune_dml.report.analysis.knob import Axis
from tune_dml.report.drawing.canvas import Anchor, Canvas, Pen, fitted, text_width
from tune_dml.report.drawing.charts import width_of
from tune_dml.report.drawing.colours import RAMP
from tune_dml.report.drawing.frame import RULE, AxisRange, Frame, KnobAxis, number_text
from tune_dml.space import Value


@dataclass(frozen=True)
class TriedConfiguration:
    """A configuration with its score."""

    label: str
    values: tuple[Value, ...]
    """Value of each knob."""
    score: float
    tip: str


@dataclass(frozen=True)
class SearchedKnob:
    """A searched knob, drawn as an axis."""

    name: str
    axis: Axis
    levels: tuple[Value, ...]


def parallel(knobs: Sequence[SearchedKnob], cells: Sequence[TriedConfiguration], score: str, *, narrow: bool) -> Canvas:
    """Draw a line per configuration across its knobs to its score, coloured by score, best on top.

    Knobs continue in further rows if the names of their values need more room; each row ends at the score.
    """
    width, height, top, bottom = width_of(narrow), 316.0, 60.0, 284.0
    axes = [KnobAxis(knob.axis, knob.levels, bottom - top, even=False) for knob in knobs]
    widest = max(text_width(text) for axis in axes for _, text in axis.ticks())
    left, right = max(56.0, widest + 8), width - 62.0
    rows = -(-len(knobs) // max(1, int((right - left) // (widest + 14))))
    each = -(-len(knobs) // rows)
    canvas = Canvas(width, height * rows)
    span = AxisRange.of([cell.score for cell in cells])
    for row, start in enumerate(range(0, len(knobs), each)):
        part, lower = slice(start, start + each), height * row
        places = [left + (right - left) / len(axes[part]) * i for i in range(len(axes[part]) + 1)]
        for cell in sorted(cells, key=lambda cell: cell.score):
            shares = [axis.share(value) for axis, value in zip(axes[part], cell.values[part], strict=True)]
            shares.append(span.share(cell.score))
            points = [(x, lower + bottom - share * (bottom - top)) for x, share in zip(places, shares, strict=True)]
            depth = round(span.share(cell.score) * (RAMP - 1))
            canvas.line([p for p in points if math.isfinite(p[1])], Pen(f"ramp{depth}", 1.6, opacity=0.75), cell.tip)
        scores = [(span.share(tick), number_text(tick)) for tick in span.ticks(5)]
        named = [
            *((knob.name, axis.ticks()) for knob, axis in zip(knobs[part], axes[part], strict=True)),
            (score, scores),
        ]
        _upright(canvas, places, named, lower + top, lower + bottom)
    return canvas


def _upright(
    canvas: Canvas,
    places: Sequence[float],
    named: Sequence[tuple[str, list[tuple[float, str]]]],
    top: float,
    bottom: float,
) -> None:
    """Draw vertical axes with names and ticks (position, text); the last axis has its numbers at the right."""
    for place, (x, (name, ticks)) in enumerate(zip(places, named, strict=True)):
        canvas.line([(x, top), (x, bottom)], RULE)
        last = place == len(places) - 1
        anchor: Anchor = "end" if last else "start" if place == 0 else "middle"
        room = 2 * (places[1] - places[0]) - 12  # names stand in two lines by turns, the last one above
        height = top - (45 if last else 29 - 16 * (place % 2))
        canvas.text(x if place else 4, height, name if last else fitted(name, room), "ink", bold=True, anchor=anchor)
        end = -math.inf
        for share, text in sorted(ticks):
            if math.isfinite(share) and (bottom - top) * (share - end) >= 15:
                y = bottom - share * (bottom - top)
                canvas.text(x + (6 if last else -6), y + 4, text, "ink", anchor="start" if last else "end", halo=True)
                end = share


def plane(knobs: Sequence[SearchedKnob], cells: Sequence[TriedConfiguration], score: str, *, narrow: bool) -> Canvas:
    """Draw every configuration at its values of two knobs, coloured by score, best on top."""
    canvas = Canvas(width_of(narrow), 330)
    upright = KnobAxis(knobs[1].axis, knobs[1].levels, 240.0, even=False)
    left = max(64.0, *(12 + text_width(text) for _, text in upright.ticks()))
    frame = Frame(canvas, left, 36, canvas.width - 14, 276, AxisRange(0.0, 1.0))
    across = KnobAxis(knobs[0].axis, knobs[0].levels, frame.width, even=False)
    end = -math.inf
    for share, text in sorted(upright.ticks()):
        if math.isfinite(share) and 240 * (share - end) >= 15:
            canvas.text(frame.left - 7, frame.up(share) + 4, text, anchor="end")
            end = share
    frame.name_y(f"{knobs[1].name}; colour: {score}")
    span = AxisRange.of([cell.score for cell in cells])
    for cell in sorted(cells, key=lambda cell: cell.score):
        x, y = (axis.share(value) for axis, value in zip((across, upright), cell.values, strict=True))
        if math.isfinite(x + y):
            depth = round(span.share(cell.score) * (RAMP - 1))
            canvas.dot(frame.at(x), frame.up(y), Pen(f"ramp{depth}"), "circle", size=6.0, text=cell.tip)
    frame.draw_x(across.ticks(), knobs[0].name)
    return canvas


def best_so_far(cells: Sequence[TriedConfiguration], sign: float, score: str, *, narrow: bool) -> Canvas:
    """Draw configurations in the order of their proposal, with the best score so far."""
    canvas = Canvas(width_of(narrow), 300)
    frame = Frame(canvas, 56, 36, canvas.width - 14, 246, AxisRange.of([cell.score for cell in cells]))
    across = AxisRange(0.5, len(cells) + 0.5)
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
    frame.draw_x(across.whole_ticks(8, least=1), "configurations, in order")
    return canvas


def alone(
    knobs: Sequence[SearchedKnob], cells: Sequence[TriedConfiguration], sign: float, score: str, *, narrow: bool
) -> Canvas:
    """Draw a panel per knob with every configuration at its value, and the best of each value."""
    columns = 1 if narrow else min(len(knobs), 3)
    width = width_of(narrow)
    canvas = Canvas(width, 290.0 * -(-len(knobs) // columns))
    span = AxisRange.of([cell.score for cell in cells])
    for place, knob in enumerate(knobs):
        left, top = (place % columns) * width / columns, 290.0 * (place // columns)
        frame = Frame(canvas, left + 52, top + 36, left + width / columns - 12, top + 236, span)
        axis = KnobAxis(knob.axis, knob.levels, frame.width, even=False)
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
