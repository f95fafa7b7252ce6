"""Check the types of arguments passed from Python. The command line checks flags when it parses them."""

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from trainables.errors import Problem
from trainables.methods import rule_of_any
from tune_dml.text import flattened

_PLAIN = (int, float, str, bool, type(None), Path)
_CONTAINERS = (Union, types.UnionType, Annotated, Sequence, Mapping, list, tuple, dict)


def keyword_problems(annotations: Mapping[str, object], arguments: Mapping[str, object]) -> list[Problem]:
    """Return a problem for each argument of a wrong type, and for each such entry of a mapping.

    Types that mix plain values and classes are not checked.
    """
    problems = []
    for name, argument in arguments.items():
        annotation = annotations[name]
        entries: Iterable[tuple[str, object, Any]] = [(name, argument, argument)]
        if isinstance(argument, Mapping) and not _broken_rule(annotation, {}):
            entries = _entries(name, argument)
        for location, value, checked in entries:
            if rule := _broken_rule(annotation, checked):
                remedy = ""
                if isinstance(value, Mapping) and (dotted := dict(flattened(checked))):
                    remedy = f"Write dotted names: {name}={dotted!r}."
                problems.append(Problem(location, rule, value if isinstance(value, _PLAIN) else repr(value), remedy))
    return problems


def _entries(name: str, argument: Mapping[Any, object]) -> Iterator[tuple[str, object, Any]]:
    """Yield place, offending value and mapping of each single entry of an argument."""
    for key, value in argument.items():
        is_named = isinstance(key, str)
        yield f"{name}[{key!r}]" if is_named else f"{name}, keys", value if is_named else key, {key: value}


def _is_plain(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin in (Literal, Callable) or annotation in _PLAIN:
        return True
    inner = get_args(annotation)[:1] if origin is Annotated else get_args(annotation)
    return origin in _CONTAINERS and all(map(_is_plain, inner))


def _broken_rule(annotation: Any, value: object) -> str:
    """Return the rule of the type that a value breaks; empty if it breaks none."""
    if not _is_plain(annotation):
        classes = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
        if isinstance(value, get_args(annotation) or annotation) or any(kind in _PLAIN for kind in classes):
            return ""
        return f"must be {' or '.join(f'{kind.__module__}.{kind.__qualname__}' for kind in classes)}"
    try:
        TypeAdapter(annotation, config=ConfigDict(strict=True)).validate_python(_to_plain(value))
    except ValidationError as error:
        rule = rule_of_any([item for item in error.errors() if item["type"] != "none_required"])
        return rule.replace("an instance of Sequence", "a list").replace("an instance of Path", "a path")
    return ""


def _to_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _to_plain(inner) for key, inner in value.items()}
    return (
        [_to_plain(inner) for inner in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
    )
