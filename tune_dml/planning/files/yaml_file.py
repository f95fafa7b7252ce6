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
"""Limits of a file; checking a plan of this size takes seconds."""
_MOST_DIGITS = 100


class _Loader(yaml.SafeLoader):
    """Safe loader that refuses repeated keys and reads 1e-3 as a number."""

    _composed = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose one node; refuse a document with too many nodes before reading all of it."""
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


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return the number of values in a node, counting an alias at each use."""
    if id(node) not in sizes:
        sizes[id(node)] = 1  # ends the recursion of an alias to itself
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        children = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
        sizes[id(node)] = 1 + sum(_size(child, sizes) for child in children)
    return sizes[id(node)]


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
    path: Path, kind: str = "sweep file", example: str = "`tune-dml init FOLDER` writes one."
) -> dict[str, object]:
    """Read a YAML file that holds a mapping.

    Args:
        path: The file.
        kind: Name of the kind of file, for messages.
        example: Remedy for a file that is missing or holds no mapping.

    Raises:
        ConfigError: The file cannot be read, is not YAML or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if len(text) > _MOST_CHARACTERS:
            rule = f"the {kind} may have at most {_MOST_CHARACTERS:,} characters"
            raise ConfigError(Problem(str(path), rule, len(text)))
        raw = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        file_names = [item.name for item in path.parent.glob("*.y*ml")]
        matches = difflib.get_close_matches(path.name, file_names, n=1, cutoff=0.8)
        remedy = f"Did you mean '{matches[0]}'?" if matches else example
        reason = str(error.strerror).lower()
        raise ConfigError(Problem(str(path), f"the {kind} cannot be read: {reason}", None, remedy)) from None
    except UnicodeDecodeError:
        raise ConfigError(Problem(str(path), f"the {kind} must be text in UTF-8")) from None
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_problem(path, kind, error)) from None
    except ValueError as error:  # such as a date that does not exist
        raise ConfigError(Problem(str(path), f"the {kind} must be YAML: {error}")) from None
    except RecursionError:
        raise ConfigError(Problem(str(path), f"the {kind} must be YAML: it is nested too deeply")) from None
    if not isinstance(raw, dict):
        rule = f"the {kind} is empty" if raw is None else f"a {kind} must be a mapping"
        raise ConfigError(Problem(str(path), rule, raw, example))
    return {str(key): value for key, value in raw.items()}


def _syntax_problem(path: Path, kind: str, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}, line {mark.line + 1}" if mark else str(path)
    problem = str(getattr(error, "problem", None) or "it cannot be parsed")
    remedy = "Indent with spaces." if "\\t" in problem else ""
    return Problem(where, f"the {kind} must be YAML: {problem}", None, remedy)


def problems_of_file(
    error: ValidationError, path: Path, raw: Mapping[str, object], model: type[BaseModel]
) -> list[Problem]:
    """Return one problem for each key that the model refuses, also for a value with several allowed forms."""
    by_keys: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for item in error.errors():
        by_keys.setdefault(_key_path(item["loc"], raw, item["type"]), []).append(item)
    problems = []
    for keys, items in by_keys.items():
        has_inner = any(len(longer) > len(keys) and longer[: len(keys)] == keys for longer in by_keys)
        typed = [item for item in items if not item["type"].endswith(("_type", "_parsing"))]
        if has_inner and not typed:
            continue  # the value has another form, whose errors are reported
        problems.append(_problem_at(path, keys, typed[:1] or items, model))
    return problems


def _problem_at(path: Path, keys: tuple[str, ...], errors: Sequence[ErrorDetails], model: type[BaseModel]) -> Problem:
    place = f"{path}, {'.'.join(keys)}" if keys else str(path)
    kind, value = errors[0]["type"], errors[0]["input"]
    if kind == "extra_forbidden":
        return _unknown_key(path, keys, _model_at(model, keys[:-1]))
    if kind == "missing":
        return Problem(place, "must be given")
    if kind == "literal_error":
        allowed = [name.strip(" '") for name in re.split(",| or ", errors[0]["ctx"]["expected"])]
        return Problem(place, f"unknown {keys[-1]}", value, nearest(str(value), allowed, what="value"))
    return Problem(place, rule_of_any(errors), value if keys else None, _example(keys))


def _unknown_key(path: Path, keys: Sequence[str], model: type[BaseModel] | None) -> Problem:
    *above, name = keys
    place = f"{path}, {'.'.join(above)}" if above else str(path)
    if above and above[-1] in SECTIONS:
        remedy = f"Write the setting in one word: `{above[-1]}.{name}: ...`."
        return Problem(place, "unknown key", name, remedy)
    if not above and name in _FOREIGN_KEYS:
        return Problem(place, "unknown key", name, _FOREIGN_KEYS[name])
    known = list(model.model_fields) if model else []
    if "settings" in known:  # an arm may be written in short, as its settings
        known += [f"{section}.name" for section in ("loss", "regularizer") if name == "name"]
    return Problem(place, "unknown key", name, nearest(name, known, what="key", dotted=True))


_FOREIGN_KEYS = {
    **dict.fromkeys(("project", "entity"), "This is a key of W&B: leave it out, or name your `program`."),
    **dict.fromkeys(("n_trials", "num_samples", "maxTrialCount"), "Write `run_cap`."),
    "early_terminate": "Write `stopping: asha`, or hyperband.",
    "objective": "Write `metric: {name: val/recall_at_1, goal: maximize}`.",
    "nuisance": "Write `tune: [optim.lr]`: the nuisance knobs.",
    "scientific": "Write the knobs of interest under `parameters`, and nuisance knobs under `tune`.",
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


def _key_path(location: Iterable[Any], raw: Any, kind: str) -> tuple[str, ...]:
    """Return the keys that lead to an error, without the names of the types that pydantic tried."""
    keys, value, parts = [], raw, list(location)
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        ):
            value = value[part]
        elif not (last and kind == "missing"):
            continue
        keys.append(str(part))
    return tuple(keys)


def _model_at(model: type[BaseModel], keys: Sequence[str]) -> type[BaseModel] | None:
    """Return the model of the value at these keys; None if any key is allowed there."""
    current: type[BaseModel] | None = model
    is_field = True
    for key in keys:
        if current is None:
            return None
        if not is_field:  # the name of a parameter, an arm or a tie
            is_field = True
            continue
        annotation = current.model_fields[key].annotation if key in current.model_fields else None
        is_field = typing.get_origin(annotation) is not dict
        current = _model_in(annotation)
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if (
        isinstance(annotation, type)
        and not isinstance(annotation, types.GenericAlias)
        and issubclass(annotation, BaseModel)
    ):
        return annotation
    return next(filter(None, map(_model_in, typing.get_args(annotation))), None)
