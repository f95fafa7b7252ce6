"""Turn the errors of a sweep file's pydantic model into problems that name the keys."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainables.config import SECTIONS
from trainables.errors import Problem, nearest
from trainables.methods import rule_of_any


def key_problems(
    error: ValidationError, path: Path, raw: Mapping[str, object], models: Mapping[str, type[BaseModel]]
) -> list[Problem]:
    """Return one problem for each refused key, also for a value with several allowed forms.

    `models` holds the model of each part of the file by the part's name; the whole file's name is empty.
    """
    by_keys: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for item in error.errors():
        by_keys.setdefault(_key_path(item["loc"], raw, item["type"]), []).append(item)
    problems = []
    for keys, items in by_keys.items():
        has_inner = any(len(longer) > len(keys) and longer[: len(keys)] == keys for longer in by_keys)
        typed = [item for item in items if not item["type"].endswith(("_type", "_parsing"))]
        if has_inner and not typed:
            continue  # the value has another form, whose errors are reported
        problems.append(_problem_at(path, keys, typed[:1] or items, models))
    return problems


def _problem_at(
    path: Path, keys: tuple[str, ...], errors: Sequence[ErrorDetails], models: Mapping[str, type[BaseModel]]
) -> Problem:
    place = f"{path}, {'.'.join(keys)}" if keys else str(path)
    kind, value = errors[0]["type"], errors[0]["input"]
    if kind == "extra_forbidden":
        return _unknown_key(path, keys, models)
    if kind == "missing":
        return Problem(place, "must be given")
    if kind == "literal_error":
        allowed = [name.strip(" '") for name in re.split(",| or ", errors[0]["ctx"]["expected"])]
        return Problem(place, f"unknown {keys[-1]}", value, nearest(str(value), allowed, what="value"))
    return Problem(place, rule_of_any(errors), value if keys else None, _example(keys))


def _unknown_key(path: Path, keys: Sequence[str], models: Mapping[str, type[BaseModel]]) -> Problem:
    *above, name = keys
    part = above[-1] if len(above) % 2 else above[-2] if above else ""  # arms.NAME.parameters.PATH: names at odd places
    place = f"{path}, {'.'.join(above)}" if above else str(path)
    if above and above[-1] in SECTIONS:
        remedy = f"Write the setting in one word: `{above[-1]}.{name}: ...`."
        return Problem(place, "unknown key", name, remedy)
    if not above and name in _FOREIGN_KEYS:
        return Problem(place, "unknown key", name, _FOREIGN_KEYS[name])
    keys_of_part = list(models[part].model_fields) if part in models else []
    if "settings" in keys_of_part and name == "name":  # an arm may be written in short, as its settings
        keys_of_part += ["loss.name", "regularizer.name"]
    return Problem(place, "unknown key", name, nearest(name, keys_of_part, what="key", dotted=True))


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
        if (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int)):
            value = value[part]
        elif not (last and kind == "missing"):
            continue
        keys.append(str(part))
    return tuple(keys)
