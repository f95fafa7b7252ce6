"""The curve of a knob: differences to the baseline by seed, with the published curves on the same axis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tune_dml.report.analysis.knob import Axis
from tune_dml.report.drawing.canvas import Canvas, Pen, fitted, text_width
from tune_dml.report.drawing.charts import apart, width_of
from tune_dml.report.drawing.frame import AxisRange, Frame, KnobAxis
from tune_dml.report.naming import MetricName
from tune_dml.space import Value
from tune_dml.text import value_text

_MOST_DOTS = 1500
"""Maximum number of trials drawn as dots; with more, only evenly chosen seeds are drawn."""
_SHAPES = ("square", "triangle", "down", "cross")
_BESIDE = 8.0
"""Pixels between the intervals of two arms at one value."""
_ROOM = 168.0
"""Pixels for the names at the right ends of lines."""


@dataclass(frozen=True)
class SeedDot:
    """A trial on a curve."""

    seed: int
    difference: float
    """Difference to the baseline under the same seed, or to the seed's mean; NaN without a reference."""
    absolute: float
    trial: str
    """Key of the trial; empty if several trials are averaged."""


@dataclass(frozen=True)
class Level:
    """One value of the knob with its results."""

    value: Value
    dots: tuple[SeedDot, ...]
    difference: float
    low: float
    """Simultaneous interval of the difference; NaN without one."""
    high: float
    absolute: float
    half_bar: float
    """Half the comparison bar of the absolute mean; NaN without one."""
    lost: tuple[tuple[str, int], ...]
    """(status, number of trials) of trials without a value."""


@dataclass(frozen=True)
class CurveArm:
    """The curve of one arm of the sweep."""

    name: str
    """Empty if there is one arm only."""
    colour: str
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class PublishedLine:
    """A published curve."""

    name: str
    """Short name, written at the curve's end."""
    points: tuple[tuple[float | str, float], ...]
    baseline: float | None
    """Reference of differences; None if the table has no baseline: differences are then to the curve's mean."""
    y_title: str
    comparable: bool
    place: int
    """Index among the published curves of the figure."""

    @property
    def differences(self) -> list[tuple[float | str, float]]:
        """Differences to the curve's own baseline."""
        numbers = [y for _, y in self.points]
        zero = self.baseline if self.baseline is not None else sum(numbers) / len(numbers)
        return [(x, y - zero) for x, y in self.points]


@dataclass(frozen=True)
class CurvePicture:
    """Content of Figure 1."""

    metric: MetricName
    knob: str
    """Title of the horizontal axis."""
    axis: Axis
    values: tuple[Value, ...]
    """Values of the sweep and of the published curves, in order."""
    connected: bool
    """Whether values are connected by lines."""
    arms: tuple[CurveArm, ...]
    printed: tuple[PublishedLine, ...]
    baseline: str
    """Name of the baseline; empty if differences are to the mean over values."""
    baseline_mean: float
    margin: float
    floors: tuple[tuple[str, float], ...] = ()
    """Scores reached without training, by name."""


