"""Define and check the keys of a sweep file, which docs/sweep-files.md and docs/programs.md explain.

They are those of a W&B sweep file, and those of a paired study. `translate_file` replaces forms that only W&B has in the
sweep files of programs.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from trainables.config import SECTIONS
from trainables.errors import Problem
from trainables.methods import rule_of_any
from trainables.registries import every_setting
from tune_dml.planning.request import Stopping, Vary
from tune_dml.space import Grid, SearchMethod, Value
from tune_dml.text import is_number

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

_Setting = Value | list[float | int | str]
_Distribution = Literal["constant", "categorical", "uniform", "log_uniform", "log_uniform_values", "int_uniform"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Metric(_Part):
    name: str = "val/recall_at_1"
    goal: Literal["maximize", "minimize"] = "maximize"


class ParameterKeys(_Part):
    """The keys of a parameter: listed values, one value or a range."""

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
        if forms[2] == (self.distribution in {"categorical", "constant"}) and self.distribution is not None:
            raise ValueError(
                f"`distribution: {self.distribution}` goes with {'`values`' if forms[2] else '`min` and `max`'}"
            )
        return self

    @property
    def is_fixed(self) -> bool:
        """Whether the parameter is given by `value`."""
        return "value" in self.model_fields_set


class BaselineKeys(_Part):
    """The keys of a baseline that is no named arm."""

    label: str = "baseline"
    settings: dict[str, _Setting]


class _Tie(_Part):
    knob: str
    factor: float


class ArmKeys(_Part):
    """The keys of an arm."""

    settings: dict[str, _Setting] = Field(default_factory=dict)
    knobs: list[str] | None = None
    parameters: dict[str, ParameterKeys] = Field(default_factory=dict)
    ties: dict[str, _Tie] = Field(default_factory=dict)
    protocol: str | None = None
    against: str | list[str] = Field(default_factory=list, description="the arm, or arms, over which it may gain")

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, raw: Any) -> Any:
        """Read a mapping of dotted settings as an arm."""
        short = isinstance(raw, dict) and all("." in str(key) for key in raw)
        return {"settings": raw} if short else raw


class SweepFile(_Part):
    """The keys of a sweep file."""

    method: Literal[SearchMethod, "bayes"] = Field("grid", description="how cells are chosen; bayes is gp")
    parameters: dict[str, ParameterKeys] = Field(
        default_factory=dict,
        description="the knobs that are searched, by dotted names; may be left out if arms are listed",
    )
    arms: dict[str, ArmKeys] = Field(
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
    seeds: Annotated[int, Field(ge=1, strict=True)] | Annotated[list[int], Field(min_length=1)] | None = Field(
        None, description="how many paired seeds (3), or which ([0, 1, 7])"
    )
    fixed: dict[str, _Setting] = Field(
        default_factory=dict, description="settings that all trials share, by dotted names"
    )
    tune: dict[str, list[Value]] | list[str] = Field(
        default_factory=list, description="nuisance knobs, tuned in every arm: names, or names with their values"
    )
    baseline: BaselineKeys | str | None = Field(
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

    @property
    def trains_program(self) -> bool:
        """Whether each trial runs a script of the user's own."""
        return bool(self.program or self.command)


_PARTS: dict[str, type[_Part]] = {
    "": SweepFile, "metric": _Metric, "parameters": ParameterKeys, "arms": ArmKeys, "ties": _Tie, "baseline": BaselineKeys
}  # fmt: skip


def sweep_file_schema() -> dict[str, object]:
    """Return the JSON schema of a sweep file. Dotted names are every known setting, or any other name with a dot."""
    schema = SweepFile.model_json_schema()
    dotted = {"anyOf": [{"enum": every_setting()}, {"pattern": r"^\w+(\.\w+)+$"}]}
    for keys in ("parameters", "fixed"):
        schema["properties"][keys]["propertyNames"] = dotted
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A sweep file of tune-dml"}


def without_wrong_keys(raw: Mapping[str, Any], error: ValidationError) -> dict[str, object]:
    """Return the file's keys without the refused ones; of some keys, only the refused entries are left out."""
    locations = [item["loc"][:2] for item in error.errors()]
    several = {"metric", "parameters", "arms", "fixed"}
    remaining = {key: value for key, value in raw.items() if (key,) not in {p[:1] for p in locations} or key in several}
    for key in several & remaining.keys():
        wrong = [location[1] if len(location) > 1 else None for location in locations if location[:1] == (key,)]
        if isinstance(raw[key], dict) and None not in wrong:
            remaining[key] = {name: value for name, value in raw[key].items() if name not in wrong}
        elif wrong:
            del remaining[key]
    return remaining


def key_problems(error: ValidationError, path: Path, raw: Mapping[str, object]) -> list[Problem]:
    """Return one problem for each refused key, also for a value with several allowed forms."""
    by_keys: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for item in error.errors():
        by_keys.setdefault(_key_path(item["loc"], raw, item["type"]), []).append(item)
    problems = []
    for keys, items in by_keys.items():
        has_inner = any(len(longer) > len(keys) and longer[: len(keys)] == keys for longer in by_keys)
        typed = [item for item in items if not item["type"].endswith(("_type", "_parsing"))]
        if has_inner and not typed:
            continue  # the value has another form, whose errors are reported
        problems.append(_problem_at(path, keys, typed[:1] or items))
    return problems


def _problem_at(path: Path, keys: tuple[str, ...], errors: Sequence[ErrorDetails]) -> Problem:
    place = f"{path}, {'.'.join(keys)}" if keys else str(path)
    kind, value = errors[0]["type"], errors[0]["input"]
    if kind == "extra_forbidden":
        return _unknown_key(path, keys)
    if kind == "missing":
        return Problem(place, "must be given")
    if kind == "literal_error":
        allowed = [name.strip(" '") for name in re.split(",| or ", errors[0]["ctx"]["expected"])]
        return Problem(place, f"unknown {keys[-1]}", value, known=allowed, kind="value")
    return Problem(place, rule_of_any(errors), value if keys else None, _example(keys))


def _unknown_key(path: Path, keys: Sequence[str]) -> Problem:
    *above, name = keys
    part = above[-1] if len(above) % 2 else above[-2] if above else ""  # arms.NAME.parameters.PATH: names at odd places
    place = f"{path}, {'.'.join(above)}" if above else str(path)
    if above and above[-1] in SECTIONS:
        remedy = f"Write the setting in one word: `{above[-1]}.{name}: ...`."
        return Problem(place, "unknown key", name, remedy)
    if not above and name in _FOREIGN_KEYS:
        return Problem(place, "unknown key", name, _FOREIGN_KEYS[name])
    keys_of_part = list(_PARTS[part].model_fields) if part in _PARTS else []
    if "settings" in keys_of_part and name == "name":  # an arm may be written in short, as its settings
        keys_of_part += ["loss.name", "regularizer.name"]
    return Problem(place, "unknown key", name, known=keys_of_part, kind="key", dotted=True)


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


def grid_of(values: Sequence[Value]) -> Grid:
    """Return a grid of listed values; its axis is a category unless all are numbers, log if they spread over 10x."""
    numbers = [value for value in values if is_number(value)]
    if len(numbers) < len(values):
        return Grid(tuple(values), "category")
    return Grid(tuple(values), "log" if min(numbers) > 0 and max(numbers) >= 10 * min(numbers) else "linear")


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
