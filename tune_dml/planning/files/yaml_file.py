"""Read a YAML file safely, and turn the errors of its pydantic model into problems that name the keys."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainables.config import SECTIONS
from trainables.errors import ConfigError, Problem, nearest
from trainables.methods import rule_of_any

_MOST_VALUES, _MOST_CHARACTERS = 20_000, 1_000_000
"""Largest file; checking a plan of this size takes seconds."""
_MOST_DIGITS = 100


class _Loader(yaml.SafeLoader):
    """Safe loader that refuses repeated keys and reads 1e-3 as a number."""

    _composed = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose one node; refuse a document with too many before its rest is read."""
        self._composed += 1
        if self._composed > _MOST_VALUES:
            raise _too_large(self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def get_single_node(self) -> yaml.Node | None:
        """Compose the document; refuse one that aliases make too large to be checked."""
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _size(node, {}) > _MOST_VALUES:
            raise _too_large(node.start_mark)
        return node


def _too_large(mark: yaml.Mark) -> yaml.YAMLError:
    rule = f"it holds more than {_MOST_VALUES:,} values, aliases counted each time"
    return yaml.constructor.ConstructorError(None, None, rule, mark)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values below a node, counting those of an alias at each use."""
    if id(node) not in known:
        known[id(node)] = 1  # for an alias to itself
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        below = [each for part in parts for each in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_size(each, known) for each in below)
    return known[id(node)]


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and keys.count(key.value) > 1 and key.value != "<<":
            raise yaml.constructor.ConstructorError(None, None, f"`{key.value}` is given twice", key.start_mark)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > _MOST_DIGITS:
        rule = f"a number has more than {_MOST_DIGITS} digits"
        raise yaml.constructor.ConstructorError(None, None, rule, node.start_mark)
    number: int = loader.construct_yaml_int(node)
    return number


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+"), list("-+0123456789")
)


def read_mapping(
    path: Path, what: str = "sweep file", example: str = "`tune-dml init FOLDER` writes one."
) -> dict[str, object]:
    """Read a YAML file that holds a mapping.

    Args:
        path: The file.
        what: Name of the kind of file, for messages.
        example: Remedy for a file that is missing or holds no mapping.

    Raises:
        ConfigError: The file cannot be read, is no YAML or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if len(text) > _MOST_CHARACTERS:
            rule = f"the {what} may have at most {_MOST_CHARACTERS:,} characters"
            raise ConfigError(Problem(str(path), rule, len(text)))
        raw = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        others = [item.name for item in path.parent.glob("*.y*ml")]
        near = difflib.get_close_matches(path.name, others, n=1, cutoff=0.8)
        remedy = f"Did you mean '{near[0]}'?" if near else example
        reason = str(error.strerror).lower()
        raise ConfigError(Problem(str(path), f"the {what} cannot be read: {reason}", None, remedy)) from None
    except UnicodeDecodeError:
        raise ConfigError(Problem(str(path), f"the {what} must be text in UTF-8")) from None
    except yaml.YAMLError as error:
        raise ConfigError(_no_yaml(path, what, error)) from None
    except ValueError as error:  # of a date that does not exist
        raise ConfigError(Problem(str(path), f"the {what} must be YAML: {error}")) from None
    except RecursionError:
        raise ConfigError(Problem(str(path), f"the {what} must be YAML: it is nested too deeply")) from None
    if not isinstance(raw, dict):
        rule = f"the {what} is empty" if raw is None else f"a {what} must be a mapping"
        raise ConfigError(Problem(str(path), rule, raw, example))
    return {str(key): value for key, value in raw.items()}


def _no_yaml(path: Path, what: str, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}, line {mark.line + 1}" if mark else str(path)
    problem = str(getattr(error, "problem", None) or "it cannot be parsed")
    remedy = "Indent with spaces." if "\\t" in problem else ""
    return Problem(where, f"the {what} must be YAML: {problem}", None, remedy)


def problems_of_file(
    error: ValidationError, path: Path, raw: Mapping[str, object], model: type[BaseModel]
) -> list[Problem]:
    """Return a problem for each key that the model refuses; a value with several allowed forms has one."""
    by_keys: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for item in error.errors():
        by_keys.setdefault(_keys(item["loc"], raw, item["type"]), []).append(item)
    problems = []
    for keys, items in by_keys.items():
        inner = any(len(other) > len(keys) and other[: len(keys)] == keys for other in by_keys)
        typed = [item for item in items if not item["type"].endswith(("_type", "_parsing"))]
        if inner and not typed:
            continue  # it has another form, in which something else is wrong
        problems.append(_problem_at(path, keys, typed[:1] or items, model))
    return problems


def _problem_at(
    path: Path, keys: tuple[str, ...], complaints: Sequence[ErrorDetails], model: type[BaseModel]
) -> Problem:
    place = f"{path}, {'.'.join(keys)}" if keys else str(path)
    kind, value = complaints[0]["type"], complaints[0]["input"]
    if kind == "extra_forbidden":
        return _unknown_key(path, keys, _model_at(model, keys[:-1]))
    if kind == "missing":
        return Problem(place, "must be given")
    if kind == "literal_error":
        known = [name.strip(" '") for name in re.split(",| or ", complaints[0]["ctx"]["expected"])]
        return Problem(place, f"unknown {keys[-1]}", value, nearest(str(value), known, what="value"))
    return Problem(place, rule_of_any(complaints), value if keys else None, _example(keys))


def _unknown_key(path: Path, keys: Sequence[str], model: type[BaseModel] | None) -> Problem:
    *above, name = keys
    place = f"{path}, {'.'.join(above)}" if above else str(path)
    if above and above[-1] in SECTIONS:
        remedy = f"Write the setting in one word: `{above[-1]}.{name}: ...`."
        return Problem(place, "unknown key", name, remedy)
    if not above and name in _OF_OTHERS:
        return Problem(place, "unknown key", name, _OF_OTHERS[name])
    known = list(model.model_fields) if model else []
    if "settings" in known:  # an arm may be written in short, as its settings
        known += [f"{section}.name" for section in ("loss", "regularizer") if name == "name"]
    return Problem(place, "unknown key", name, nearest(name, known, what="key", dotted=True))


_OF_OTHERS = {
    **dict.fromkeys(("project", "entity"), "It is W&B's: leave it out, or name your `program`."),
    **dict.fromkeys(("n_trials", "num_samples", "maxTrialCount"), "Write `run_cap`."),
    "early_terminate": "Write `stopping: asha`, or hyperband.",
    "objective": "Write `metric: {name: val/recall_at_1, goal: maximize}`.",
    "nuisance": "Write `tune: [optim.lr]`: settings that are tuned away.",
    "scientific": "Write searched knobs under `parameters`, and knobs that are tuned away under `tune`.",
}
"""Key of W&B, Katib, Ray Tune or a space -> remedy with the key to write instead."""

_EXAMPLES = {
    "metric": "Example: metric: {name: val/recall_at_1, goal: maximize}.",
    "seeds": "Example: seeds: 3, or seeds: [0, 1, 7].",
    "tune": "Example: tune: [optim.lr].",
    "baseline": "Example: baseline: {label: no margin, settings: {loss.margin: 0.0}}, or the name of an arm.",
    "arms": "Example: arms: {triplet: {loss.name: triplet}, ms: {loss.name: multi_similarity}}.",
    "fixed": "Example: fixed: {training.steps: 300}.",
    "parameters": "Example: parameters: {loss.margin: {values: [0.1, 0.2]}}.",
    "gain_differences": "Example: gain_differences: [[SGD+SEC, Adam+SEC]].",
    "margin": "Example: margin: 1.0, for one percentage point.",
}


def _example(keys: Sequence[str]) -> str:
    if not keys:
        return str(_EXAMPLES["parameters"])
    return _EXAMPLES.get(keys[0], "") if len(keys) == 1 or keys[0] == "parameters" else ""


def _keys(location: Iterable[Any], raw: Any, kind: str) -> tuple[str, ...]:
    """Return the keys that lead to an error, without the names of the types that pydantic tried."""
    keys, here, parts = [], raw, list(location)
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if (isinstance(here, dict) and part in here) or (
            isinstance(here, list) and isinstance(part, int) and part < len(here)
        ):
            here = here[part]
        elif not (last and kind == "missing"):
            continue
        keys.append(str(part))
    return tuple(keys)


def _model_at(model: type[BaseModel], keys: Sequence[str]) -> type[BaseModel] | None:
    """Return the model of the value at these keys; None if any key is allowed there."""
    here: type[BaseModel] | None = model
    named = True
    for key in keys:
        if here is None:
            return None
        if not named:  # the name of a parameter, an arm or a tie
            named = True
            continue
        annotation = here.model_fields[key].annotation if key in here.model_fields else None
        named = typing.get_origin(annotation) is not dict
        here = _model_in(annotation)
    return here


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if (
        isinstance(annotation, type)
        and not isinstance(annotation, types.GenericAlias)
        and issubclass(annotation, BaseModel)
    ):
        return annotation
    return next(filter(None, map(_model_in, typing.get_args(annotation))), None)
