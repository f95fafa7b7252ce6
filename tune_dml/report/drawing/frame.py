"""Axes and ticks in a rectangle of a canvas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from tune_dml.report.analysis.knob import Axis
from tune_dml.report.drawing.canvas import Canvas, Pen, fit_text, text_width
from tune_dml.space import Value
from tune_dml.text import is_number, level_key, value_text

Scale = Literal["linear", "log"]
_GRID, RULE = Pen("grid", 1.0), Pen("rule", 1.0)
_CLOSEST = 34.0
"""Minimum distance in pixels between values of a knob; if values are closer, all are drawn at equal distances."""
_HEAD = 3.6  # size of the arrowhead of an interval that leaves the frame
_MAX_NAMED = 12  # maximum number of values with a tick each; with more values, ticks are round numbers


@dataclass(frozen=True)
class AxisRange:
    """Range and scale of an axis."""

    low: float
    high: float
    scale: Scale = "linear"

    @classmethod
    def of(cls, numbers: Sequence[float], *, scale: Scale = "linear", pad: float = 0.06) -> AxisRange:
        """Return a range around the finite numbers; `pad` is the padding at each end, as a share of the span."""
        finite = [number for number in numbers if math.isfinite(number)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        if scale == "log":
            room = 10 ** (pad * (math.log10(high / low) or 1.0))
            return cls(low / room, high * room, scale)
        span = high - low or abs(high) * 0.1 or 1.0
        return cls(low - pad * span, high + pad * span, scale)

    def share(self, value: float) -> float:
        """Return the position of a value, 0 at the low end and 1 at the high end."""
        if self.scale == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int = 6) -> list[float]:
        """Return about `count` round numbers within the range."""
        if self.scale == "log":
            return _decades(self.low, self.high, count)
        step = _round_step((self.high - self.low) / max(count - 1, 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def named_ticks(self, count: int = 6) -> list[tuple[float, str]]:
        """Return (position, text) of about `count` round numbers within the range."""
        return [(self.share(tick), number_text(tick)) for tick in self.ticks(count)]

    def whole_ticks(self, count: int, lowest: int = 0) -> list[tuple[float, str]]:
        """Return (position, text) of about `count` whole numbers within the range, from `lowest` on."""
        ticks = [tick for tick in self.ticks(count) if math.isclose(tick, round(tick), abs_tol=1e-9)]
        return [(self.share(round(tick)), number_text(round(tick))) for tick in ticks if tick >= lowest]


_UNIT = AxisRange(0.0, 1.0)


def _round_step(lowest: float) -> float:
    """Return the smallest step of at least `lowest` that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(lowest))
    return next(times * power for times in (1.0, 2.0, 5.0, 10.0) if times * power >= lowest * (1 - 1e-9))


