"""Charts that several questions share: lines over training, bars, intervals, heat maps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tune_dml.report.analysis.traces import Line
from tune_dml.report.drawing.canvas import FONT, Canvas, Pen, fit_text, text_width
from tune_dml.report.drawing.colours import DASHES, SHAPES
from tune_dml.report.drawing.frame import RULE, AxisRange, Frame, number_text
from tune_dml.report.naming import MetricName

_TALL = 195.0  # height of a line chart in pixels
_WIDE, _NARROW = 860.0, 358.0  # widths of a figure in pixels, on a desktop and on a phone


def figure_width(narrow: bool) -> float:
    """Return the width of a figure in pixels."""
    return _NARROW if narrow else _WIDE


def draw_lines(lines: Sequence[Line], y_title: str, x_title: str, *, narrow: bool, log: bool = False) -> Canvas:
    """Draw means as lines and ranges as bands, with names at the ends of lines, or below them if `narrow`."""
    width = figure_width(narrow)
    rows = _legend_rows(lines, width) if narrow else []
    room = 0.0 if narrow else min(230.0, max(text_width(item.label) for item in lines) + 26)
    canvas = Canvas(width, _TALL + 84 + 18 * len(rows))
    numbers = [number for item in lines for number in (*item.low, *item.high, *item.mean)]
    span = AxisRange.of([number for number in numbers if not log or number > 0], scale="log" if log else "linear")
    xs = [x for item in lines for x in item.xs]
    across = AxisRange.of(xs, pad=0.02)
    frame = Frame(canvas, 56, 34, width - room - 12, 34 + _TALL, span, across)
    frame.draw_y()
    frame.name_y(y_title)
    are_whole = all(float(x).is_integer() for x in xs)
    frame.draw_x(x_title, across.whole_ticks(5) if are_whole else across.named_ticks(5))
    ends = []
    for index, item in enumerate(lines):
        ends.append(_draw_line(frame, item, index))
    if narrow:
        _legend(canvas, lines, rows, frame.bottom + 56)
    else:
        for height, index in separate_heights(ends, frame.top, frame.bottom, 16.0):
            _name_line(canvas, frame.right + 4, height, lines[index], index)
    return canvas


def _draw_line(frame: Frame, item: Line, index: int) -> float:
    """Draw a line with its band, and return the height of its end; numbers below the axis are drawn at its low end."""
    upper, lower, middle = (
        [(frame.x_at(x), frame.y_at(max(y, frame.y.low))) for x, y in zip(item.xs, ys, strict=True)]
        for ys in (item.high, item.low, item.mean)
    )
    if len(middle) > 1 and item.high != item.low:
        frame.canvas.area([*upper, *reversed(lower)], Pen(item.colour, opacity=0.13))
    frame.canvas.line(middle, Pen(item.colour, 1.8, DASHES[index % len(DASHES)]), item.label)
    for i in range(0, len(middle), max(1, len(middle) // 8)):
        x, y = middle[i]
        tip = f"{item.label}, {number_text(item.xs[i])}: {item.mean[i]:.4g} ({item.low[i]:.4g} to {item.high[i]:.4g})"
        frame.canvas.dot(x, y, Pen(item.colour), SHAPES[index % len(SHAPES)], size=3.0, text=tip)
    return middle[-1][1]


def _name_line(canvas: Canvas, x: float, y: float, item: Line, index: int) -> None:
    canvas.line([(x, y), (x + 16, y)], Pen(item.colour, 2.0, DASHES[index % len(DASHES)]))
    canvas.text(x + 21, y + 4, fit_text(item.label, canvas.width - x - 22), item.colour)


def _legend_rows(lines: Sequence[Line], width: float) -> list[list[int]]:
    rows: list[list[int]] = []
    used = width
    for index, item in enumerate(lines):
        needed = text_width(item.label) + 36
        if used + needed > width:
            rows.append([])
            used = 8.0
        rows[-1].append(index)
        used += needed
    return rows


def _legend(canvas: Canvas, lines: Sequence[Line], rows: Sequence[Sequence[int]], top: float) -> None:
    for row, indices in enumerate(rows):
        x = 8.0
        for index in indices:
            _name_line(canvas, x, top + 18 * row, lines[index], index)
            x += text_width(lines[index].label) + 36


def separate_heights(heights: Sequence[float], top: float, bottom: float, gap: float) -> list[tuple[float, int]]:
    """Separate heights by at least `gap`, within the frame if there is room; return (height, index), ascending."""
    placed: list[tuple[float, int]] = []
    for index, height in sorted(enumerate(heights), key=lambda item: item[1]):
        highest = placed[-1][0] + gap if placed else top
        placed.append((max(height, highest), index))
    limit = bottom
    for rank in range(len(placed) - 1, -1, -1):
        height, index = placed[rank]
        placed[rank] = (min(height, limit), index)
        limit = placed[rank][0] - gap
    return placed


@dataclass(frozen=True)
class Bar:
    """A bar for a share between 0 and 1."""

    label: str
    share: float
    colour: str = "mean"
    note: str = ""
    tip: str = ""


def draw_bars(items: Sequence[Bar], title: str, *, narrow: bool) -> Canvas:
    """Draw horizontal bars of shares, each with its percentage."""
    width, row = figure_width(narrow), 22.0
    left, names = _row_names([item.label for item in items], width)
    notes = max((text_width(item.note) for item in items), default=0.0)
    canvas = Canvas(width, 30 + row * len(items) + 8)
    canvas.text(2, 16, title, "ink", bold=True)
    right = width - 48 - notes
    for index, (name, item) in enumerate(zip(names, items, strict=True)):
        middle = 30 + row * index + row / 2
        reach = left + max(item.share, 0.0) * (right - left)
        canvas.text(left - 8, middle + 4, name, "ink", anchor="end")
        canvas.line([(left, middle - 9), (left, middle + 9)], Pen("rule", 1.0))
        if item.share > 0.002:
            canvas.box(left, middle - 8, reach, middle + 8, Pen(item.colour, opacity=0.85), text=item.tip)
        percent = f"{100 * item.share:.0f}%" if item.share >= 0.01 or item.share == 0 else "<1%"
        note = f"{percent}  {item.note}" if item.note else percent
        canvas.text(reach + 6, middle + 4, note)
    return canvas


@dataclass(frozen=True)
class Whisker:
    """An estimate with its interval."""

    label: str
    middle: float
    low: float
    high: float
    colour: str = "mean"
    shape: str = "circle"
    tip: str = ""


def verdict_whisker(metric: MetricName, label: str, ends: tuple[float, float, float], verdict: str) -> Whisker:
    """Return a difference (estimate, low, high) with its verdict: better, worse or another word."""
    shape, colour = {"better": ("circle", "good"), "worse": ("cross", "bad")}.get(verdict, ("diamond", "base"))
    estimate, low, high = map(metric.signed, ends)
    return Whisker(label, *ends, colour, shape, f"{label}: {estimate} ({low} to {high}), {verdict}")


def draw_whiskers(
    items: Sequence[Whisker], x_title: str, *, narrow: bool, band: float | None = None, zero: bool = True
) -> Canvas:
    """Draw estimates with intervals on one axis; `band` is the half-width of a shaded band around 0."""
    width, row = figure_width(narrow), 24.0
    left, names = _row_names([item.label for item in items], width)
    canvas = Canvas(width, 14 + row * len(items) + 50)
    middles = [item.middle for item in items if math.isfinite(item.middle)]
    core = AxisRange.of([*middles, *([0.0] if zero else []), *([-band, band] if band else [])])
    room = 1.2 * (core.high - core.low)
    ends = [min(max(end, core.low - room), core.high + room) for item in items for end in (item.low, item.high)]
    span = AxisRange.of([*middles, *(end for end in ends if math.isfinite(end)), core.low, core.high], pad=0.03)
    frame = Frame(canvas, left, 10, width - 14, 14 + row * len(items), x=span)
    if band:
        pen, text = Pen("margin", opacity=0.18), "differences too small to matter"
        canvas.box(frame.x_at(-band), frame.top, frame.x_at(band), frame.bottom, pen, text=text)
    if zero:
        canvas.line([(frame.x_at(0.0), frame.top), (frame.x_at(0.0), frame.bottom)], Pen("base", 1.2, "5 3"))
    for index, (name, item) in enumerate(zip(names, items, strict=True)):
        height = frame.top + row * (index + 0.5)
        canvas.text(left - 8, height + 4, name, "ink", anchor="end")
        if math.isfinite(item.low) and math.isfinite(item.high):
            frame.horizontal_interval(height, (item.low, item.high), Pen(item.colour, 1.8), item.tip)
        if math.isfinite(item.middle):
            canvas.dot(frame.x_at(item.middle), height, Pen(item.colour), item.shape, size=4.5, text=item.tip)
    frame.draw_x()
    title = fit_text(x_title, width)  # a title longer than the axis begins below the names of rows
    middle = min(left + frame.width / 2, width - 2 - text_width(title) / 2)
    canvas.text(middle, frame.bottom + 36, title, "ink", anchor="middle")
    return canvas


@dataclass(frozen=True)
class HeatCell:
    """One cell of a heat map."""

    value: float  # NaN without a value
    text: str
    tip: str = ""


def _row_names(rows: Sequence[str], width: float) -> tuple[float, list[str]]:
    """Return the width for row names, and the names cut to that width such that they remain distinct."""
    longest = max((text_width(row) for row in rows), default=0.0) + 16
    for share in (0.38, 0.62):
        left = min(longest, width * share)
        names = [fit_text(row, left - 10) for row in rows]
        if len(set(names)) == len(set(rows)):
            return left, names
    return left, [fit_text(row[::-1], left - 10)[::-1] for row in rows]  # names that differ at the end


def draw_heat_map(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[HeatCell]], titles: tuple[str, str],
    *, narrow: bool,
) -> Canvas:  # fmt: skip
    """Draw a heat map: larger values are darker, and each cell's text is written if there is room.

    `titles` are the titles of the rows and of the columns.
    """
    width = figure_width(narrow)
    left, names = _row_names(rows, width)
    title = fit_text(titles[0], 0.62 * width - 10)
    left = max(left, text_width(title) + 10)
    step = min(72.0, (width - left - 8) / max(1, len(columns)))
    named = step >= max((text_width(cell.text) for row in cells for cell in row), default=0.0) + 4
    tall = 24.0 if len(rows) <= 24 else max(5.0, 580.0 / len(rows))
    canvas = Canvas(width, 46 + tall * len(rows) + 6)
    canvas.text(2, 40, title, "ink", bold=True)
    canvas.text(left, 14, fit_text(titles[1], width - left), "ink", bold=True)
    _name_columns(canvas, columns, left, step)
    depth = _depth([cell.value for row in cells for cell in row])
    for index, (name, row) in enumerate(zip(names, cells, strict=True)):
        top = 46 + tall * index
        if tall >= FONT + 2 or index % math.ceil((FONT + 2) / tall) == 0:
            canvas.text(left - 8, top + tall / 2 + 4, name, "ink", anchor="end")
        for column, cell in enumerate(row):
            x = left + step * column
            if math.isfinite(cell.value):
                shade = Pen("good", opacity=0.06 + 0.44 * depth(cell.value))
                canvas.box(x + 0.5, top + 0.5, x + step - 0.5, top + tall - 0.5, shade, text=cell.tip)
            if named and tall >= FONT + 2:
                lost = not math.isfinite(cell.value)
                canvas.text(x + step / 2, top + tall / 2 + 4, cell.text, "lost" if lost else "ink", anchor="middle")
    return canvas


def _name_columns(canvas: Canvas, columns: Sequence[str], left: float, step: float) -> None:
    end = -math.inf
    for column, name in enumerate(columns):
        middle, reach = left + step * (column + 0.5), text_width(name) / 2
        if middle - reach > end + 4:
            canvas.text(middle, 40, name, anchor="middle")
            end = middle + reach


def _depth(values: Sequence[float]) -> Callable[[float], float]:
    """Return a function that maps the smallest of the values to 0 and the largest to 1."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, span = min(finite), max(finite) - min(finite) or 1.0
    return lambda value: (value - low) / span


