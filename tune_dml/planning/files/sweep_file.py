"""Read a user's sweep file in YAML: the keys of a W&B sweep file, and those of a paired study.

name: my_margin                      # optional; by default the file's name
description: how large a margin      # optional; the study's title
method: grid                         # grid (the default) | bayes (= gp) | gp | tpe | cmaes | nsga2 | random | qmc
metric: {name: val/recall_at_1, goal: maximize}
parameters:                          # knobs of all arms; may be left out if arms are listed
  loss.margin: {values: [0.1, 0.2, 0.5]}
  optim.lr: {min: 1.0e-4, max: 1.0e-2, distribution: log_uniform}
  loss.name: {value: semihard_triplet}        # a fixed setting
run_cap: 20                          # cells to propose, for every method but grid
dataset: glyphs                      # the protocol follows from data set and loss
protocol: glyphs/triplet             # trains by this protocol instead
data_root: path/to/pictures          # image_folder
seeds: 3
fixed: {training.steps: 300}
tune: [optim.lr]                     # nuisance knobs, tuned in every arm; or {optim.lr: [1.0e-3, 1.0e-2]}
baseline: {label: no margin, settings: {loss.margin: 0.0}}      # or the name of an arm
margin: 1.0                          # differences below this do not matter
vary: all                            # what a seed changes: init | order | split | all
stopping: asha                       # stops weak cells early: asha | hyperband; curves are then incomplete
differs: each as its paper trains it # why arms may differ in protocol, pair term or reduction

Methods are compared as arms, in short or in full:

arms: {triplet: {loss.name: triplet}, ms: {loss.name: multi_similarity}}
arms:
  topk:
    settings: {loss.name: dro_topk}
    knobs: [batch.batch_size]        # of `parameters`; all of them if omitted, none with []
    parameters: {loss.base: {values: [margin, binomial]}}       # knobs of this arm only
    ties: {loss.k: {knob: batch.batch_size, factor: 2}}         # follows a knob: K = 2B
    protocol: glyphs/dro             # this arm's protocol
    against: plain                   # the first question is its gain over this arm (or over each of a list)
gain_differences: [[topk, kl]]       # whether the first gain is larger than the second

Trials are your own program with W&B's keys; `metric` is what it reports (docs/programs.md):

program: train.py                    # runs as: python train.py --lr=0.1 ... --seed=0
command: [python, train.py, --lr, "{lr}", --seed, "{seed}"]      # instead; also W&B's ${program}, ${args} ...
seed_flag: --random_state            # how ${args} passes the seed; null if the script takes none
timeout: 3600                        # seconds after which a trial has failed
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainables.config import Settings
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import expand_home
from trainables.option_names import naming
from trainables.registries import every_setting, takes_whole_numbers
from tune_dml.catalogue import find_protocol
from tune_dml.planning.files.key_problems import key_problems
from tune_dml.planning.files.program_space import reserved_problems, scale_of
from tune_dml.planning.files.wandb import is_program, translate_file
from tune_dml.planning.files.yaml_file import read_mapping
from tune_dml.planning.request import Request, Stopping, Vary, names_of
from tune_dml.programs.command import SETTING, Program, read_command
from tune_dml.space import Arm, Baseline, Domain, Grid, Knob, Protocol, Range, SearchMethod, Space, Tie, Value

_Setting = Value | list[float | int | str]
_Distribution = Literal["constant", "categorical", "uniform", "log_uniform", "log_uniform_values", "int_uniform"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Metric(_Part):
    name: str = "val/recall_at_1"
    goal: Literal["maximize", "minimize"] = "maximize"


class _Parameter(_Part):
    values: Annotated[list[Value], Field(min_length=1)] | None = None
    value: Value = None
    min: int | float | None = None
    max: int | float | None = None
    distribution: _Distribution | None = None
    log: bool | None = None

    @model_validator(mode="after")
    def _require_one_form(self) -> Self:
        stated = self.model_fields_set
        forms = ["values" in stated, "value" in stated, bool({"min", "max"} & stated)]
        if sum(forms) != 1:
            raise ValueError("must have either `values`, or `value`, or `min` and `max`")
        if forms[0] and self.values is None:
            raise ValueError("`values` must be a list")
        if forms[2] and (self.min is None or self.max is None):
            raise ValueError("a range needs both `min` and `max`")
        if self.log is not None and not (forms[2] and self.distribution in {None, "int_uniform"}):
            raise ValueError("`log` goes with `min` and `max`, in place of `distribution: log_uniform`")
        return self

    @property
    def is_fixed(self) -> bool:
        """Whether the parameter is given by `value`."""
        return "value" in self.model_fields_set


class _Baseline(_Part):
    label: str = "baseline"
    settings: dict[str, _Setting]


class _Tie(_Part):
    knob: str
    factor: float


class _Arm(_Part):
    settings: dict[str, _Setting] = Field(default_factory=dict)
    knobs: list[str] | None = None
    parameters: dict[str, _Parameter] = Field(default_factory=dict)
    ties: dict[str, _Tie] = Field(default_factory=dict)
    protocol: str | None = None
    against: str | list[str] = Field(default_factory=list, description="the arm, or arms, over which it may gain")

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, raw: Any) -> Any:
        """Read a mapping of dotted settings as an arm."""
        short = isinstance(raw, dict) and all("." in str(key) for key in raw)
        return {"settings": raw} if short else raw


class _File(_Part):
    method: Literal[SearchMethod, "bayes"] = Field("grid", description="how cells are chosen; bayes is gp")
    parameters: dict[str, _Parameter] = Field(
        default_factory=dict,
        description="the knobs that are searched, by dotted names; may be left out if arms are listed",
    )
    arms: dict[str, _Arm] = Field(
        default_factory=dict, description="methods that are compared: name -> dotted settings, or an arm in full"
    )
    metric: _Metric = Field(_Metric(), description="the metric that judges the sweep")
    name: str | None = Field(None, description="the sweep's name; the file's otherwise")
    description: str = Field("", description="the title of the report")
    run_cap: int | None = Field(None, ge=1, description="cells to propose, for every method but grid")
    dataset: str | None = Field(None, description="`tune-dml datasets` lists them")
    protocol: str | None = Field(
        None, description="train by this protocol; the one printed for data set and loss otherwise"
    )
    data_root: str | None = Field(None, description="folder of the pictures, from the file's own folder")
    seeds: Annotated[int, Field(ge=1, strict=True)] | list[int] | None = Field(
        None, description="how many paired seeds (3), or which ([0, 1, 7])"
    )
    fixed: dict[str, _Setting] = Field(
        default_factory=dict, description="settings that all trials share, by dotted names"
    )
    tune: dict[str, list[Value]] | list[str] = Field(
        default_factory=list, description="nuisance knobs, tuned in every arm: names, or names with their values"
    )
    baseline: _Baseline | str | None = Field(
        None, description="the arm that the others are compared with: settings, or the name of an arm"
    )
    margin: float = Field(1.0, gt=0, description="differences below this do not matter, in units of the metric")
    vary: Vary | None = Field(None, description="let seeds vary only this source of randomness")
    stopping: Stopping | None = Field(None, description="stop weak cells early; curves are then incomplete")
    gain_differences: list[tuple[str, str]] = Field(
        default_factory=list, description="pairs of arms with `against`: whether the first one's gain is the larger"
    )
    differs: str = Field(
        "", description="why arms may differ in protocol, pair term or reduction; they must not otherwise"
    )

    program: str | None = Field(None, description="your own training script, which runs each trial")
    command: str | list[str | int | float] | None = Field(
        None, description="how the program is run, with {parameter} and {seed}, or W&B's ${program} and ${args}"
    )
    seed_flag: str | None = Field("--seed", description="the flag that passes the seed; null if the script has none")
    timeout: float | None = Field(None, gt=0, description="seconds after which a trial of a program has failed")

    @model_validator(mode="after")
    def _require_cells(self) -> Self:
        if not self.parameters and not self.arms:
            raise ValueError("a sweep file needs `parameters` or `arms`")
        return self


_PARTS: dict[str, type[_Part]] = {
    "": _File, "metric": _Metric, "parameters": _Parameter, "arms": _Arm, "ties": _Tie, "baseline": _Baseline
}  # fmt: skip
_WANDB_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")


def sweep_file_schema() -> dict[str, object]:
    """Return the JSON schema of a sweep file. Dotted names are every known setting, or any other name with a dot."""
    schema = _File.model_json_schema()
    dotted = {"anyOf": [{"enum": every_setting()}, {"pattern": r"^\w+(\.\w+)+$"}]}
    for keys in ("parameters", "fixed"):
        schema["properties"][keys]["propertyNames"] = dotted
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A sweep file of tune-dml"}


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
    problems: list[Problem] = []
    notes: tuple[str, ...] = ()
    if is_program(raw):
        raw, notes, problems = translate_file(path, raw)
    try:
        file = _File(**raw)
    except ValidationError as error:
        known_places = {problem.place for problem in problems}
        problems += [item for item in key_problems(error, path, raw, _PARTS) if item.place not in known_places]
        try:
            file = _File(**_drop_keys(raw, [item["loc"][:2] for item in error.errors()]))
        except ValidationError:
            raise ConfigError(problems) from None
    return _request(path, file, problems, notes), problems


def _drop_keys(raw: dict[str, Any], locations: list[tuple[Any, ...]]) -> dict[str, object]:
    """Return the mapping without these keys; `metric`, `parameters`, `arms` and `fixed` lose only single entries."""
    several = {"metric", "parameters", "arms", "fixed"}
    remaining = {key: value for key, value in raw.items() if (key,) not in {p[:1] for p in locations} or key in several}
    for key in several & remaining.keys():
        wrong = [location[1] if len(location) > 1 else None for location in locations if location[:1] == (key,)]
        if isinstance(raw[key], dict) and None not in wrong:
            remaining[key] = {name: value for name, value in raw[key].items() if name not in wrong}
        elif wrong:
            del remaining[key]
    return remaining


def _request(path: Path, file: _File, problems: list[Problem], notes: tuple[str, ...]) -> Request:
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


def _space(path: Path, file: _File, program: Program | None, problems: list[Problem], notes: tuple[str, ...]) -> Space:
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
        problems += reserved_problems(names, str(path))
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
        baseline=Baseline(baseline.label, baseline.settings) if isinstance(baseline, _Baseline) else baseline,
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


def _program(path: Path, file: _File, problems: list[Problem]) -> Program:
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


def _arm(path: Path, name: str, arm: _Arm, fixed: Settings, problems: list[Problem]) -> Arm:
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


def _fixed_values(parameters: dict[str, _Parameter]) -> dict[str, Value]:
    return {name: parameter.value for name, parameter in parameters.items() if parameter.is_fixed}


def _knobs(parameters: dict[str, _Parameter], settings: Sequence[Settings]) -> tuple[Knob, ...]:
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


def _domain(parameter: _Parameter, *, whole: bool) -> Domain:
    """Return the listed values or the range of a parameter.

    A range holds whole numbers if the knob takes no others, with `int_uniform`, or, as in W&B, if both ends are written
    as whole numbers (1, not 1.0) without a distribution.
    """
    if parameter.values is not None:
        return Grid(tuple(parameter.values), scale_of(parameter.values))
    assert parameter.min is not None  # noqa: S101 - the validator has checked
    assert parameter.max is not None  # noqa: S101
    log = parameter.log or parameter.distribution in {"log_uniform", "log_uniform_values"}
    written = parameter.distribution is None and isinstance(parameter.min, int) and isinstance(parameter.max, int)
    integer = whole or written or parameter.distribution == "int_uniform"
    return Range(parameter.min, parameter.max, integer=integer, scale="log" if log else "linear")
