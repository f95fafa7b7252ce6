"""Read the YAML that a user writes, and turn a sweep file into a request."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from trainables.config import Settings
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import expand_home
from trainables.option_names import naming
from trainables.registries import takes_whole_numbers
from tune_dml.catalogue import find_protocol
from tune_dml.planning.files.keys import (
    ArmKeys,
    BaselineKeys,
    ParameterKeys,
    SweepFile,
    grid_of,
    is_program,
    key_problems,
    translate_file,
    without_wrong_keys,
)
from tune_dml.planning.files.program import program_space
from tune_dml.planning.request import Request, names_of
from tune_dml.space import Arm, Baseline, Domain, Knob, Protocol, Range, Space, Tie


class _Loader(yaml.SafeLoader):
    """Safe loader that refuses repeated keys and reads 1e-3 as a number, and `on`, `no` and `12:30` as text."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and keys.count(key.value) > 1 and key.value != "<<":
            raise yaml.constructor.ConstructorError(None, None, f"`{key.value}` is given twice", key.start_mark)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":int", ":timestamp"))]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"[-+]?(0|[1-9][0-9_]*|0b[01_]+|0[0-7_]+|0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


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
    space, is_program = _space(path, file, problems, notes), file.trains_program
    if is_program:
        space = program_space(space, path, file, problems)
    tune = file.tune if isinstance(file.tune, dict) else dict.fromkeys(file.tune, ())
    return Request(
        space,
        None if is_program else file.dataset,
        (path.parent / expand_home(file.data_root)) if file.data_root else None,
        tuple(file.seeds) if isinstance(file.seeds, list) else file.seeds,
        search="gp" if file.method == "bayes" else file.method,
        num_samples=file.run_cap or 0,
        protocol=file.protocol,
        tune=None if is_program else tune or None,
        vary=file.vary,
        stopping=file.stopping,
    )


def _space(path: Path, file: SweepFile, problems: list[Problem], notes: tuple[str, ...]) -> Space:
    """Return the space that a file declares; add problems to `problems`."""
    fixed = _with_fixed_values(file.fixed, file.parameters, f"{path}, parameters", problems)
    alternatives = [{**fixed, **arm.settings} for arm in file.arms.values()] or [fixed]
    knobs = _knobs(file.parameters, [] if file.trains_program else alternatives)
    name, baseline = file.name or path.stem, file.baseline
    listed = [knob.path for knob in knobs] + list(file.arms)
    return Space(
        name=name,
        title=file.description or f"{name}: {', '.join(listed)}",
        question="",
        citation=None,
        scientific=knobs,
        fixed=fixed,
        arms=tuple(_arm(path, name, arm, fixed, problems) for name, arm in file.arms.items()),
        baseline=Baseline(baseline.label, baseline.settings) if isinstance(baseline, BaselineKeys) else baseline,
        default_dataset=file.dataset or Space.default_dataset,
        metric=file.metric.name,
        goal=file.metric.goal,
        margin=file.margin,
        notes=notes,
        gain_differences=tuple(file.gain_differences),
        differs=file.differs,
        origin=str(path),
    )


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
        _with_fixed_values(arm.settings, arm.parameters, f"{path}, arms.{name}.parameters", problems),
        knobs=None if arm.knobs is None else tuple(arm.knobs),
        own_knobs=_knobs(arm.parameters, [{**fixed, **arm.settings}]),
        ties=tuple(
            Tie(path, tie.knob, int(tie.factor) if tie.factor.is_integer() else tie.factor)
            for path, tie in arm.ties.items()
        ),
        protocols=chosen,
        against=(arm.against,) if isinstance(arm.against, str) else tuple(arm.against),
    )


def _with_fixed_values(
    settings: Settings, parameters: dict[str, ParameterKeys], place: str, problems: list[Problem]
) -> dict[str, Any]:
    """Return settings with the parameters of one value; add a problem for a setting that is given in both ways."""
    values = {name: parameter.value for name, parameter in parameters.items() if parameter.is_fixed}
    rule = "the file gives this setting twice"
    problems += [Problem(f"{place}.{name}", rule, None, "Remove one of them.") for name in values if name in settings]
    return {**settings, **values}


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
        return grid_of(parameter.values)
    assert parameter.min is not None  # noqa: S101 - the validator has checked
    assert parameter.max is not None  # noqa: S101
    log = parameter.log or parameter.distribution in {"log_uniform", "log_uniform_values"}
    written = parameter.distribution is None and isinstance(parameter.min, int) and isinstance(parameter.max, int)
    integer = whole or written or parameter.distribution == "int_uniform"
    return Range(parameter.min, parameter.max, integer=integer, scale="log" if log else "linear")


def read_mapping(
    path: Path, kind: str = "sweep file", example: str = "`tune-dml init FOLDER` writes one."
) -> dict[str, object]:
    """Read a YAML file that holds a mapping. Raise ConfigError if it cannot be read, is not YAML or holds no mapping.

    Messages call the file by its `kind`; `example` is the remedy for a missing or empty file.
    """
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
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
