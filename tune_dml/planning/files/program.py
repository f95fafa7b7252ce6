"""Read and check the user's program that trains the trials, from a sweep file or from `--command`."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.option_names import option_place, option_problem, spell
from tune_dml.planning.files.keys import NO_PARAMETER, NO_PAUSE, SEED, SweepFile, grid_of
from tune_dml.planning.grouping import grouped
from tune_dml.planning.request import OwnCommand, Request
from tune_dml.programs.command import SETTING, Program, read_command, variable_of
from tune_dml.space import Knob, Space

_WANDB_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")


def program_space(space: Space, path: Path, file: SweepFile, problems: list[Problem]) -> Space:
    """Return a file's space with the program that trains its trials; add problems to `problems`."""
    unusable = {"arms": file.arms, "tune": file.tune, "baseline": file.baseline}
    rule = "a program can only have parameters"
    problems += [Problem(f"{path}, {key}", rule, None, "Leave it out.") for key, value in unusable.items() if value]
    problems += _reserved_problems([*file.fixed, *file.parameters], str(path))
    program = _program(path, file)
    is_wrong = f"{path}, margin" in {problem.place for problem in problems}
    return replace(
        space,
        arms=(),
        baseline=None,
        fixed={**space.fixed, SETTING: program.text},
        default_dataset=file.dataset or program.label,
        metric=space.metric if "name" in file.metric.model_fields_set else "",
        margin=space.margin if is_wrong or "margin" in file.model_fields_set else 0.0,
        program=program,
    )


def _program(path: Path, file: SweepFile) -> Program:
    """Return the program of a file: W&B's command around `program`, or the file's own.

    It runs in the file's folder if that holds its script, else in the working directory, as in W&B.
    """
    try:
        given = read_command(file.command) if isinstance(file.command, str) else file.command or _WANDB_COMMAND
    except ValueError as error:  # such as a quote that is not closed
        raise ConfigError(Problem(f"{path}, command", f"must be a valid shell command ({error})")) from None
    words = [str(word).replace("${program}", file.program or "${program}") for word in given]
    beside, script = path.absolute().parent, next((word for word in words if word.endswith((".py", ".sh"))), "")
    folder = beside if (beside / script).exists() else Path.cwd()
    return Program(tuple(words), str(folder), seed_flag=file.seed_flag, timeout=file.timeout)


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
    problems += _reserved_problems(params, option_place("params"))
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
            Knob(path, grid_of(listed), origin="user") for path, listed in params.items()
        ),
        fixed={SETTING: program.text}, default_dataset=program.label, metric=str(options.metric),
        goal=options.goal or "maximize", margin=0.0, program=program,
    )  # fmt: skip
    return replace(request, space=space)


def checked_program(space: Space, program: Program, request: Request) -> tuple[Space, list[Problem]]:
    """Return a program's space with its margin and notes, and the problems of a request for it.

    Notes name parameters and settings that the command does not pass. No default margin fits every metric.
    """
    declared, settings = [*space.fixed, *(knob.path for knob in space.knobs)], request.settings or {}
    names = [name for name in dict.fromkeys((*declared, *settings)) if name != SETTING]
    problems = _refused_options(request)
    problems += _reserved_problems(set(settings) - {SEED}, option_place("settings"))  # the seed is checked with others
    if not space.margin and request.margin is None:
        metric = space.metric or "the metric"
        rule = f"name the largest difference of {metric} that does not matter: every verdict depends on it"
        problems.append(option_problem("margin", rule, None, f"Example: {spell('margin', 0.01)}."))
    place = f"{space.origin}, program" if space.origin else option_place("command")
    problems += [
        Problem(place, f"parameters must not share one environment variable, {variable}", same, "Rename one of them.")
        for variable, same in grouped(names, variable_of).items()
        if same[1:]
    ]
    problems += program.problems(names, place)
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


def _reserved_problems(names: Iterable[str], place: str) -> list[Problem]:
    """Return a problem for each reserved name, whose value a program would not receive."""
    reserved = {
        SEED: (NO_PARAMETER, f"Write {spell('seeds', 3)} instead."),
        SETTING: ("a parameter cannot have the name of the setting that holds the command", "Rename it."),
    }
    return [
        Problem(place, rule, name, remedy) for name in names if name in reserved for rule, remedy in [reserved[name]]
    ]