def draw_critical_differences(
    items: Sequence[Whisker], joined: Sequence[Sequence[int]], x_title: str, *, narrow: bool
) -> Canvas:
    """Draw names at their means on one axis, and a bar over each group whose members do not differ significantly.

    `joined` has the members of each group, as indices of `items`. The names are written in two columns.
    """
    width, row = figure_width(narrow), 18.0
    half = -(-len(items) // 2)
    top = 16.0 + 11.0 * len(joined)
    canvas = Canvas(width, top + 44 + row * half + 14)
    span = AxisRange.of([item.middle for item in items], pad=0.12)
    room = min(150.0, 0.3 * width)
    frame = Frame(canvas, room, top, width - room, top + 1, x=span)
    ranked = sorted(range(len(items)), key=lambda index: items[index].middle)
    for height, group in enumerate(joined):
        ends = sorted(frame.x_at(items[index].middle) for index in group)
        y = 10 + 11.0 * height
        canvas.line([(ends[0] - 4, y), (ends[-1] + 4, y)], Pen("ink", 4.0, opacity=0.7))
    for rank, index in enumerate(ranked):
        item, x = items[index], frame.x_at(items[index].middle)
        is_left = rank < half
        y = top + 44 + row * (rank if is_left else len(items) - 1 - rank)
        side = room - 8 if is_left else width - room + 8
        canvas.line([(x, frame.bottom), (x, y - 4), (side, y - 4)], Pen(item.colour, 1.2))
        name = fit_text(item.label, room - 10)
        canvas.text(side + (-4 if is_left else 4), y, name, item.colour, anchor="end" if is_left else "start")
        canvas.dot(x, frame.bottom, Pen(item.colour), item.shape, size=4.5, text=item.tip)
    canvas.line([(frame.left, frame.bottom), (frame.right, frame.bottom)], RULE)
    for tick in span.ticks(5):
        canvas.text(frame.x_at(tick), frame.bottom + 17, number_text(tick), anchor="middle", halo=True)
    canvas.text(width / 2, canvas.height - 2, x_title, "ink", anchor="middle", halo=True)
    return canvas
