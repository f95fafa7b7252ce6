"""Format numbers, durations, knob values and lists as text, for the terminal and the report alike."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from trainables.config import Value

TIME_LIMIT = 1e11
"""Largest time, in seconds since the epoch: the year 5138. Calendars and MLflow refuse much larger ones."""
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_measurable(number: float) -> bool:
    """Return whether a number is at most 1e100 in size; larger ones count as diverged, because their squares overflow."""
    return abs(number) <= 1e100


def value_text(value: Value) -> str:
    """Return a knob's value as text: four significant digits, `yes`, `no`, `none`, or the name itself."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def level_key(value: Value) -> tuple[str, str]:
    """Return a hashable key of a value; 1 and 1.0 are equal, True differs."""
    return ("number", repr(float(value))) if is_number(value) else ("name", repr(value))


def flattened(mapping: Mapping[str, Any], separator: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every value in nested mappings: `{"a": {"b": 1}}` has `a.b`."""
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            yield from flattened(value, separator, f"{prefix}{name}{separator}")
        else:
            yield f"{prefix}{name}", value


def counted(count: int, what: str) -> str:
    """Return a count with its noun, in the plural if needed: `1 trial`, `2 trials`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def list_separator(labels: Sequence[str]) -> str:
    """Return the separator for a list of labels: `; ` if a label contains a comma, else `, `."""
    return "; " if any(", " in label for label in labels) else ", "


def joined(labels: Sequence[str]) -> str:
    """Return `a, b and c`, or `a, b; c; and d` if a label contains a comma."""
    separator = list_separator(labels)
    head = separator.join(labels[:-1])
    if not head:
        return "".join(labels)
    return f"{head}{';' if separator == '; ' else ''} and {labels[-1]}"


def spelling_key(name: object) -> str:
    """Return a name in lower case, without spaces and punctuation: two spellings of one name have the same key."""
    return "".join(letter for letter in str(name).lower() if letter.isalnum())


def python_numbers(value: Any) -> Any:
    """Return a value with every scalar and array of numpy or torch as numbers, in mappings, lists and dataclasses too.

    A value without them is returned as it is.

    >>> import numpy
    >>> python_numbers({"training.steps": numpy.int64(300), "seeds": numpy.arange(2)})
    {'training.steps': 300, 'seeds': [0, 1]}
    """
    if hasattr(value, "ndim") and hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        inner = {key: python_numbers(item) for key, item in value.items()}
        return inner if any(inner[key] is not item for key, item in value.items()) else value
    if type(value) in {list, tuple}:
        items = type(value)(map(python_numbers, value))
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        new = python_numbers(old)
        return value if new is old else replace(value, **new)
    return value


def json_value(value: Any) -> Any:
    """Convert a value to strict JSON: dataclasses become objects, numbers that are not finite become null."""
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
    """Remove terminal colours, control characters, line breaks and repeated spaces from a text."""
    plain = _COLOURS.sub("", text)
    return " ".join("".join(char if char.isprintable() else " " for char in plain).split())


def shortened(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, the last of which is then `…`."""
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
    minutes, seconds_rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes_rest = divmod(minutes, 60)
    days, hours_rest = divmod(hours, 24)
    if days:
        return f"{days} d {hours_rest} h"
    if hours:
        return f"{hours} h {minutes_rest:02d} min"
    return f"{minutes} min {seconds_rest:02d} s" if minutes else f"{seconds_rest} s"
