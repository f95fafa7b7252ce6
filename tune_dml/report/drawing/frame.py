"""Axes and ticks in a rectangle of a canvas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from tune_dml.report.drawing.canvas import Canvas, Pen, fitted, text_width
from tune_dml.space import Value
from tune_dml.text import is_number, value_text

Scale = Literal["linear", "log"]
_GRID, RULE = Pen("grid", 1.0), Pen("rule", 1.0)
_CLOSEST = 34.0
"""Minimum distance in pixels between values of a knob; closer ones are drawn at equal steps."""
_HEAD = 3.6
"""Size of the arrowhead of an interval that leaves the frame."""
_MOST_NAMED = 12
"""Maximum number of values named on an axis; with more, ticks are round numbers."""


@dataclass(frozen=True)
class AxisRange:
    """Range and scale of an axis."""

    low: float
    high: float
    scale: Scale = "linear"

    @classmethod
    def of(
        cls, numbers: Sequence[float], *, scale: Scale = "linear", pad: float = 0.06, least: float = 0.0
    ) -> AxisRange:
        """Return a range around the finite numbers with padding; `least` is the smallest span."""
        finite = [number for number in numbers if math.isfinite(number)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        if scale == "log":
            span = math.log10(high / low) or 1.0
            return cls(low / 10 ** (pad * span), high * 10 ** (pad * span), scale)
        room = max(0.0, least - (high - low)) / 2
        span = max(high - low, least) or (abs(high) * 0.1 or 1.0)
        return cls(low - room - pad * span, high + room + pad * span, scale)

    def share(self, value: float) -> float:
        """Return the position of a value, 0 at the low end and 1 at the high end."""
        if self.scale == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6) -> list[float]:
        """Return round numbers within the range."""
        if self.scale == "log":
            return _decades(self.low, self.high, most)
        step = _round_step((self.high - self.low) / max(most - 1, 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def whole_ticks(self, most: int, least: int = 0) -> list[tuple[float, str]]:
        """Return (position, text) of whole numbers within the range."""
        numbers = [tick for tick in self.ticks(most) if tick >= least and math.isclose(tick, round(tick), abs_tol=1e-9)]
        return [(self.share(round(tick)), number_text(round(tick))) for tick in numbers]


def _round_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(times * power for times in (1.0, 2.0, 5.0, 10.0) if times * power >= least * (1 - 1e-9))


def _decades(low: float, high: float, most: int) -> list[float]:
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    if len(powers) < 2:
        span = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        fine = [times * 10.0**power for power in span for times in (1, 2, 5)]
        return [tick for tick in fine if low <= tick <= high]
    stride = -(-len(powers) // most)
    return [10.0**power for power in powers][::stride]


def number_text(value: float) -> str:
    """Format a tick, with a true minus sign."""
    text = f"{value:.6g}"
    if "e" in text:
        text = text.replace("e-0", "e-").replace("e+0", "e")
    return "0" if text in {"-0", "0"} else text.replace("-", "−", 1) if text.startswith("-") else text


class KnobAxis:
    """Positions of a knob's values between 0 and 1, and their ticks."""

    def __init__(
        self, kind: Literal["log", "linear", "ordered"], values: Sequence[Value], width: float, *, even: bool = True
    ):
        """Place the values; with `even`, few crowded ones stand at equal steps, so that each is named."""
        self.values = tuple(values)
        self._keys = [repr(_plain(value)) for value in self.values]
        numbers = [float(value) for value in self.values if is_number(value)]
        self.equal = kind == "ordered" or len(numbers) < len(self.values)
        self._range = AxisRange(0.0, 1.0)
        if not self.equal and numbers:
            self._range = AxisRange.of(numbers, scale="log" if kind == "log" else "linear", pad=0.08)
            at = sorted(self._range.share(number) * width for number in numbers)
            crowded = any(after - before < _CLOSEST for before, after in pairwise(at))
            self.crowded = even and crowded and len(numbers) <= _MOST_NAMED
            self.equal = self.crowded
        else:
            self.crowded = False

    def share(self, value: Value) -> float:
        """Return the position of a value; NaN if it is not on the axis."""
        if self.equal:
            key = repr(_plain(value))
            return (self._keys.index(key) + 0.5) / len(self._keys) if key in self._keys else math.nan
        if not is_number(value) or (self._range.scale == "log" and value <= 0):
            return math.nan
        return self._range.share(float(value))

    def ticks(self) -> list[tuple[float, str]]:
        """Return (position, text) of each tick."""
        if self.equal or len(self.values) <= _MOST_NAMED:
            return [(self.share(value), value_text(value)) for value in self.values]
        return [(self._range.share(tick), number_text(tick)) for tick in self._range.ticks()]


