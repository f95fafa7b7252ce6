"""Turn a user's sweep file, or the command of `--command`, into a request, and check the programs that they run."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainables.config import Settings
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import expand_home
from trainables.option_names import naming, option_place, option_problem, spell
from trainables.registries import takes_whole_numbers
from tune_dml.catalogue import find_protocol
from tune_dml.planning.files.keys import (
    ArmKeys,
    BaselineKeys,
    ParameterKeys,
    SweepFile,
    key_problems,
    without_wrong_keys,
)
from tune_dml.planning.files.wandb import NO_PARAMETER, NO_PAUSE, SEED, is_program, translate_file
from tune_dml.planning.files.yaml_file import read_mapping
from tune_dml.planning.request import OwnCommand, Request, names_of
from tune_dml.programs.command import SETTING, Program, read_command
from tune_dml.space import Arm, Baseline, Domain, Grid, Knob, Protocol, Range, Scale, Space, Tie, Value
from tune_dml.text import is_number

_WANDB_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")


def read_sweep_file(path: Path) -> Request:
    """Read and check a sweep file with a safe loader. Raise ConfigError with every problem."""
    request, problems = read_with_problems(path)
    assert isinstance(request.space, Space)  # noqa: S101 - a sweep file declares one
    with naming(names_of(Request(path))):
        raise_if_any([*problems, *request.space.problems()])
    return request


def read_with_problems(path: Path) -> tuple[Request, list[Problem]]:
    """Return the readable part of a sweep file as a request, and its problems.

    Raises ConfigError if no part of it is readable.
    """
    raw = read_mapping(path)
    notes: tuple[str, ...] = ()
    problems: list[Problem] = []
    if is_program(raw):
        raw, notes, problems = translate_file(path, raw)
    try:
        file = SweepFile(**raw)
    except ValidationError as error:
        known_places = {problem.place for problem in problems}
        problems += [item for item in key_problems(error, path, raw) if item.place not in known_places]
        try:
            file = SweepFile(**without_wrong_keys(raw, error))
        except ValidationError:
            raise ConfigError(problems) from None
    return _request(path, file, problems, notes), problems


def _request(path: Path, file: SweepFile, problems: list[Problem], notes: tuple[str, ...]) -> Request:
    program = _program(path, file, problems) if file.program or file.command else None
    if program is not None:
        file = file.model_copy(update={"arms": {}, "tune": [], "baseline": None})  # refused
    tune = file.tune if isinstance(file.tune, dict) else dict.fromkeys(file.tune, ())
    return Request(
        _space(path, file, program, problems, notes),
        None if program else file.dataset,
        (path.parent / expand_home(file.data_root)) if file.data_root else None,
        tuple(file.seeds) or None if isinstance(file.seeds, list) else file.seeds,
        search="gp" if file.method == "bayes" else file.method,
        num_samples=file.run_cap or 0,
        protocol=file.protocol,
        tune=tune or None,
        vary=file.vary,
        stopping=file.stopping,
    )


def _space(
    path: Path, file: SweepFile, program: Program | None, problems: list[Problem], notes: tuple[str, ...]
) -> Space:
    """Return the space that a file declares; add problems to `problems`."""
    fixed: dict[str, Any] = {**file.fixed, **_fixed_values(file.parameters)}
    alternatives = [{**fixed, **arm.settings} for arm in file.arms.values()] or [fixed]
    knobs = _knobs(file.parameters, [] if program else alternatives)
    name, margin, default_dataset = file.name or path.stem, file.margin, Space.default_dataset
    metric = file.metric.name
    arms = tuple(_arm(path, name, arm, fixed, problems) for name, arm in file.arms.items())
    listed = [knob.path for knob in knobs] + list(file.arms)
    if program is not None:
        names = [*fixed, *(knob.path for knob in knobs)]
        problems += _reserved_problems(names, str(path))
        problems += program.problems(names, f"{path}, {'command' if file.command else 'program'}")
        fixed, default_dataset = {**fixed, SETTING: program.text}, program.label
        wrong_margin = f"{path}, margin" in {problem.place for problem in problems}
        margin = margin if wrong_margin or "margin" in file.model_fields_set else 0.0
        metric = metric if "name" in file.metric.model_fields_set else ""
    baseline = file.baseline
    return Space(
        name=name,
        title=file.description or f"{name}: {', '.join(listed)}",
        question="",
        citation=None,
        scientific=knobs,
        fixed=fixed,
        arms=arms,
        baseline=Baseline(baseline.label, baseline.settings) if isinstance(baseline, BaselineKeys) else baseline,
        default_dataset=file.dataset or default_dataset,
        metric=metric,
        goal=file.metric.goal,
        margin=margin,
        notes=notes,
        gain_differences=tuple(file.gain_differences),
        differs=file.differs,
        program=program,
        origin=str(path),
    )


def _program(path: Path, file: SweepFile, problems: list[Problem]) -> Program:
    """Return the program of a file: W&B's command around `program`, or the file's own; add problems to `problems`.

    It runs in the file's folder if that holds its script, else in the working directory, as in W&B.
    """
    unusable = {"arms": file.arms, "tune": file.tune, "baseline": file.baseline}
    rule = "a program can only have parameters"
    problems += [Problem(f"{path}, {key}", rule, None, "Leave it out.") for key, value in unusable.items() if value]
    try:
        given = read_command(file.command) if isinstance(file.command, str) else file.command or _WANDB_COMMAND
    except ValueError as error:  # such as a quote that is not closed
        raise ConfigError(Problem(f"{path}, command", f"must be a valid shell command ({error})")) from None
    words = [str(word).replace("${program}", file.program or "${program}") for word in given]
    beside, script = path.absolute().parent, next((word for word in words if word.endswith((".py", ".sh"))), "")
    folder = beside if (beside / script).exists() else Path.cwd()
    return Program(tuple(words), str(folder), seed_flag=file.seed_flag, timeout=file.timeout)


def _arm(path: Path, name: str, arm: ArmKeys, fixed: Settings, problems: list[Problem]) -> Arm:
    """Return an arm of a space. Leave out an unknown protocol, and add a problem for it."""
    if not name.strip():
        problems.append(
            Problem(f"{path}, arms", "an arm must have a name", name, "Tables and figures call it by that.")
        )
    chosen: tuple[Protocol, ...] = ()
    try:
        chosen = () if arm.protocol is None else (find_protocol(arm.protocol, f"{path}, arms.{name}.protocol"),)
    except ConfigError as error:
        problems += error.problems
    return Arm(
        name,
        {**arm.settings, **_fixed_values(arm.parameters)},
        knobs=None if arm.knobs is None else tuple(arm.knobs),
        own_knobs=_knobs(arm.parameters, [{**fixed, **arm.settings}]),
        ties=tuple(
            Tie(path, tie.knob, int(tie.factor) if tie.factor.is_integer() else tie.factor)
            for path, tie in arm.ties.items()
        ),
        protocols=chosen,
        against=(arm.against,) if isinstance(arm.against, str) else tuple(arm.against),
    )


def _fixed_values(parameters: dict[str, ParameterKeys]) -> dict[str, Value]:
    return {name: parameter.value for name, parameter in parameters.items() if parameter.is_fixed}


def _knobs(parameters: dict[str, ParameterKeys], settings: Sequence[Settings]) -> tuple[Knob, ...]:
    """Return the searched knobs. A knob's symbol is the last part of its path if no other knob has the same.

    The `settings` of each arm with these knobs decide whether a knob takes whole numbers only.
    """
    searched = {path: parameter for path, parameter in parameters.items() if not parameter.is_fixed}
    last = [path.rpartition(".")[2] for path in searched]
    return tuple(
        Knob(
            path,
            _domain(
                parameter, whole=parameter.values is None and any(takes_whole_numbers(path, arm) for arm in settings)
            ),
            symbol if last.count(symbol) == 1 and symbol != "name" else path,
            origin="user",
        )
        for (path, parameter), symbol in zip(searched.items(), last, strict=True)
    )


def _domain(parameter: ParameterKeys, *, whole: bool) -> Domain:
    """Return the listed values or the range of a parameter.

    A range holds whole numbers if the knob takes no others, with `int_uniform`, or, as in W&B, if both ends are written
    as whole numbers (1, not 1.0) without a distribution.
    """
    if parameter.values is not None:
        return Grid(tuple(parameter.values), _scale_of(parameter.values))
    assert parameter.min is not None  # noqa: S101 - the validator has checked
    assert parameter.max is not None  # noqa: S101
    log = parameter.log or parameter.distribution in {"log_uniform", "log_uniform_values"}
    written = parameter.distribution is None and isinstance(parameter.min, int) and isinstance(parameter.max, int)
    integer = whole or written or parameter.distribution == "int_uniform"
    return Range(parameter.min, parameter.max, integer=integer, scale="log" if log else "linear")


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
            Knob(path, Grid(tuple(listed), _scale_of(listed)), origin="user") for path, listed in params.items()
        ),
        fixed={SETTING: program.text}, default_dataset=program.label, metric=str(options.metric),
        goal=options.goal or "maximize", margin=0.0, program=program,
    )  # fmt: skip
    return replace(request, space=space)


def _scale_of(values: Sequence[Value]) -> Scale:
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
    problems = _refused_options(request)
    if not space.origin:  # a sweep file names the key of its command
        problems += program.problems(names, option_place("command"))
    problems += _reserved_problems(set(settings) - {SEED}, option_place("settings"))  # the seed is checked with others
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


def _reserved_problems(names: Iterable[str], place: str) -> list[Problem]:
    """Return a problem for each reserved name, whose value a program would not receive."""
    reserved = {
        SEED: (NO_PARAMETER, f"Write {spell('seeds', 3)} instead."),
        SETTING: ("a parameter cannot have the name of the setting that holds the command", "Rename it."),
    }
    return [
        Problem(place, rule, name, remedy) for name in names if name in reserved for rule, remedy in [reserved[name]]
    ]
