"""A user's own sweep in YAML that reads like a W&B sweep file, plus what a paired study needs.

name: my_margin                      # optional; the file's name otherwise
method: grid                         # grid | bayes (= tpe) | tpe | gp | random | qmc
metric: {name: val/recall_at_1, goal: maximize}
parameters:
  loss.margin: {values: [0.1, 0.2, 0.5]}
  optim.lr: {min: 1.0e-4, max: 1.0e-2, distribution: log_uniform}
  loss.name: {value: semihard_triplet}        # a fixed one
run_cap: 20                          # cells to propose, for all but grid
dataset: glyphs
data_root: path/to/pictures          # image_folder
seeds: 3
fixed: {training.steps: 300}
baseline: {label: no margin, settings: {loss.margin: 0.0}}
margin: 1.0                          # differences below this do not matter
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.methods import problems_of
from tune_dml.catalogue import protocols
from tune_dml.planning.request import Request
from tune_dml.space import Baseline, Domain, Grid, Knob, Range, SearchMethod, Space, Value
from tune_dml.text import is_number

Distribution = Literal["constant", "categorical", "uniform", "log_uniform", "log_uniform_values", "int_uniform"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Metric(_Part):
    name: str = "val/recall_at_1"
    goal: Literal["maximize", "minimize"] = "maximize"


class _Parameter(_Part):
    values: Annotated[list[Value], Field(min_length=1)] | None = None
    value: Value = None
    min: float | None = None
    max: float | None = None
    distribution: Distribution | None = None

    @model_validator(mode="after")
    def _one_of_three_forms(self) -> Self:
        given = self.model_fields_set
        forms = ["values" in given, "value" in given, bool({"min", "max"} & given)]
        if sum(forms) != 1:
            raise ValueError("must have either `values`, or `value`, or `min` and `max`")
        if forms[2] and (self.min is None or self.max is None):
            raise ValueError("a range needs both `min` and `max`")
        return self

    @property
    def is_fixed(self) -> bool:
        """Given by `value`."""
        return "value" in self.model_fields_set


class _Baseline(_Part):
    label: str = "baseline"
    settings: dict[str, Value]


class _File(_Part):
    method: Literal[SearchMethod, "bayes"]
    parameters: Annotated[dict[str, _Parameter], Field(min_length=1)]
    metric: _Metric = _Metric()
    name: str | None = None
    description: str = ""
    run_cap: Annotated[int, Field(ge=1)] | None = None
    dataset: str | None = None
    data_root: str | None = None
    seeds: Annotated[int, Field(ge=1)] | list[int] | None = None
    fixed: dict[str, Value] = Field(default_factory=dict)
    baseline: _Baseline | None = None
    margin: Annotated[float, Field(gt=0)] = 1.0


def read_sweep_file(path: Path) -> Request:
    """Read and check a sweep file; raises ConfigError with every problem. Loads no Python objects from YAML."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(Problem(str(path), "the sweep file must be readable", error.strerror)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(Problem(str(path), f"the sweep file must be YAML: {error}")) from None
    if not isinstance(raw, dict):
        raise ConfigError(Problem(str(path), "a sweep file is a mapping", raw, "Start with `method: grid`."))
    try:
        file = _File(**{str(key): value for key, value in raw.items()})
    except ValidationError as error:
        raise ConfigError(problems_of(error, str(path), list(_File.model_fields))) from None
    return _request(path, file)


def _request(path: Path, file: _File) -> Request:
    space = _space(path, file)
    raise_if_any(space.problems())
    seeds = tuple(file.seeds) or None if isinstance(file.seeds, list) else file.seeds
    root = (path.parent / Path(file.data_root).expanduser()) if file.data_root else None
    method: SearchMethod = "tpe" if file.method == "bayes" else file.method
    samples = 0 if method == "grid" else file.run_cap or 0
    return Request(space, file.dataset, root, seeds, search=method, num_samples=samples)


def _space(path: Path, file: _File) -> Space:
    searched = {name: parameter for name, parameter in file.parameters.items() if not parameter.is_fixed}
    fixed = {**file.fixed, **{name: p.value for name, p in file.parameters.items() if p.is_fixed}}
    knobs = [Knob(name, _domain(p), name.rpartition(".")[2], origin="user") for name, p in searched.items()]
    name = file.name or path.stem
    return Space(
        name=name,
        title=file.description or f"{name}: {', '.join(knob.path for knob in knobs)}",
        question="",
        citation=None,
        scientific=tuple(knobs),
        fixed=fixed,
        protocols=tuple(protocols().values()),
        baseline=Baseline(file.baseline.label, file.baseline.settings) if file.baseline else None,
        default_dataset=file.dataset or Space.default_dataset,
        metric=file.metric.name,
        goal=file.metric.goal,
        margin=file.margin,
        origin=str(path),
    )


def _domain(parameter: _Parameter) -> Domain:
    if parameter.values is not None:
        return Grid(tuple(parameter.values), _scale(parameter.values))
    assert parameter.min is not None  # noqa: S101 - the validator has seen to it
    assert parameter.max is not None  # noqa: S101
    log = parameter.distribution in {"log_uniform", "log_uniform_values"}
    whole = all(float(bound).is_integer() for bound in (parameter.min, parameter.max))
    integer = parameter.distribution == "int_uniform" or (parameter.distribution is None and whole)
    return Range(parameter.min, parameter.max, integer=integer, scale="log" if log else "linear")


def _scale(values: list[Value]) -> Any:
    """How to draw listed values: category unless all are numbers; log when positive and spread over 10x or more."""
    numbers = [value for value in values if is_number(value)]
    if len(numbers) < len(values):
        return "category"
    return "log" if min(numbers) > 0 and max(numbers) >= 10 * min(numbers) else "linear"