def _plain(value: Value) -> Value:
    return float(value) if is_number(value) else value


@dataclass(frozen=True)
class Frame:
    """Rectangle of a canvas with a horizontal and a vertical axis."""

    canvas: Canvas
    left: float
    top: float
    right: float
    bottom: float
    y: AxisRange

    @property
    def width(self) -> float:
        """Width in pixels."""
        return self.right - self.left

    def at(self, share: float) -> float:
        """Return the x coordinate of a share of the width."""
        return self.left + share * self.width

    def up(self, value: float) -> float:
        """Return the y coordinate of a value."""
        return self.bottom - self.y.share(value) * (self.bottom - self.top)

    def upright(self, x: float, ends: tuple[float, float], pen: Pen, text: str = "") -> None:
        """Draw a vertical interval at x, with an arrowhead where it leaves the frame."""
        low, high = (self.up(end) for end in ends)
        self.canvas.line([(x, min(max(y, self.top), self.bottom)) for y in (low, high)], pen, text)
        if high < self.top:
            self.canvas.dot(x, self.top + _HEAD, Pen(pen.colour), "triangle", size=_HEAD, text=text)
        if low > self.bottom:
            self.canvas.dot(x, self.bottom - _HEAD, Pen(pen.colour), "down", size=_HEAD, text=text)

    def level(self, y: float, ends: tuple[float, float], pen: Pen, text: str = "") -> None:
        """Draw a horizontal interval at y, with an arrowhead where it leaves the frame."""
        low, high = ends
        self.canvas.line([(self.at(min(max(share, 0.0), 1.0)), y) for share in ends], pen, text)
        if low < 0:
            self.canvas.dot(self.left + _HEAD, y, Pen(pen.colour), "left", size=_HEAD, text=text)
        if high > 1:
            self.canvas.dot(self.right - _HEAD, y, Pen(pen.colour), "right", size=_HEAD, text=text)

    def across(self, value: float, pen: Pen, text: str = "") -> None:
        """Draw a horizontal line at a value, over the whole width."""
        self.canvas.line([(self.left, self.up(value)), (self.right, self.up(value))], pen, text)

    def draw_y(self, name: Callable[[float], str] = number_text, most: int = 6) -> None:
        """Draw horizontal grid lines and their numbers."""
        for tick in self.y.ticks(most):
            self.across(tick, _GRID)
            self.canvas.text(self.left - 7, self.up(tick) + 4, name(tick), anchor="end")

    def draw_x(self, ticks: Sequence[tuple[float, str]], title: str = "", drop: float = 0.0) -> None:
        """Draw the horizontal axis, ticks where there is room, and the title, all `drop` pixels lower."""
        ground = self.bottom + drop
        self.canvas.line([(self.left, self.bottom), (self.right, self.bottom)], RULE)
        named: list[tuple[float, float]] = []
        last = len(ticks) - 1
        for index in dict.fromkeys([last, 0, *range(1, last)] if ticks else []):
            share, text = ticks[index]
            if not math.isfinite(share):
                continue
            x, reach = self.at(share), text_width(text) / 2 + 4
            self.canvas.line([(x, ground), (x, ground + 4)], RULE)
            if all(abs(x - other) > reach + there for other, there in named):
                self.canvas.text(x, ground + 17, text, anchor="middle")
                named.append((x, reach))
        if title:
            title = fitted(title, self.width + 2 * min(self.left, self.canvas.width - self.right))
            self.canvas.text(self.left + self.width / 2, ground + 36, title, "ink", anchor="middle")

    def name_y(self, text: str) -> None:
        """Write the title of the vertical axis above it."""
        x = max(2.0, self.left - 46)
        self.canvas.text(x, self.top - 12, fitted(text, 0.92 * (self.right + 12 - x)), "ink", bold=True)