def _decades(low: float, high: float, count: int) -> list[float]:
    """Return powers of ten within the range; if there are fewer than two, also 2 and 5 times powers of ten."""
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    if len(powers) < 2:
        span = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        fine = [times * 10.0**power for power in span for times in (1, 2, 5)]
        return [tick for tick in fine if low <= tick <= high]
    stride = -(-len(powers) // count)
    return [10.0**power for power in powers][::stride]


def number_text(value: float) -> str:
    """Format a tick, with a true minus sign."""
    text = f"{value:.6g}"
    if "e" in text:
        text = text.replace("e-0", "e-").replace("e+0", "e")
    return "0" if text in {"-0", "0"} else text.replace("-", "−", 1) if text.startswith("-") else text


class KnobAxis:
    """Positions of a knob's values between 0 and 1, and their ticks."""

    def __init__(self, kind: Axis, values: Sequence[Value], width: float, *, even: bool = True):
        """Place the values; with `even`, a few values that are too close are placed at equal distances."""
        self.values, self._range, self.crowded = tuple(values), _UNIT, False
        self._keys = [level_key(value) for value in self.values]
        numbers = [float(value) for value in self.values if is_number(value)]
        self.equal = kind == "ordered" or len(numbers) < len(self.values)
        if not self.equal and numbers:
            self._range = AxisRange.of(numbers, scale="log" if kind == "log" else "linear", pad=0.08)
            positions = sorted(self._range.share(number) * width for number in numbers)
            are_close = any(after - before < _CLOSEST for before, after in pairwise(positions))
            self.equal = self.crowded = even and are_close and len(numbers) <= _MAX_NAMED

    def share(self, value: Value) -> float:
        """Return the position of a value; NaN if it is not on the axis."""
        if self.equal:
            key = level_key(value)
            return (self._keys.index(key) + 0.5) / len(self._keys) if key in self._keys else math.nan
        if not is_number(value) or (self._range.scale == "log" and value <= 0):
            return math.nan
        return self._range.share(float(value))

    def named_ticks(self) -> list[tuple[float, str]]:
        """Return (position, text) of each tick."""
        if self.equal or len(self.values) <= _MAX_NAMED:
            return [(self.share(value), value_text(value)) for value in self.values]
        return self._range.named_ticks()


@dataclass(frozen=True)
class Frame:
    """Rectangle of a canvas with a horizontal and a vertical axis."""

    canvas: Canvas
    left: float
    top: float
    right: float
    bottom: float
    y: AxisRange = _UNIT
    x: AxisRange | KnobAxis = _UNIT

    def with_knob(self, kind: Axis, values: Sequence[Value], *, even: bool) -> Frame:
        """Return the frame with a knob's values on its horizontal axis; see `KnobAxis`."""
        return replace(self, x=KnobAxis(kind, values, self.width, even=even))

    @property
    def width(self) -> float:
        """Width in pixels."""
        return self.right - self.left

    def x_at(self, value: Any) -> float:
        """Return the x coordinate of a value; NaN if it is not on the axis."""
        return self.left + self.x.share(value) * self.width

    def y_at(self, value: float) -> float:
        """Return the y coordinate of a value."""
        return self.bottom - self.y.share(value) * (self.bottom - self.top)

    def vertical_interval(self, x: float, ends: tuple[float, float], pen: Pen, text: str = "") -> None:
        """Draw a vertical interval at x, with an arrowhead at each end that lies outside the frame."""
        low, high = (self.y_at(end) for end in ends)
        self.canvas.line([(x, min(max(y, self.top), self.bottom)) for y in (low, high)], pen, text)
        if high < self.top:
            self.canvas.dot(x, self.top + _HEAD, Pen(pen.colour), "triangle", size=_HEAD, text=text)
        if low > self.bottom:
            self.canvas.dot(x, self.bottom - _HEAD, Pen(pen.colour), "down", size=_HEAD, text=text)

    def horizontal_interval(self, y: float, ends: tuple[float, float], pen: Pen, text: str = "") -> None:
        """Draw a horizontal interval at y, with an arrowhead at each end that lies outside the frame."""
        low, high = (self.x_at(end) for end in ends)
        self.canvas.line([(min(max(x, self.left), self.right), y) for x in (low, high)], pen, text)
        if low < self.left:
            self.canvas.dot(self.left + _HEAD, y, Pen(pen.colour), "left", size=_HEAD, text=text)
        if high > self.right:
            self.canvas.dot(self.right - _HEAD, y, Pen(pen.colour), "right", size=_HEAD, text=text)

    def horizontal_line(self, value: float, pen: Pen, text: str = "") -> None:
        """Draw a horizontal line at a value, over the whole width of the frame."""
        self.canvas.line([(self.left, self.y_at(value)), (self.right, self.y_at(value))], pen, text)

    def draw_y(self, name: Callable[[float], str] = number_text, ticks: int = 6) -> None:
        """Draw about `ticks` horizontal grid lines and their numbers; `name` formats a number."""
        for tick in self.y.ticks(ticks):
            self.horizontal_line(tick, _GRID)
            self.canvas.text(self.left - 7, self.y_at(tick) + 4, name(tick), anchor="end")

    def draw_x(self, title: str = "", ticks: Sequence[tuple[float, str]] | None = None, drop: float = 0.0) -> None:
        """Draw the horizontal axis; ticks (position, text) with room and the title are `drop` pixels below it."""
        ground = self.bottom + drop
        self.canvas.line([(self.left, self.bottom), (self.right, self.bottom)], RULE)
        named: list[tuple[float, float]] = []
        shown = [(x, text) for x, text in self.x.named_ticks() if math.isfinite(x)] if ticks is None else ticks
        for share, text in dict.fromkeys([*shown[-1:], *shown]):
            x, reach = self.left + share * self.width, text_width(text) / 2 + 4
            self.canvas.line([(x, ground), (x, ground + 4)], RULE)
            if all(abs(x - named_x) > reach + named_reach for named_x, named_reach in named):
                self.canvas.text(x, ground + 17, text, anchor="middle")
                named.append((x, reach))
        if title:
            title = fit_text(title, self.width + 2 * min(self.left, self.canvas.width - self.right))
            self.canvas.text(self.left + self.width / 2, ground + 36, title, "ink", anchor="middle")

    def name_y(self, text: str) -> None:
        """Write the title of the vertical axis above it."""
        x = max(2.0, self.left - 46)
        self.canvas.text(x, self.top - 12, fit_text(text, 0.92 * (self.right + 12 - x)), "ink", bold=True)
