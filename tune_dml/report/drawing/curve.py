"""The curve of a knob: differences to the baseline by seed, with the published curves on the same axis."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tune_dml.report.analysis.knob import Axis
from tune_dml.report.drawing.canvas import Canvas, Pen, fit_text, text_width
from tune_dml.report.drawing.charts import figure_width, separate_heights
from tune_dml.report.drawing.frame import AxisRange, Frame, KnobAxis
from tune_dml.report.naming import MetricName
from tune_dml.space import Value
from tune_dml.text import value_text

_MAX_LEVELS = 400  # number of values above which only evenly chosen ones are drawn
_MAX_DOTS = 1500  # number of dots above which only evenly chosen seeds are drawn, at least two
_SHAPES = ("square", "triangle", "down", "cross")
_LOST_MARKS = {"diverged": "cross", "failed": "square", "stopped": "diamond"}
_ARM_DISTANCE = 8.0  # pixels between the intervals of two arms at one value
_ROOM = 168.0  # pixels for the names at the right ends of lines
_BASELINE = Pen("base", 1.5, "6 3")


@dataclass(frozen=True)
class SeedDot:
    """A trial on a curve."""

    seed: int
    difference: float  # difference to the baseline or mean under the same seed; NaN without either
    absolute: float
    trial: str  # key of the trial; empty if several trials are averaged


@dataclass(frozen=True)
class Level:
    """One value of the knob with its results."""

    value: Value
    dots: tuple[SeedDot, ...]
    difference: float
    low: float  # simultaneous interval of the difference; NaN without one
    high: float
    absolute: float
    half_bar: float  # half the comparison bar of the absolute mean; NaN without one
    lost: tuple[tuple[str, int], ...]  # (status, number of trials) for trials without a value


@dataclass(frozen=True)
class CurveArm:
    """The curve of one arm of the sweep."""

    name: str  # name of the arm; empty if it is the only one
    colour: str
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class PublishedLine:
    """A published curve."""

    name: str  # short name, written at the curve's end
    points: tuple[tuple[float | str, float], ...]
    baseline: float | None
    """Reference of the differences; None if the table has no baseline, and the curve's mean is the reference."""
    y_title: str
    comparable: bool
    index: int  # index among the published curves of the figure

    @property
    def differences(self) -> list[tuple[float | str, float]]:
        """Differences to the curve's own baseline, or to its mean if the table has none."""
        numbers = [y for _, y in self.points]
        zero = self.baseline if self.baseline is not None else sum(numbers) / len(numbers)
        return [(x, y - zero) for x, y in self.points]


@dataclass(frozen=True)
class CurvePicture:
    """Content of Figure 1, the curve of a knob."""

    metric: MetricName
    knob: str  # title of the horizontal axis
    axis: Axis
    values: tuple[Value, ...]
    connected: bool
    arms: tuple[CurveArm, ...]
    printed: tuple[PublishedLine, ...]
    baseline: str  # name of the baseline; empty if differences are to the mean over values
    baseline_mean: float
    margin: float
    floors: tuple[tuple[str, float], ...] = ()


