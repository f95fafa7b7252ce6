"""Format numbers, durations, knob values and lists for people, the same on the screen and in the report."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from trainables.config import Value

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_measurable(number: float) -> bool:
    """Whether a figure is finite, and its squares are too: beyond 1e100 it counts as diverged."""
    return abs(number) <= 1e100


def value_text(value: Value) -> str:
    """Return a knob's value as text: four significant digits, `yes`, `no`, `none`, or the name itself."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def counted(count: int, what: str) -> str:
    """Return `1 trial`, `2 trials`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def between(labels: Sequence[str]) -> str:
    """Return the separator of a list of labels: a semicolon if a label has a comma."""
    return "; " if any(", " in label for label in labels) else ", "


def joined(labels: Sequence[str]) -> str:
    """Return `a, b and c`, separated by semicolons if a label has a comma."""
    comma = between(labels)
    most = comma.join(labels[:-1])
    if not most:
        return "".join(labels)
    return f"{most}{';' if comma == '; ' else ''} and {labels[-1]}"


def letters(name: object) -> str:
    """Return a name in lower case without spaces and punctuation, in which spellings agree."""
    return "".join(letter for letter in str(name).lower() if letter.isalnum())


def json_value(value: Any) -> Any:
    """Return a value as strict JSON stores it: dataclasses as objects, null for numbers that are not finite."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def one_line(text: str) -> str:
    """Return a text without a terminal's colours, control characters, line breaks and repeated spaces."""
    plain = _COLOURS.sub("", text)
    return " ".join("".join(char if char.isprintable() else " " for char in plain).split())


def shortened(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text; `…` stands for the rest."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def age(seconds: float) -> str:
    """Return `now`, `5 min`, `3 h` or `12 d` for an age in seconds."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return "now"


def duration(seconds: float) -> str:
    """Return `8 s`, `3 min 05 s`, `2 h 10 min` or `3 d 4 h`; `?` if infinite."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes_rest = divmod(minutes, 60)
    days, hours_rest = divmod(hours, 24)
    if days:
        return f"{days} d {hours_rest} h"
    if hours:
        return f"{hours} h {minutes_rest:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
