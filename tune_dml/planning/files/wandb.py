"""Translate a program's sweep file from W&B's forms to ours."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainables.errors import Problem

SEED = "seed"
NO_PARAMETER = "the seed is not a parameter: it pairs the trials of all cells"
NO_PAUSE = "a program runs to its end: it cannot be paused at a step"
_UNUSED_KEYS = {
    "project": "W&B's project is not used: MLflow's experiment is the sweep's name, or `--experiment`",
    "entity": "W&B's entity is not used",
    "controller": "W&B's controller is not used",
}
_EXPONENTS = ("log_uniform", "q_log_uniform", "inv_log_uniform")
_UNSUPPORTED = (
    *("q_uniform", "q_log_uniform_values", "inv_log_uniform_values", "beta", "q_beta"),
    *("normal", "q_normal", "log_normal", "q_log_normal"),
)
"""W&B's distributions that sweep files do not support."""


def is_program(raw: Mapping[str, object]) -> bool:
    """Return whether a sweep file runs a program."""
    return "program" in raw or "command" in raw


def translate_file(path: Path, raw: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...], list[Problem]]:
    """Translate a program's sweep file from W&B's forms to ours; return its content, notes on changes, and problems.

    The parameter `seed` becomes the sweep's seeds. Nested parameters get dotted names. Lists become JSON text.
    """
    content = {key: value for key, value in raw.items() if key not in {*_UNUSED_KEYS, "early_terminate"}}
    notes = [_UNUSED_KEYS[key] for key in raw if key in _UNUSED_KEYS]
    problems = _metric_problems(path, raw)
    if "early_terminate" in raw:
        problems.append(Problem(f"{path}, early_terminate", NO_PAUSE, None, "Leave it out."))
    parameters = raw.get("parameters")
    if isinstance(parameters, dict):
        flat = _flatten(parameters)
        if SEED in flat and "seeds" not in raw and (seeds := _listed_seeds(flat[SEED])):
            content["seeds"] = seeds
            notes.append(f"the values of the parameter seed are the sweep's seeds: {', '.join(map(str, seeds))}")
        elif SEED in flat:
            remedy = "Leave it out: `seeds` is given." if "seeds" in raw else "Write `seeds: 3` beside `parameters`."
            problems.append(Problem(f"{path}, parameters.seed", NO_PARAMETER, None, remedy))
        content["parameters"] = plain = {name: _as_passed(value) for name, value in flat.items() if name != SEED}
        problems += _distribution_problems(path, plain)
    return content, tuple(notes), problems


def _metric_problems(path: Path, raw: Mapping[str, object]) -> list[Problem]:
    """Return problems for a missing metric or direction, which have no defaults for programs."""
    metric = raw.get("metric")
    example = "Example: metric: {name: val/accuracy, goal: maximize}."
    if metric is None:
        return [Problem(f"{path}, metric", "must be given: what the program reports", None, example)]
    if not isinstance(metric, dict):
        return []
    lacking = [key for key in ("name", "goal") if not metric.get(key)]
    meant = " (W&B's own default is minimize)" if "goal" in lacking else ""
    return [Problem(f"{path}, metric.{key}", f"must be given for a program{meant}", None, example) for key in lacking]


def _distribution_problems(path: Path, parameters: dict[str, Any]) -> list[Problem]:
    """Return a problem for each unsupported distribution, and replace it by a range to avoid a second problem."""
    problems = []
    for name, value in parameters.items():
        kind = value.get("distribution") if isinstance(value, dict) else None
        if kind in _EXPONENTS:
            rule, remedy = f"W&B's {kind} takes exponents", "Write `log_uniform_values`, and min and max as they are."
        elif kind in _UNSUPPORTED:
            rule = f"W&B's {kind} is not supported"
            remedy = "Write `uniform`, `int_uniform` or `log_uniform_values` with min and max, or list the `values`."
        else:
            continue
        problems.append(Problem(f"{path}, parameters.{name}", rule, None, remedy))
        parameters[name] = {"min": 1, "max": 2}
    return problems


def _flatten(parameters: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in parameters.items():
        if isinstance(value, dict) and isinstance(value.get("parameters"), dict):
            flat |= _flatten(value["parameters"], f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _listed_seeds(parameter: Any) -> list[int]:
    """Return the seeds that a parameter lists; none if they are not all whole numbers."""
    if not isinstance(parameter, dict):
        return []
    values = parameter.get("values", [parameter["value"]] if "value" in parameter else [])
    whole = isinstance(values, list) and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values)
    return list(values) if whole else []


def _as_passed(parameter: Any) -> Any:
    """Return a parameter with lists and mappings as JSON text, as W&B passes them to a program."""

    def to_text(value: Any) -> Any:
        return json.dumps(value) if isinstance(value, list | dict) else value

    if not isinstance(parameter, dict):
        return parameter
    passed = {key: to_text(value) if key == "value" else value for key, value in parameter.items()}
    if isinstance(passed.get("values"), list):
        passed["values"] = list(map(to_text, passed["values"]))
    return passed