def thin_dots(levels: Sequence[Level], seeds: Sequence[int]) -> tuple[Level, ...]:
    """Keep evenly chosen values, and dots of evenly chosen seeds, if there are too many.

    Means and intervals keep all seeds. Every value keeps its place on the axis and its lost trials.
    """
    step = -(-len(levels) // _MAX_LEVELS) or 1
    shown = [_without_marks(level) if i % step else level for i, level in enumerate(levels)]
    count = max(2, _MAX_DOTS * step // max(1, len(levels)))
    kept = {seeds[i * len(seeds) // count] for i in range(count)} if len(seeds) > count else set(seeds)
    return tuple(replace(level, dots=tuple(dot for dot in level.dots if dot.seed in kept)) for level in shown)


def _without_marks(level: Level) -> Level:
    return Level(level.value, (), math.nan, math.nan, math.nan, math.nan, math.nan, level.lost)


def draw_differences(picture: CurvePicture, *, narrow: bool) -> Canvas:
    """Draw differences to the baseline; a published curve is drawn as difference to its own baseline or mean."""
    width, levels = figure_width(narrow), _levels(picture)
    kinds = [kind for kind in _LOST_MARKS if any(_lost(level, kind) for level in levels)]
    room, height = (14.0, 250.0) if narrow else (_ROOM + 8, 268.0)
    canvas = Canvas(width, 40 + height + 20 * len(kinds) + 46)
    frame = Frame(canvas, 66, 40, width - room, 40 + height, _span(picture))
    frame = frame.with_knob(picture.axis, picture.values, even=picture.connected)
    low, high = frame.y_at(-picture.margin), frame.y_at(picture.margin)
    canvas.box(frame.left, high, frame.right, low, Pen("margin", opacity=0.2), text="differences too small to matter")
    if picture.baseline:
        _draw_floors(picture, frame, picture.baseline_mean)
    frame.horizontal_line(0.0, _BASELINE, picture.baseline)
    frame.draw_y(lambda tick: f"+{tick:g}" if tick > 0 else f"{tick:g}".replace("-", "−"))
    unit = picture.metric.unit_after
    zero = picture.baseline or "the mean of all values"
    if any(level.dots for level in levels):
        titles = (f"{picture.metric.label} minus {zero}{unit}", f"minus {zero}{unit}")
    else:
        titles = ("no trial has a result" + ": only published curves" * bool(picture.printed), "no trial has a result")
    frame.name_y(_longest_fitting(titles, 0.92 * (frame.right - frame.left + 58)))
    ends = []
    for curve in picture.printed:
        own = "mean" if curve.baseline is None else "baseline"
        tips = [f"{curve.name}, {value_text(x)}: {y:+.2f} to its own {own}" for x, y in curve.differences]
        with canvas.group(f"printed-{curve.index}"):
            ends.append((_draw_points(frame, curve, curve.differences, tips), curve))
    for place, arm in enumerate(picture.arms):
        _draw_arm(picture, frame, arm, _ARM_DISTANCE * (place - (len(picture.arms) - 1) / 2))
    _draw_lost_counts(picture, frame, kinds)
    equal = ", equal steps" if isinstance(frame.x, KnobAxis) and frame.x.crowded else ""
    frame.draw_x(picture.knob + equal, drop=20.0 * len(kinds))
    if narrow:
        _draw_letters(frame, ends)
    else:
        _draw_names(picture, frame, ends)
    return canvas


def _longest_fitting(texts: Sequence[str], width: float) -> str:
    return next((text for text in texts if text_width(text) < width - 12), texts[-1])


def _levels(picture: CurvePicture) -> list[Level]:
    return [level for arm in picture.arms for level in arm.levels]


def _lost(level: Level, kind: str) -> int:
    """Return the number of lost trials of a kind; a status without a mark of its own counts as `failed`."""
    return sum(count for status, count in level.lost if (status if status in _LOST_MARKS else "failed") == kind)


def _span(picture: CurvePicture) -> AxisRange:
    """Return an axis range for all seeds, means and published curves; wide intervals are clipped."""
    core = [dot.difference for level in _levels(picture) for dot in level.dots]
    core += [y for curve in picture.printed for _, y in curve.differences]
    core = [0.0, -picture.margin, picture.margin, *(number for number in core if math.isfinite(number))]
    low, high = min(core), max(core)
    reach = 0.35 * (high - low)
    ends = [end for level in _levels(picture) for end in (level.low, level.high) if math.isfinite(end)]
    return AxisRange.of([*core, *(min(max(end, low - reach), high + reach) for end in ends)], pad=0.05)


def _draw_floors(picture: CurvePicture, frame: Frame, zero: float) -> None:
    """Draw a dotted line for each floor within the axis range; `zero` is the axis's origin."""
    for name, value in picture.floors:
        height = frame.y_at(value - zero)
        if not (math.isfinite(height) and frame.top <= height <= frame.bottom):
            continue
        text = f"{name}: {picture.metric.number(value)}"
        frame.horizontal_line(value - zero, Pen("lost", 1.2, "2 3"), text)
        frame.canvas.text(frame.left + 4, height - 4, text, "lost")


def _draw_points(
    frame: Frame, curve: PublishedLine, points: Sequence[tuple[float | str, float]], tips: Sequence[str]
) -> float:
    """Draw the points that are on the axis, joined by a line, and return the height of the last one."""
    colour = f"printed{curve.index % 4}"
    placed = [(frame.x_at(x), frame.y_at(y)) for x, y in points]
    shown = [(point, tip) for point, tip in zip(placed, tips, strict=True) if math.isfinite(point[0])]
    if len(shown) > 1:
        frame.canvas.line([point for point, _ in shown], Pen(colour, 1.6, "5 3"))
    for (x, y), tip in shown:
        frame.canvas.dot(x, y, Pen(colour), _SHAPES[curve.index % 4], size=3.6, text=tip)
    return shown[-1][0][1] if shown else frame.top


def _draw_arm(picture: CurvePicture, frame: Frame, arm: CurveArm, shift: float) -> None:
    """Draw an arm, shifted by `shift` pixels so that intervals of several arms do not overlap."""
    placed = [(frame.x_at(level.value) + shift, level) for level in arm.levels]
    canvas, thin = frame.canvas, "seed" if arm.colour == "mean" else arm.colour
    seeds = sorted({dot.seed for level in arm.levels for dot in level.dots})
    with canvas.group("seeds"):
        for seed in seeds if picture.connected else ():
            dots = [(x, dot.difference) for x, level in placed for dot in level.dots if dot.seed == seed]
            line = [(x, frame.y_at(difference)) for x, difference in dots if math.isfinite(difference)]
            if len(line) > 1:
                canvas.line(line, Pen(thin, 1.0, opacity=0.5), f"seed {seed}")
        for x, level in placed:
            for dot in level.dots:
                _draw_seed(picture, frame, (x, level, dot), thin)
    means = [(x, frame.y_at(level.difference), level) for x, level in placed if math.isfinite(level.difference)]
    for x, _, level in means:
        if math.isfinite(level.low) and math.isfinite(level.high):
            frame.vertical_interval(x, (level.low, level.high), Pen(arm.colour, 2.4), _interval(picture, level))
    if len(means) > 1 and picture.connected:
        canvas.line([(x, y) for x, y, _ in means], Pen(arm.colour, 2.4))
    for x, y, level in means:
        canvas.dot(x, y, Pen(arm.colour), "diamond", size=5.0, text=_interval(picture, level))


def _draw_seed(picture: CurvePicture, frame: Frame, placed: tuple[float, Level, SeedDot], colour: str) -> None:
    x, level, dot = placed
    if not math.isfinite(dot.difference):
        return
    metric, zero = picture.metric, picture.baseline or "the seed's mean"
    score, difference = metric.number(dot.absolute), metric.signed(dot.difference)
    tip = f"seed {dot.seed}, {value_text(level.value)}: {score}, {difference} to {zero}"
    link = f"trial-{dot.trial}" if dot.trial else ""
    frame.canvas.dot(x, frame.y_at(dot.difference), Pen(colour, opacity=0.8), "circle", size=2.6, text=tip, link=link)


def _interval(picture: CurvePicture, level: Level) -> str:
    metric = picture.metric
    text = f"mean at {value_text(level.value)}: {metric.signed(level.difference)}"
    if math.isfinite(level.low):
        text += f" (interval {metric.signed(level.low)} to {metric.signed(level.high)})"
    return text


def _draw_lost_counts(picture: CurvePicture, frame: Frame, kinds: Sequence[str]) -> None:
    """Draw a row of counts below the axis for each kind of trials without a value."""
    for row, kind in enumerate(kinds):
        height = frame.bottom + 20 * row + 12
        frame.canvas.text(frame.left - 7, height + 4, kind, "lost", anchor="end")
        counts: Counter[Value] = Counter()
        for level in _levels(picture):
            counts[level.value] += _lost(level, kind)
        for value, count in counts.items():
            x = frame.x_at(value)
            if count:
                tip = f"{value_text(value)}: {count} {kind}"
                frame.canvas.dot(x, height, Pen("lost"), _LOST_MARKS[kind], size=4.5, text=tip)
                frame.canvas.text(x + 9, height + 4, str(count), "lost")


def _draw_letters(frame: Frame, ends: Sequence[tuple[float, PublishedLine]]) -> None:
    """Write a letter at the end of each published curve, if there is no room for names."""
    for height, index in separate_heights([height for height, _ in ends], frame.top + 6, frame.bottom - 4, 14.0):
        number = ends[index][1].index
        with frame.canvas.group(f"printed-{number}"):
            frame.canvas.text(frame.right + 3, height + 4, "abcdefgh"[number % 8], f"printed{number % 4}", bold=True)


def _draw_names(picture: CurvePicture, frame: Frame, ends: Sequence[tuple[float, PublishedLine]]) -> None:
    mean = picture.metric.number(picture.baseline_mean)
    base = f"{picture.baseline}: {mean}" if picture.baseline else "mean of all values"
    if not any(level.dots for level in _levels(picture)):
        base = "their own baseline" if picture.printed else ""
    first, second = (base, "") if text_width(base) <= _ROOM else (picture.baseline, mean)
    names = [(frame.y_at(0.0), first, second, "base", "")]
    for arm in picture.arms:
        last = next((level for level in reversed(arm.levels) if math.isfinite(level.difference)), None)
        if last is not None:
            names.append((frame.y_at(last.difference), arm.name or "this sweep", "", arm.colour, ""))
    for height, curve in ends:
        warning = "" if curve.comparable else "not comparable in level"
        names.append((height, curve.name, warning, f"printed{curve.index % 4}", f"printed-{curve.index}"))
    gap = 31.0 if any(second for _, _, second, *_ in names) else 17.0
    for height, index in separate_heights([name[0] for name in names], frame.top + 6, frame.bottom - 14, gap):
        _, text, second, colour, group = names[index]
        with frame.canvas.group(group):
            name = fit_text(text, _ROOM)
            frame.canvas.text(frame.right + 8, height + 4, name, colour, bold=colour == "mean")
            if second:
                frame.canvas.text(frame.right + 8, height + 18, second, colour)


def draw_absolute(picture: CurvePicture, *, narrow: bool) -> Canvas:
    """Draw absolute values: one panel for the sweep, and one for each published curve."""
    width, count = figure_width(narrow), 1 + len(picture.printed)
    columns = 1 if narrow else min(count, 3)
    rows = -(-count // columns)
    canvas = Canvas(width, 318.0 * rows)
    for place, curve in enumerate((None, *picture.printed)):
        left, top = (place % columns) * width / columns, 318.0 * (place // columns)
        frame = Frame(canvas, left + 52, top + 40, left + width / columns - 12, top + 40 + 220)
        frame = frame.with_knob(picture.axis, picture.values, even=picture.connected)
        if curve:
            _draw_printed_panel(frame, picture, curve)
        else:
            _draw_own_panel(frame, picture)
    return canvas


def _draw_own_panel(frame: Frame, picture: CurvePicture) -> None:
    canvas, levels = frame.canvas, _levels(picture)
    core = [dot.absolute for level in levels for dot in level.dots] + [level.absolute for level in levels]
    core += [picture.baseline_mean] if picture.baseline else []
    core += [value for _, value in picture.floors]
    frame = replace(frame, y=AxisRange.of(core))
    frame.draw_y(ticks=5)
    frame.name_y(picture.metric.axis)
    _draw_floors(picture, frame, 0.0)
    if picture.baseline and math.isfinite(picture.baseline_mean):
        last = [level.absolute for arm in picture.arms for level in arm.levels[-1:]]
        _draw_baseline(frame, picture.baseline_mean, picture.baseline, picture.baseline, last)
    for arm in picture.arms:
        placed = [(frame.x_at(level.value), level) for level in arm.levels]
        for x, level in placed:
            for dot in level.dots:
                tip = f"seed {dot.seed}, {value_text(level.value)}: {picture.metric.number(dot.absolute)}"
                canvas.dot(x - 6, frame.y_at(dot.absolute), Pen("seed", opacity=0.8), "hollow", size=2.6, text=tip)
            if math.isfinite(level.half_bar):
                ends = (level.absolute - level.half_bar, level.absolute + level.half_bar)
                frame.vertical_interval(x, ends, Pen(arm.colour, 2.2))
        means = [(x, frame.y_at(level.absolute)) for x, level in placed if math.isfinite(level.absolute)]
        if len(means) > 1 and picture.connected:
            canvas.line(means, Pen(arm.colour, 2.2))
        for x, y in means:
            canvas.dot(x, y, Pen(arm.colour), "diamond", size=4.5)
    frame.draw_x(picture.knob)


def _draw_baseline(frame: Frame, value: float, name: str, tip: str, ends: Sequence[float]) -> None:
    """Draw a baseline with its name at the right, below the line if the curves, which end at `ends`, end above it."""
    frame.horizontal_line(value, _BASELINE, tip)
    drop = 14 if ends and min(ends) > value else -5
    frame.canvas.text(frame.right, frame.y_at(value) + drop, name, "base", anchor="end")


def _draw_printed_panel(frame: Frame, picture: CurvePicture, curve: PublishedLine) -> None:
    numbers = [y for _, y in curve.points] + ([curve.baseline] if curve.baseline is not None else [])
    frame = replace(frame, y=AxisRange.of(numbers))
    frame.draw_y(ticks=5)
    frame.name_y(_longest_fitting((f"{curve.name}: {curve.y_title}", curve.name), frame.width + 40))
    if curve.baseline is not None:
        _draw_baseline(frame, curve.baseline, "its baseline", "its own baseline", [y for _, y in curve.points[-1:]])
    _draw_points(frame, curve, curve.points, [f"{value_text(x)}: {y:g}" for x, y in curve.points])
    frame.draw_x(picture.knob)
