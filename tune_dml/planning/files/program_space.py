"""Build spaces whose trials run the user's own program, from W&B's sweep files or from `--command` with `--param`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainables.config import Settings
from trainables.errors import Problem, raise_if_any
from trainables.option_names import option_place, option_problem, spell
from tune_dml.planning.request import OwnCommand, Request
from tune_dml.programs.command import SETTING, Program, read_command
from tune_dml.space import Grid, Knob, Scale, Space, Value
from tune_dml.text import is_number

_UNUSED_KEYS = {
    "project": "W&B's project is not used: MLflow's experiment is the sweep's name, or `--experiment`",
    "entity": "W&B's entity is not used",
    "controller": "W&B's controller is not used",
}
_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
"""W&B's default command."""
_EXPONENTS = ("log_uniform", "q_log_uniform", "inv_log_uniform")
_UNSUPPORTED = (
    *("q_uniform", "q_log_uniform_values", "inv_log_uniform_values", "beta", "q_beta"),
    *("normal", "q_normal", "log_normal", "q_log_normal"),
)
"""W&B's distributions that sweep files do not support."""
SEED = "seed"
_NO_PARAMETER = "the seed is not a parameter: it pairs the trials of all cells"
_NO_PAUSE = "a program runs to its end: it cannot be paused at a step"


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
        problems.append(Problem(f"{path}, early_terminate", _NO_PAUSE, None, "Leave it out."))
    parameters = raw.get("parameters")
    if isinstance(parameters, dict):
        flat = _flatten(parameters)
        if SEED in flat and "seeds" not in raw:
            seeds = _listed_seeds(flat[SEED])
            if seeds:
                content["seeds"] = seeds
                notes.append(f"the values of the parameter seed are the sweep's seeds: {', '.join(map(str, seeds))}")
        if SEED in flat and "seeds" not in content:
            remedy = "Write `seeds: 3` beside `parameters`."
            problems.append(Problem(f"{path}, parameters.seed", _NO_PARAMETER, None, remedy))
        content["parameters"] = plain = {name: _as_passed(value) for name, value in flat.items() if name != SEED}
        problems += _distribution_problems(path, plain)
    return content, tuple(notes), problems


def program_of(path: Path, program: str | None, command: str | Sequence[object] | None, **options: Any) -> Program:
    """Return the program of a sweep file: W&B's command around `program`, or the file's own."""
    words = read_command(command) if isinstance(command, str) else tuple(map(str, command or _COMMAND))
    if program is not None:
        words = tuple(word.replace("${program}", program) for word in words)
    return Program(words, str(_working_folder(path, words)), **options)


def _working_folder(path: Path, words: tuple[str, ...]) -> Path:
    """Return the folder to run in: the file's folder if it holds the script, else the working directory, as in W&B."""
    beside = path.absolute().parent
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    return beside if not scripts or (beside / scripts[0]).is_file() else Path.cwd()


def command_request(request: Request, options: OwnCommand) -> Request:
    """Add the space of `--command` to a request, if given. Raise ConfigError for missing or wrong options."""
    further = ("params", "metric", "goal")
    if options.command is None:
        rule, remedy = "goes with a command", f"Add {spell('command', 'PROGRAM')}, or leave it out."
        raise_if_any(option_problem(name, rule, None, remedy) for name in further if getattr(options, name) is not None)
        return request
    params, problems = options.params or {}, []
    if request.space:
        rule = "a sweep runs a space, a sweep file or a command, but not two of them"
        problems.append(option_problem("command", rule, None, "Leave out one."))
    if not params:
        example = spell("params", {"optim.lr": [0.1, 0.01]})
        problems.append(option_problem("params", "a command needs parameters to compare", None, f"Example: {example}."))
    problems += reserved_problems(params, option_place("params"))
    if options.metric is None or options.goal is None:
        rule = "a command needs the metric that it reports, and its direction"
        example = f"{spell('metric', 'val/recall_at_1')} {spell('goal', 'maximize')}"
        problems.append(option_problem("metric", rule, None, f"Example: {example}."))
    words: tuple[str, ...] = ("",)
    try:
        words = read_command(options.command) or ("",)
    except ValueError as error:
        problems.append(option_problem("command", f"must be a valid shell command ({error})", options.command))
    program = Program(words, str(Path.cwd()))
    if problems and words[0] and params:
        problems += program.problems([*params, *(request.settings or {})], option_place("command"))
    raise_if_any(problems)
    knobs = tuple(Knob(name, Grid(tuple(listed), scale_of(listed)), origin="user") for name, listed in params.items())
    space = program_space(
        program, request.name or Path(program.label).stem, knobs, {}, metric=str(options.metric),
        goal=options.goal or "maximize", margin=0.0,
    )  # fmt: skip
    return replace(request, space=space)


