"""Names and values of parameters and metrics as MLflow takes them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_VALUE_LIMIT = 500
"""Longest parameter; a longer one is cut and shows its length. plan.json has the whole value."""
_NAME_LIMIT = 250
_FORBIDDEN = re.compile(r"[^\w\-. :/]|(?<![^/])(\.\.|\.?(?![^/]))")
"""Other characters, and parts of a path that are empty, `.` or begin with `..`."""


def logged_name(name: str) -> str:
    """Return a name that MLflow takes: one refused name would keep all of a run's figures out.

    Example:
        >>> [logged_name(name) for name in ("val/map@r", "/val//loss", "../loss")]
        ['val/map_r', '_/val/_/loss', '_/loss']
    """
    return _FORBIDDEN.sub("_", name)[:_NAME_LIMIT].rstrip("/")


def logged(values: Mapping[str, Any]) -> dict[str, str]:
    """Return names and values as MLflow takes them."""
    return {logged_name(name): _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    """Return a value as `--set` takes it: text, or else JSON; a long one is cut."""
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= _VALUE_LIMIT:
        return text
    note = f"… ({len(text)} characters)"
    return text[: _VALUE_LIMIT - len(note)] + note
