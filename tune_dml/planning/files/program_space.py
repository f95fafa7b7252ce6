"""Build the space of `--command` with `--param`, and check spaces whose trials run the user's own program."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from trainables.errors import Problem, raise_if_any
from trainables.option_names import option_place, option_problem, spell
from tune_dml.planning.request import OwnCommand, Request
from tune_dml.programs.command import SETTING, Program, read_command
from tune_dml.space import Grid, Knob, Scale, Space, Value
from tune_dml.text import is_number

SEED = "seed"
NO_PARAMETER = "the seed is not a parameter: it pairs the trials of all cells"
NO_PAUSE = "a program runs to its end: it cannot be paused at a step"


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
    name = request.name or Path(program.label).stem
    space = Space(
        name, f"{name}: {', '.join(params)}", question="", citation=None,
        scientific=tuple(
            Knob(path, Grid(tuple(listed), scale_of(listed)), origin="user") for path, listed in params.items()
        ),
        fixed={SETTING: program.text}, default_dataset=program.label, metric=str(options.metric),
        goal=options.goal or "maximize", margin=0.0, program=program,
    )  # fmt: skip
    return replace(request, space=space)


def scale_of(values: Sequence[Value]) -> Scale:
    """Return how to draw listed values: category unless all are numbers; log if positive and spread over 10x."""
    numbers = [value for value in values if is_number(value)]
    if len(numbers) < len(values):
        return "category"
    return "log" if min(numbers) > 0 and max(numbers) >= 10 * min(numbers) else "linear"


def checked_program(space: Space, program: Program, request: Request) -> tuple[Space, list[Problem]]:
    """Return a program's space with its margin and notes, and the problems of a request for it.

    Notes name parameters and settings that the command does not pass. No default margin fits every metric.
    """
    declared, settings = [*space.fixed, *(knob.path for knob in space.knobs)], request.settings or {}
    names = [name for name in dict.fromkeys((*declared, *settings)) if name != SETTING]
    problems = [*_refused_options(request), *_metric_problems(space)]
    if not space.origin:  # a sweep file names the key of its command
        problems += program.problems(names, option_place("command"))
    problems += reserved_problems(set(settings) - {SEED}, option_place("settings"))  # the seed is checked with others
    if not space.margin and request.margin is None:
        metric = space.metric or "the metric"
        rule = f"name the largest difference of {metric} that does not matter: every verdict depends on it"
        problems.append(option_problem("margin", rule, None, f"Example: {spell('margin', 0.01)}."))
    margin = space.margin or request.margin or 1.0
    return replace(space, margin=margin, notes=(*space.notes, *program.notes(names))), problems


def _refused_options(request: Request) -> list[Problem]:
    rules = {
        "dataset": "a program reads its own data",
        "data_root": "a program reads its own data",
        "protocol": "a program trains by its own settings",
        "vary": "a program decides itself what its seed changes",
        "stopping": NO_PAUSE,
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
        SEED: (NO_PARAMETER, f"Write {spell('seeds', 3)} instead."),
        SETTING: ("a parameter cannot have the name of the setting that holds the command", "Rename it."),
    }
    return [
        Problem(place, rule, name, remedy) for name in names if name in reserved for rule, remedy in [reserved[name]]
    ]


def _metric_problems(space: Space) -> list[Problem]:
    place = space.location("metric") if space.origin else option_place("metric")
    if not space.metric and space.origin:
        return []  # a sweep file without one: reported when it was read
    if not space.metric.strip():
        return [Problem(place, "must name the metric that the program reports", space.metric, "Example: val/accuracy.")]
    if not space.metric.startswith("test/"):
        return []
    rule = "cells are chosen by validation: test/... stays sealed until `tune-dml open`"
    return [Problem(place, rule, space.metric, "Report a validation metric as val/..., and name that.")]
