"""Charts of many configurations: parallel coordinates, best so far, one panel per knob."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tune_dml.report.analysis.knob import Axis
from tune_dml.report.drawing.canvas import Anchor, Canvas, Pen, fit_text, text_width
from tune_dml.report.drawing.charts import figure_width
from tune_dml.report.drawing.colours import RAMP
from tune_dml.report.drawing.frame import RULE, AxisRange, Frame, KnobAxis
from tune_dml.space import Value


@dataclass(frozen=True)
class TriedConfiguration:
    """A configuration with its score."""

    label: str
    values: tuple[Value, ...]
    score: float
    tip: str


@dataclass(frozen=True)
class SearchedKnob:
    """A searched knob, drawn as an axis."""

    name: str
    axis: Axis
    levels: tuple[Value, ...]


def draw_parallel_coordinates(
    knobs: Sequence[SearchedKnob], cells: Sequence[TriedConfiguration], score: str, *, narrow: bool
) -> Canvas:
    """Draw a line per configuration across the axes of its knobs and its score, coloured by score.

    The highest scores are drawn last. If the names of values need more room, the knobs take several rows; each row ends
    with the axis of the score.
    """
    width, height, top, bottom = figure_width(narrow), 316.0, 60.0, 284.0
    axes = [KnobAxis(knob.axis, knob.levels, bottom - top, even=False) for knob in knobs]
    widest = max(text_width(text) for axis in axes for _, text in axis.named_ticks())
    left, right = max(56.0, widest + 8), width - 62.0
    rows = -(-len(knobs) // max(1, int((right - left) // (widest + 14))))
    each = -(-len(knobs) // rows)
    canvas = Canvas(width, height * rows)
    span = AxisRange.of([cell.score for cell in cells])
    for row, start in enumerate(range(0, len(knobs), each)):
        part, lower = slice(start, start + each), height * row
        xs = [left + (right - left) / len(axes[part]) * i for i in range(len(axes[part]) + 1)]
        for cell in sorted(cells, key=lambda cell: cell.score):
            shares = [axis.share(value) for axis, value in zip(axes[part], cell.values[part], strict=True)]
            shares.append(span.share(cell.score))
            points = [(x, lower + bottom - share * (bottom - top)) for x, share in zip(xs, shares, strict=True)]
            depth = round(span.share(cell.score) * (RAMP - 1))
            canvas.line([p for p in points if math.isfinite(p[1])], Pen(f"ramp{depth}", 1.6, opacity=0.75), cell.tip)
        scores = span.named_ticks(5)
        named = [
            *((knob.name, axis.named_ticks()) for knob, axis in zip(knobs[part], axes[part], strict=True)),
            (score, scores),
        ]
        _draw_vertical_axes(canvas, xs, named, lower + top, lower + bottom)
    return canvas


def _draw_vertical_axes(
    canvas: Canvas,
    xs: Sequence[float],
    named: Sequence[tuple[str, list[tuple[float, str]]]],
    top: float,
    bottom: float,
) -> None:
    """Draw vertical axes with names and ticks (position, text); the last axis has its numbers at the right."""
    for index, (x, (name, ticks)) in enumerate(zip(xs, named, strict=True)):
        canvas.line([(x, top), (x, bottom)], RULE)
        last = index == len(xs) - 1
        anchor: Anchor = "end" if last else "start" if index == 0 else "middle"
        room = 2 * (xs[1] - xs[0]) - 12  # names alternate between two lines; the last one is above them
        height = top - (45 if last else 29 - 16 * (index % 2))
        canvas.text(x if index else 4, height, name if last else fit_text(name, room), "ink", bold=True, anchor=anchor)
        end = -math.inf
        for share, text in sorted(ticks):
            if math.isfinite(share) and (bottom - top) * (share - end) >= 15:
                y = bottom - share * (bottom - top)
                canvas.text(x + (6 if last else -6), y + 4, text, "ink", anchor="start" if last else "end", halo=True)
                end = share


def draw_plane(
    knobs: Sequence[SearchedKnob], cells: Sequence[TriedConfiguration], score: str, *, narrow: bool
) -> Canvas:
    """Draw every configuration at its values of two knobs, coloured by score; the highest scores are drawn last."""
    canvas = Canvas(figure_width(narrow), 330)
    vertical = KnobAxis(knobs[1].axis, knobs[1].levels, 240.0, even=False)
    left = max(64.0, *(12 + text_width(text) for _, text in vertical.named_ticks()))
    frame = Frame(canvas, left, 36, canvas.width - 14, 276).with_knob(knobs[0].axis, knobs[0].levels, even=False)
    end = -math.inf
    for share, text in sorted(vertical.named_ticks()):
        if math.isfinite(share) and 240 * (share - end) >= 15:
            canvas.text(frame.left - 7, frame.y_at(share) + 4, text, anchor="end")
            end = share
    frame.name_y(f"{knobs[1].name}; colour: {score}")
    span = AxisRange.of([cell.score for cell in cells])
    for cell in sorted(cells, key=lambda cell: cell.score):
        x, y = frame.x_at(cell.values[0]), frame.y_at(vertical.share(cell.values[1]))
        if math.isfinite(x + y):
            depth = round(span.share(cell.score) * (RAMP - 1))
            canvas.dot(x, y, Pen(f"ramp{depth}"), "circle", size=6.0, text=cell.tip)
    frame.draw_x(knobs[0].name)
    return canvas


def draw_best_so_far(cells: Sequence[TriedConfiguration], sign: float, score: str, *, narrow: bool) -> Canvas:
    """Draw configurations in the order of their proposal, with the best score so far."""
    canvas = Canvas(figure_width(narrow), 300)
    across = AxisRange(0.5, len(cells) + 0.5)
    frame = Frame(canvas, 56, 36, canvas.width - 14, 246, AxisRange.of([cell.score for cell in cells]), across)
    frame.draw_y()
    frame.name_y(score)
    best, steps = -math.inf, []
    for number, cell in enumerate(cells, 1):
        x = frame.x_at(number)
        if best > -math.inf:
            steps.append((x, frame.y_at(sign * best)))
        best = max(best, sign * cell.score)
        steps.append((x, frame.y_at(sign * best)))
    canvas.line(steps, Pen("mean", 2.2), "best so far")
    for place, cell in enumerate(cells, 1):
        canvas.dot(frame.x_at(place), frame.y_at(cell.score), Pen("seed"), "circle", size=3.2, text=cell.tip)
    frame.draw_x("configurations, in order", across.whole_ticks(8, lowest=1))
    return canvas


def draw_each_knob(
    knobs: Sequence[SearchedKnob], cells: Sequence[TriedConfiguration], sign: float, score: str, *, narrow: bool
) -> Canvas:
    """Draw a panel per knob: every configuration at its value, and a line through the best score of each value."""
    columns = 1 if narrow else min(len(knobs), 3)
    width = figure_width(narrow)
    canvas = Canvas(width, 290.0 * -(-len(knobs) // columns))
    span = AxisRange.of([cell.score for cell in cells])
    for place, knob in enumerate(knobs):
        left, top = (place % columns) * width / columns, 290.0 * (place // columns)
        frame = Frame(canvas, left + 52, top + 36, left + width / columns - 12, top + 236, span)
        frame = frame.with_knob(knob.axis, knob.levels, even=False)
        frame.draw_y(ticks=5)
        frame.name_y(score if place == 0 else "")
        best: dict[float, float] = {}
        for cell in cells:
            x, y = frame.x_at(cell.values[place]), frame.y_at(cell.score)
            if math.isfinite(x):
                canvas.dot(x, y, Pen("seed", opacity=0.8), "circle", size=3.2, text=cell.tip)
                best[x] = max(best.get(x, -math.inf), sign * cell.score)
        if len(best) < len(cells):
            canvas.line([(x, frame.y_at(sign * best[x])) for x in sorted(best)], Pen("mean", 2.2))
        frame.draw_x(knob.name)
    return canvas
