"""Replace scalars of numpy and torch in a request by Python's numbers, which plans and digests store."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any


def python_numbers(value: Any) -> Any:
    """Return a value with every scalar of numpy or torch as a number, in its mappings, lists and dataclasses too.

    A value without such scalars is returned as it is.

    >>> import numpy
    >>> python_numbers({"training.steps": numpy.int64(300)})
    {'training.steps': 300}
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
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