def scale_of(values: Sequence[Value]) -> Scale:
    """Return how to draw listed values: category unless all are numbers; log if positive and spread over 10x."""
    numbers = [value for value in values if is_number(value)]
    if len(numbers) < len(values):
        return "category"
    return "log" if min(numbers) > 0 and max(numbers) >= 10 * min(numbers) else "linear"


def program_space(program: Program, name: str, knobs: tuple[Knob, ...], fixed: Settings, **fields: Any) -> Space:
    """Return the space of a program."""
    paths = [knob.path for knob in knobs]
    fields = {"title": f"{name}: {', '.join(paths)}", "default_dataset": program.label, **fields}
    return Space(
        name=name, question="", citation=None, scientific=knobs, fixed={**fixed, SETTING: program.text},
        program=program, **fields,
    )  # fmt: skip


def with_notes(space: Space, settings: Settings | None) -> Space:
    """Return a program's space with notes on parameters and settings that its command does not pass."""
    assert space.program is not None  # noqa: S101 - checked before
    names = dict.fromkeys([*space.fixed, *(knob.path for knob in space.knobs), *(settings or {})])
    return replace(space, notes=(*space.notes, *space.program.notes([name for name in names if name != SETTING])))


def with_margin(space: Space, margin: float | None) -> tuple[Space, list[Problem]]:
    """Return a program's space with its margin, and a problem if none was given. No default fits every metric."""
    if space.margin:
        return space, []
    rule = f"name the largest difference of {space.metric} that does not matter: every verdict depends on it"
    problem = option_problem("margin", rule, None, f"Example: {spell('margin', 0.01)}.")
    return replace(space, margin=margin or 1.0), [] if margin is not None else [problem]


def refused_options(request: Request) -> list[Problem]:
    """Return a problem for each option that a program cannot follow."""
    rules = {
        "dataset": "a program reads its own data",
        "data_root": "a program reads its own data",
        "protocol": "a program trains by its own settings",
        "vary": "a program decides itself what its seed changes",
        "stopping": _NO_PAUSE,
    }
    requested = {name: getattr(request, name) for name in rules}
    remedies = {"stopping": f"Leave it out; {spell('until_decided')} ends cells that are settled."}
    remedy = "Leave it out, or make it a parameter of the program."
    return [
        option_problem(name, rules[name], str(value), remedies.get(name, remedy))
        for name, value in requested.items()
        if value is not None
    ]


def reserved_problems(names: Iterable[str], place: str) -> list[Problem]:
    """Return a problem for each reserved name, whose value a program would not receive."""
    reserved = {
        SEED: (_NO_PARAMETER, f"Write {spell('seeds', 3)} instead."),
        SETTING: ("a parameter cannot have the name of the setting that holds the command", "Rename it."),
    }
    return [
        Problem(place, rule, name, remedy) for name in names if name in reserved for rule, remedy in [reserved[name]]
    ]


def metric_problems(metric: str, place: str) -> list[Problem]:
    """Return the problems of a program's metric."""
    if not metric.strip():
        return [Problem(place, "must name the metric that the program reports", metric, "Example: val/accuracy.")]
    if not metric.startswith("test/"):
        return []
    rule = "cells are chosen by validation: test/... stays sealed until `tune-dml open`"
    return [Problem(place, rule, metric, "Report a validation metric as val/..., and name that.")]


def _metric_problems(path: Path, raw: Mapping[str, object]) -> list[Problem]:
    """Return problems for a missing metric or direction, which have no defaults for programs."""
    metric = raw.get("metric")
    example = "Example: metric: {name: val/accuracy, goal: maximize}."
    if metric is None:
        return [Problem(f"{path}, metric", "must be given: what the program reports", None, example)]
    if not isinstance(metric, dict):
        return []
    lacking = [key for key in ("name", "goal") if key not in metric]
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
    """Return nested parameters under dotted names."""
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
    if not isinstance(parameter, dict):
        return parameter
    passed = dict(parameter)
    if isinstance(passed.get("values"), list):
        passed["values"] = [_to_json_text(value) for value in passed["values"]]
    if "value" in passed:
        passed["value"] = _to_json_text(passed["value"])
    return passed


def _to_json_text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value
