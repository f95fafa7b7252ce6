"""Several knobs, or a search: all configurations at once, and the effect of each knob."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.report.analysis.knob import Axis, KnobAnalysis, axis_of, sort_levels
from tune_dml.report.drawing.canvas import Anchor, Canvas, Pen, fit_text, text_width
from tune_dml.report.drawing.charts import HeatCell, Whisker, draw_heat_map, figure_width
from tune_dml.report.drawing.colours import RAMP
from tune_dml.report.drawing.frame import RULE, AxisRange, Frame, KnobAxis
from tune_dml.report.naming import symbol_of
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Figure, FigureView, Section, whisker_figure
from tune_dml.space import Value
from tune_dml.text import level_key, value_text

_MAX_LINES = 300  # maximum number of configurations in one figure; the best are shown


@dataclass(frozen=True)
class _SearchedKnob:
    path: str
    name: str
    axis: Axis
    levels: tuple[Value, ...]


@question(order=302)
def knobs_together(analysis: Analysis) -> Section | None:
    """Show all configurations; None for a single listed knob, fewer than two results, or several methods."""
    plan = analysis.results.plan
    if sum(not arm.baseline for arm in analysis.arms) > 1:  # methods have different knobs, so no axis is common
        return None
    cells = [cell for cell in analysis.cells if cell.values and not cell.cell.baseline]
    if (len(plan.knobs) < 2 and not plan.search.num_samples) or len(cells) < 2:
        return None
    best = f" The best {_MAX_LINES} of {len(cells)}." if len(cells) > _MAX_LINES else ""
    body: list[Block] = [Figure.of("together", _views(analysis, cells), f"Means over seeds.{best}")]
    judged = [knob for knob in analysis.knobs if knob.sensitivity.largest is not None]
    if len(judged) > 1:
        body.append(_importance(analysis, judged))
    return Section("together", "How do the knobs work together?", "All configurations", body)


def _searched_knobs(analysis: Analysis, cells: Sequence[CellAnalysis]) -> list[_SearchedKnob]:
    """Return every knob of the space, including nuisance knobs, with its tried values."""
    analyses = {knob.path: knob for knob in analysis.knobs}
    axes = []
    for knob in analysis.results.plan.knobs:
        analysed = analyses.get(knob.path)
        name, levels = (analysed.symbol, analysed.levels) if analysed else (symbol_of(knob), sort_levels(knob, cells))
        axes.append(_SearchedKnob(knob.path, name, axis_of(knob, levels), levels))
    return axes


def _views(analysis: Analysis, cells: list[CellAnalysis]) -> list[FigureView]:
    knobs = _searched_knobs(analysis, cells)
    kept = sorted(cells, key=lambda cell: -analysis.sign * cell.mean)[:_MAX_LINES]
    best = kept[0]
    finding = f"The best mean is at {best.label} ({analysis.metric.number(best.mean)})."
    views = [
        FigureView(
            "parallel coordinates", lambda narrow: _draw_parallel_coordinates(analysis, knobs, kept, narrow=narrow),
            f"{finding} A line for each configuration across {', '.join(knob.name for knob in knobs)}.", finding,
        ),
        FigureView(
            "each knob alone", lambda narrow: _draw_each_knob(analysis, knobs, kept, narrow=narrow),
            f"{finding} Every configuration at its value of each knob, and the best of each value.",
            "Every configuration at its value of each knob; the line joins the best of each value.",
        ),
    ]  # fmt: skip
    if len(analysis.knobs) == len(knobs) == 2 and len(cells) > max(len(knob.levels) for knob in knobs):
        views.insert(0, _map(analysis, cells, finding))
    elif len(knobs) == 2:
        described = f"{finding} Every configuration by {knobs[0].name} and {knobs[1].name}."
        colours = f"{finding} Colours run from the lowest mean (blue) to the highest (red)."
        plane = FigureView("map", lambda narrow: _draw_plane(analysis, knobs, kept, narrow=narrow), described, colours)
        views.insert(0, plane)
    if analysis.results.plan.search.num_samples:
        when = f"The best of {len(cells)} configurations was number {cells.index(best) + 1}."
        views.append(
            FigureView("best so far", lambda narrow: _draw_best_so_far(analysis, cells, narrow=narrow), when, when)
        )
    return views


def _tip(analysis: Analysis, cell: CellAnalysis) -> str:
    return f"{cell.label}: {analysis.metric.number(cell.mean)}"


def _map(analysis: Analysis, cells: Sequence[CellAnalysis], finding: str) -> FigureView:
    down, across = analysis.knobs
    by_values = {tuple(level_key(cell.cell.knobs[knob.path]) for knob in (down, across)): cell for cell in cells}

    def field(row: Value, column: Value) -> HeatCell:
        cell = by_values.get((level_key(row), level_key(column)))
        if cell is None:
            return HeatCell(math.nan, "\N{EN DASH}")
        return HeatCell(cell.mean, analysis.metric.number(cell.mean), _tip(analysis, cell))

    fields = [[field(row, column) for column in across.levels] for row in down.levels]
    rows, columns = [value_text(level) for level in down.levels], [value_text(level) for level in across.levels]
    return FigureView(
        "map", lambda narrow: draw_heat_map(rows, columns, fields, (down.symbol, across.symbol), narrow=narrow),
        f"{finding} Means of {analysis.metric.label} by {down.symbol} and {across.symbol}.", finding,
    )  # fmt: skip


def _importance(analysis: Analysis, knobs: Sequence[KnobAnalysis]) -> Figure:
    metric = analysis.metric
    items = []
    for knob in knobs:
        if largest := knob.sensitivity.largest:
            size = abs(largest.estimate)
            tip = f"{knob.symbol}: {metric.amount(size)} between {largest.first} and {largest.second}"
            items.append(Whisker(knob.symbol, size, largest.at_least, largest.reach, tip=tip))
    items.sort(key=lambda item: -item.middle)
    finding = f"{items[0].label} moves {metric.label} most: {'; '.join(item.tip for item in items)}."
    caption = "The largest effect of each knob, averaged over the others, with simultaneous intervals."
    title = f"largest difference between two values{metric.unit_after}"
    return whisker_figure("importance", items, title, finding, caption)


def _draw_parallel_coordinates(
    analysis: Analysis, knobs: Sequence[_SearchedKnob], cells: Sequence[CellAnalysis], *, narrow: bool
) -> Canvas:
    """Draw a line per configuration across the axes of its knobs and its score, coloured by score.

    The highest scores are drawn last. If the names of values need more room, the knobs take several rows; each row ends
    with the axis of the score.
    """
    width, height, top, bottom = figure_width(narrow), 316.0, 60.0, 284.0
    axes = [KnobAxis(knob.axis, knob.levels, bottom - top, even=False) for knob in knobs]
    named_ticks = [axis.named_ticks() for axis in axes]
    widest = min(max(text_width(text) for ticks in named_ticks for _, text in ticks), 0.4 * width)
    ticks = [[(share, fit_text(text, widest)) for share, text in ticks] for ticks in named_ticks]
    left, right = max(56.0, widest + 8), width - 62.0
    rows = -(-len(knobs) // max(1, int((right - left) // (widest + 14))))
    each = -(-len(knobs) // rows)
    canvas = Canvas(width, height * rows)
    span = AxisRange.of([cell.mean for cell in cells])
    for row, start in enumerate(range(0, len(knobs), each)):
        drawn, lower = list(zip(knobs, axes, strict=True))[start : start + each], height * row
        xs = [left + (right - left) / len(drawn) * i for i in range(len(drawn) + 1)]
        for cell in sorted(cells, key=lambda cell: cell.mean):
            shares = [axis.share(cell.cell.knobs[knob.path]) for knob, axis in drawn] + [span.share(cell.mean)]
            points = [(x, lower + bottom - share * (bottom - top)) for x, share in zip(xs, shares, strict=True)]
            pen = Pen(_colour(span, cell), 1.6, opacity=0.75)
            canvas.line([point for point in points if math.isfinite(point[1])], pen, _tip(analysis, cell))
        named = [
            (knob.name, of_knob) for knob, of_knob in zip(knobs[start:], ticks[start : start + each], strict=False)
        ]
        named.append((analysis.metric.axis, span.named_ticks(5)))
        _draw_vertical_axes(canvas, xs, named, lower + top, lower + bottom)
    return canvas


def _colour(span: AxisRange, cell: CellAnalysis) -> str:
    """Return the colour of a configuration by its mean; `span` is the range of all means."""
    return f"ramp{round(span.share(cell.mean) * (RAMP - 1))}"


def _spaced(ticks: Iterable[tuple[float, str]], height: float) -> Iterator[tuple[float, str]]:
    """Yield the ticks (position, text) that have room on a vertical axis, the lowest first."""
    end = -math.inf
    for share, text in sorted(ticks):
        if math.isfinite(share) and height * (share - end) >= 15:
            yield share, text
            end = share


def _draw_vertical_axes(
    canvas: Canvas, xs: Sequence[float], named: Sequence[tuple[str, list[tuple[float, str]]]], top: float, bottom: float
) -> None:
    """Draw vertical axes with names and ticks (position, text); the last axis has its numbers at the right."""
    for index, (x, (name, ticks)) in enumerate(zip(xs, named, strict=True)):
        canvas.line([(x, top), (x, bottom)], RULE)
        last = index == len(xs) - 1
        anchor: Anchor = "end" if last else "start" if index == 0 else "middle"
        room = 2 * (xs[1] - xs[0]) - 12  # names alternate between two lines; the last one is above them
        height = top - (45 if last else 29 - 16 * (index % 2))
        canvas.text(x if index else 4, height, name if last else fit_text(name, room), "ink", bold=True, anchor=anchor)
        for share, text in _spaced(ticks, bottom - top):
            y = bottom - share * (bottom - top)
            canvas.text(x + (6 if last else -6), y + 4, text, "ink", anchor="start" if last else "end", halo=True)


def _draw_plane(
    analysis: Analysis, knobs: Sequence[_SearchedKnob], cells: Sequence[CellAnalysis], *, narrow: bool
) -> Canvas:
    """Draw every configuration at its values of two knobs, coloured by score; the highest scores are drawn last."""
    canvas = Canvas(figure_width(narrow), 330)
    vertical = KnobAxis(knobs[1].axis, knobs[1].levels, 240.0, even=False)
    ticks = [(share, fit_text(text, 0.4 * canvas.width)) for share, text in vertical.named_ticks()]
    left = max(64.0, *(12 + text_width(text) for _, text in ticks))
    frame = Frame(canvas, left, 36, canvas.width - 14, 276).with_knob(knobs[0].axis, knobs[0].levels, even=False)
    for share, text in _spaced(ticks, 240.0):
        canvas.text(frame.left - 7, frame.y_at(share) + 4, text, anchor="end")
    frame.name_y(f"{knobs[1].name}; colour: {analysis.metric.axis}")
    span = AxisRange.of([cell.mean for cell in cells])
    for cell in sorted(cells, key=lambda cell: cell.mean):
        across, up = (cell.cell.knobs[knob.path] for knob in knobs)
        x, y = frame.x_at(across), frame.y_at(vertical.share(up))
        if math.isfinite(x + y):
            canvas.dot(x, y, Pen(_colour(span, cell)), "circle", size=6.0, text=_tip(analysis, cell))
    frame.draw_x(knobs[0].name)
    return canvas


def _draw_best_so_far(analysis: Analysis, cells: Sequence[CellAnalysis], *, narrow: bool) -> Canvas:
    """Draw configurations in the order of their proposal, with the best score so far."""
    canvas, sign = Canvas(figure_width(narrow), 300), analysis.sign
    across = AxisRange(0.5, len(cells) + 0.5)
    frame = Frame(canvas, 56, 36, canvas.width - 14, 246, AxisRange.of([cell.mean for cell in cells]), across)
    frame.draw_y()
    frame.name_y(analysis.metric.axis)
    best, steps = -math.inf, []
    for number, cell in enumerate(cells, 1):
        x = frame.x_at(number)
        if best > -math.inf:
            steps.append((x, frame.y_at(sign * best)))
        best = max(best, sign * cell.mean)
        steps.append((x, frame.y_at(sign * best)))
    canvas.line(steps, Pen("mean", 2.2), "best so far")
    for place, cell in enumerate(cells, 1):
        tip = _tip(analysis, cell)
        canvas.dot(frame.x_at(place), frame.y_at(cell.mean), Pen("seed"), "circle", size=3.2, text=tip)
    frame.draw_x("configurations, in order", across.whole_ticks(8, lowest=1))
    return canvas


def _draw_each_knob(
    analysis: Analysis, knobs: Sequence[_SearchedKnob], cells: Sequence[CellAnalysis], *, narrow: bool
) -> Canvas:
    """Draw a panel per knob: every configuration at its value, and a line through the best score of each value."""
    columns = 1 if narrow else min(len(knobs), 3)
    width = figure_width(narrow)
    canvas = Canvas(width, 290.0 * -(-len(knobs) // columns))
    span, sign = AxisRange.of([cell.mean for cell in cells]), analysis.sign
    for place, knob in enumerate(knobs):
        left, top = (place % columns) * width / columns, 290.0 * (place // columns)
        frame = Frame(canvas, left + 52, top + 36, left + width / columns - 12, top + 236, span)
        frame = frame.with_knob(knob.axis, knob.levels, even=False)
        frame.draw_y(ticks=5)
        frame.name_y(analysis.metric.axis if place == 0 else "")
        best: dict[float, float] = {}
        for cell in cells:
            x, y = frame.x_at(cell.cell.knobs[knob.path]), frame.y_at(cell.mean)
            if math.isfinite(x):
                canvas.dot(x, y, Pen("seed", opacity=0.8), "circle", size=3.2, text=_tip(analysis, cell))
                best[x] = max(best.get(x, -math.inf), sign * cell.mean)
        if len(best) < len(cells):
            canvas.line([(x, frame.y_at(sign * best[x])) for x in sorted(best)], Pen("mean", 2.2))
        frame.draw_x(knob.name)
    return canvas