def thinned(levels: Sequence[Level], seeds: Sequence[int]) -> tuple[Level, ...]:
    """Drop the dots of some seeds if there are too many; means and intervals keep all seeds."""
    most = max(2, _MOST_DOTS // max(1, len(levels)))
    if len(seeds) <= most:
        return tuple(levels)
    kept = {seeds[i * len(seeds) // most] for i in range(most)}
    return tuple(replace(level, dots=tuple(dot for dot in level.dots if dot.seed in kept)) for level in levels)


def draw_differences(shown: CurvePicture, *, narrow: bool) -> Canvas:
    """Draw the differences to the baseline; those of published curves are to their own baseline."""
    width = width_of(narrow)
    kinds = [kind for kind in ("diverged", "failed", "stopped") if any(_lost(level, kind) for level in _levels(shown))]
    room = 14.0 if narrow else _ROOM + 8
    height = 250.0 if narrow else 268.0
    canvas = Canvas(width, 40 + height + 20 * len(kinds) + 46)
    frame = Frame(canvas, 66, 40, width - room, 40 + height, _span(shown))
    axis = KnobAxis(shown.axis, shown.values, frame.width, even=shown.connected)
    _ground(shown, frame)
    frame.draw_y(lambda tick: f"+{tick:g}" if tick > 0 else f"{tick:g}".replace("-", "−"))
    unit = shown.metric.unit_after
    zero = shown.baseline or "the mean of all values"
    if any(level.dots for level in _levels(shown)):
        titles = (f"{shown.metric.label} minus {zero}{unit}", f"minus {zero}{unit}")
    else:
        titles = ("no trial has a result" + ": only published curves" * bool(shown.printed), "no trial has a result")
    frame.name_y(_fitting(titles, 0.92 * (frame.right - frame.left + 58)))
    ends = [(_draw_printed(frame, axis, curve), curve) for curve in shown.printed]
    for place, arm in enumerate(shown.arms):
        _draw_arm(shown, frame, axis, arm, _BESIDE * (place - (len(shown.arms) - 1) / 2))
    _rug(shown, frame, axis, kinds)
    equal = ", equal steps" if axis.crowded else ""
    frame.draw_x([(share, text) for share, text in axis.ticks()], shown.knob + equal, 20.0 * len(kinds))
    if narrow:
        _letters(frame, ends)
    else:
        _names(shown, frame, ends)
    return canvas


def _fitting(texts: Sequence[str], width: float) -> str:
    return next((text for text in texts if text_width(text) < width - 12), texts[-1])


def _levels(shown: CurvePicture) -> list[Level]:
    return [level for arm in shown.arms for level in arm.levels]


def _lost(level: Level, kind: str) -> int:
    others = {"diverged", "stopped"}
    return sum(count for status, count in level.lost if (status if status in others else "failed") == kind)


def _span(shown: CurvePicture) -> AxisRange:
    """Return an axis range for all seeds, means and published curves; wide intervals are clipped."""
    core = [dot.difference for level in _levels(shown) for dot in level.dots]
    core += [y for curve in shown.printed for _, y in curve.differences]
    core = [0.0, -shown.margin, shown.margin, *(number for number in core if math.isfinite(number))]
    low, high = min(core), max(core)
    reach = 0.35 * (high - low)
    ends = [end for level in _levels(shown) for end in (level.low, level.high) if math.isfinite(end)]
    return AxisRange.of([*core, *(min(max(end, low - reach), high + reach) for end in ends)], pad=0.05)


def _ground(shown: CurvePicture, frame: Frame) -> None:
    low, high = frame.up(-shown.margin), frame.up(shown.margin)
    frame.canvas.box(
        frame.left, high, frame.right, low, Pen("margin", opacity=0.2), text="differences too small to matter"
    )
    if shown.baseline:
        _floor_lines(shown, frame, shown.baseline_mean)
    frame.across(0.0, Pen("base", 1.5, "6 3"), shown.baseline)


def _floor_lines(shown: CurvePicture, frame: Frame, zero: float) -> None:
    """Draw a dotted line for each floor within the axis range; `zero` is the axis's origin."""
    for name, value in shown.floors:
        height = frame.up(value - zero)
        if not (math.isfinite(height) and frame.top <= height <= frame.bottom):
            continue
        text = f"{name}: {shown.metric.number(value)}"
        frame.across(value - zero, Pen("lost", 1.2, "2 3"), text)
        frame.canvas.text(frame.left + 4, height - 4, text, "lost")


def _draw_printed(frame: Frame, axis: KnobAxis, curve: PublishedLine) -> float:
    """Draw a published curve and return the height of its end."""
    colour = f"printed{curve.place % 4}"
    placed = [(axis.share(x), x, y) for x, y in curve.differences]
    at = [(frame.at(share), frame.up(y), x, y) for share, x, y in placed if math.isfinite(share)]
    if not at:
        return frame.top
    with frame.canvas.group(f"printed-{curve.place}"):
        if len(at) > 1:
            frame.canvas.line([(px, py) for px, py, _, _ in at], Pen(colour, 1.6, "5 3"))
        for px, py, x, y in at:
            tip = f"{curve.name}, {value_text(x)}: {y:+.2f} to its own baseline"
            frame.canvas.dot(px, py, Pen(colour), _SHAPES[curve.place % 4], size=3.6, text=tip)
    return at[-1][1]


def _draw_arm(shown: CurvePicture, frame: Frame, axis: KnobAxis, arm: CurveArm, shift: float) -> None:
    """Draw an arm, shifted by `shift` pixels so that intervals of several arms do not overlap."""
    placed = [(frame.at(axis.share(level.value)) + shift, level) for level in arm.levels]
    canvas, thin = frame.canvas, "seed" if arm.colour == "mean" else arm.colour
    seeds = sorted({dot.seed for level in arm.levels for dot in level.dots})
    with canvas.group("seeds"):
        for seed in seeds if shown.connected else ():
            line = [
                (x, frame.up(dot.difference)) for x, level in placed for dot in level.dots
                if dot.seed == seed and math.isfinite(dot.difference)
            ]  # fmt: skip
            if len(line) > 1:
                canvas.line(line, Pen(thin, 1.0, opacity=0.5), f"seed {seed}")
        for x, level in placed:
            for dot in level.dots:
                _seed_dot(shown, frame, (x, level, dot), thin)
    means = [(x, frame.up(level.difference), level) for x, level in placed if math.isfinite(level.difference)]
    for x, _, level in means:
        if math.isfinite(level.low) and math.isfinite(level.high):
            frame.upright(x, (level.low, level.high), Pen(arm.colour, 2.4), _interval(shown, level))
    if len(means) > 1 and shown.connected:
        canvas.line([(x, y) for x, y, _ in means], Pen(arm.colour, 2.4))
    for x, y, level in means:
        canvas.dot(x, y, Pen(arm.colour), "diamond", size=5.0, text=_interval(shown, level))


def _seed_dot(shown: CurvePicture, frame: Frame, placed: tuple[float, Level, SeedDot], colour: str) -> None:
    x, level, dot = placed
    if not math.isfinite(dot.difference):
        return
    metric = shown.metric
    zero = shown.baseline or "the seed's mean"
    tip = (
        f"seed {dot.seed}, {value_text(level.value)}: {metric.number(dot.absolute)}, "
        f"{metric.signed(dot.difference)} to {zero}"
    )
    link = f"trial-{dot.trial}" if dot.trial else ""
    frame.canvas.dot(x, frame.up(dot.difference), Pen(colour, opacity=0.8), "circle", size=2.6, text=tip, link=link)


def _interval(shown: CurvePicture, level: Level) -> str:
    metric = shown.metric
    text = f"mean at {value_text(level.value)}: {metric.signed(level.difference)}"
    if math.isfinite(level.low):
        text += f" (interval {metric.signed(level.low)} to {metric.signed(level.high)})"
    return text


def _rug(shown: CurvePicture, frame: Frame, axis: KnobAxis, kinds: Sequence[str]) -> None:
    """Draw a row of counts below the axis for each status of trials without a value."""
    for row, kind in enumerate(kinds):
        height = frame.bottom + 20 * row + 12
        frame.canvas.text(frame.left - 7, height + 4, kind, "lost", anchor="end")
        counts: Counter[Value] = Counter()
        for level in _levels(shown):
            counts[level.value] += _lost(level, kind)
        for value, count in counts.items():
            x = frame.at(axis.share(value))
            if count:
                tip = f"{value_text(value)}: {count} {kind}"
                mark = {"diverged": "cross", "failed": "square", "stopped": "diamond"}[kind]
                frame.canvas.dot(x, height, Pen("lost"), mark, size=4.5, text=tip)
                frame.canvas.text(x + 9, height + 4, str(count), "lost")


def _letters(frame: Frame, ends: Sequence[tuple[float, PublishedLine]]) -> None:
    """Write a letter at the end of each published curve, if there is no room for names."""
    wanted = [(height, index) for index, (height, _) in enumerate(ends)]
    for height, index in apart(wanted, frame.top + 6, frame.bottom - 4, 14.0):
        place = ends[index][1].place
        with frame.canvas.group(f"printed-{place}"):
            frame.canvas.text(frame.right + 3, height + 4, "abcdefgh"[place % 8], f"printed{place % 4}", bold=True)


def _names(shown: CurvePicture, frame: Frame, ends: Sequence[tuple[float, PublishedLine]]) -> None:
    """Write the name of each line at its right end."""
    names: list[tuple[str, str, str, str]] = []
    wanted: list[tuple[float, int]] = []

    def add(height: float, text: str, colour: str, group: str = "", second: str = "") -> None:
        wanted.append((height, len(names)))
        names.append((text, colour, group, second))

    mean = shown.metric.number(shown.baseline_mean)
    base = f"{shown.baseline}: {mean}" if shown.baseline else "mean of all values"
    if not any(level.dots for level in _levels(shown)):
        base = "their own baseline" if shown.printed else ""
    if text_width(base) <= _ROOM:
        add(frame.up(0.0), base, "base")
    else:
        add(frame.up(0.0), shown.baseline, "base", second=mean)
    for arm in shown.arms:
        last = next((level for level in reversed(arm.levels) if math.isfinite(level.difference)), None)
        if last is not None:
            add(frame.up(last.difference), arm.name or "this sweep", arm.colour)
    for height, curve in ends:
        warning = "" if curve.comparable else "not comparable in level"
        add(height, curve.name, f"printed{curve.place % 4}", f"printed-{curve.place}", warning)
    tall = any(second for *_, second in names)
    for height, index in apart(wanted, frame.top + 6, frame.bottom - 14, 31.0 if tall else 17.0):
        text, colour, group, second = names[index]
        with frame.canvas.group(group):
            name = fitted(text, _ROOM)
            frame.canvas.text(frame.right + 8, height + 4, name, colour, bold=colour == "mean")
            if second:
                frame.canvas.text(frame.right + 8, height + 18, second, colour)


def draw_absolute(shown: CurvePicture, *, narrow: bool) -> Canvas:
    """Draw absolute values: one panel for the sweep, and one for each published curve."""
    width, count = width_of(narrow), 1 + len(shown.printed)
    columns = 1 if narrow else min(count, 3)
    rows = -(-count // columns)
    canvas = Canvas(width, 318.0 * rows)
    for place in range(count):
        left = (place % columns) * width / columns
        top = 318.0 * (place // columns)
        box = (left + 52, top + 40, left + width / columns - 12, top + 40 + 220)
        if place:
            _printed_panel(canvas, box, shown, shown.printed[place - 1])
        else:
            _own_panel(canvas, box, shown)
    return canvas


def _own_panel(canvas: Canvas, box: tuple[float, float, float, float], shown: CurvePicture) -> None:
    levels = _levels(shown)
    core = [dot.absolute for level in levels for dot in level.dots] + [level.absolute for level in levels]
    core += [shown.baseline_mean] if shown.baseline else []
    core += [value for _, value in shown.floors]
    frame = Frame(canvas, *box, AxisRange.of(core))
    axis = KnobAxis(shown.axis, shown.values, frame.width, even=shown.connected)
    frame.draw_y(most=5)
    frame.name_y(shown.metric.axis)
    _floor_lines(shown, frame, 0.0)
    if shown.baseline and math.isfinite(shown.baseline_mean):
        frame.across(shown.baseline_mean, Pen("base", 1.5, "6 3"), shown.baseline)
        canvas.text(frame.right, frame.up(shown.baseline_mean) - 5, shown.baseline, "base", anchor="end")
    for arm in shown.arms:
        placed = [(frame.at(axis.share(level.value)), level) for level in arm.levels]
        for x, level in placed:
            for dot in level.dots:
                tip = f"seed {dot.seed}, {value_text(level.value)}: {shown.metric.number(dot.absolute)}"
                canvas.dot(x - 6, frame.up(dot.absolute), Pen("seed", opacity=0.8), "hollow", size=2.6, text=tip)
            if math.isfinite(level.half_bar):
                ends = (level.absolute - level.half_bar, level.absolute + level.half_bar)
                frame.upright(x, ends, Pen(arm.colour, 2.2))
        means = [(x, frame.up(level.absolute)) for x, level in placed if math.isfinite(level.absolute)]
        if len(means) > 1 and shown.connected:
            canvas.line(means, Pen(arm.colour, 2.2))
        for x, y in means:
            canvas.dot(x, y, Pen(arm.colour), "diamond", size=4.5)
    frame.draw_x(axis.ticks(), shown.knob)


def _printed_panel(
    canvas: Canvas, box: tuple[float, float, float, float], shown: CurvePicture, curve: PublishedLine
) -> None:
    colour = f"printed{curve.place % 4}"
    numbers = [y for _, y in curve.points] + ([curve.baseline] if curve.baseline is not None else [])
    frame = Frame(canvas, *box, AxisRange.of(numbers))
    axis = KnobAxis(shown.axis, shown.values, frame.width, even=shown.connected)
    frame.draw_y(most=5)
    frame.name_y(_fitting((f"{curve.name}: {curve.y_title}", curve.name), frame.width + 40))
    if curve.baseline is not None:
        frame.across(curve.baseline, Pen("base", 1.5, "6 3"), "its own baseline")
        canvas.text(frame.right, frame.up(curve.baseline) - 5, "its baseline", "base", anchor="end")
    at = [(frame.at(axis.share(x)), frame.up(y), x, y) for x, y in curve.points if math.isfinite(axis.share(x))]
    if len(at) > 1:
        canvas.line([(px, py) for px, py, _, _ in at], Pen(colour, 1.6, "5 3"))
    for px, py, x, y in at:
        canvas.dot(px, py, Pen(colour), _SHAPES[curve.place % 4], size=3.6, text=f"{value_text(x)}: {y:g}")
    frame.draw_x(axis.ticks(), shown.knob)
