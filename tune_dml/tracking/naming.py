"""Convert names and values of parameters and metrics to those that MLflow accepts. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any

_VALUE_LIMIT = 500  # characters of a parameter; a longer value is cut, and plan.json has all of it
_NAME_LIMIT = 250
_FORBIDDEN = re.compile(r"[^\w\-. :/]|(?<![^/])(\.\.|\.?(?![^/]))")
"""Matches forbidden characters, and parts of a path that are empty, `.` or start with `..`."""


def mlflow_name(name: str) -> str:
    """Return a name that MLflow accepts. It would refuse a whole batch because of one wrong name.

    Example:
        >>> [mlflow_name(name) for name in ("val/map@r", "/val//loss", "../loss")]
        ['val/map_r', '_/val/_/loss', '_/loss']
    """
    return _FORBIDDEN.sub("_", name)[:_NAME_LIMIT].rstrip("/")


def mlflow_parameters(values: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters with names and values that MLflow accepts."""
    return {mlflow_name(name): _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    """Return a value as `--set` accepts it: text, or JSON. A long value is cut."""
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= _VALUE_LIMIT:
        return text
    note = f"… ({len(text)} characters)"
    return text[: _VALUE_LIMIT - len(note)] + note
