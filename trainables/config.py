"""One trial, as one frozen object: every setting that can change its numbers, resolved and checked.

    config, origins = TrialConfig.from_settings(layer, layer, ...)   # later layers win; raises ConfigError with every problem
    config.settings()                                                # the flat dotted form, defaults filled in
    config.digest()                                                  # the identity of a cell (seed excluded)

Imports no torch: the registries of methods are looked up when a configuration is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError

from trainables.errors import ConfigError, Problem, nearest
from trainables.parameters import parameters_of, problems_of, resolve
from trainables.sections import (
    AugmentConfig,
    BatchConfig,
    DataConfig,
    EvaluationConfig,
    LossConfig,
    Method,
    ModelConfig,
    OptimConfig,
    RegularizerConfig,
    Section,
    TaskConfig,
    TrainingConfig,
    methods_of,
    presets_of,
)

# Raised whenever the same configuration would train or judge differently than before.
PROTOCOL_VERSION = 2

# Where things lie, which replicate this is, and what is shown of it: not part of a cell's identity.
PLACES = frozenset({"seed", "data.root", "task.evaluation_root", "evaluation.sheet_queries"})

Value = float | int | str | bool | None


@dataclass(frozen=True)
class Layer:
    """Settings from one place, for `--set`, a file, a space, a protocol: the later layer wins."""

    origin: str
    settings: Mapping[str, Value]
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where single settings come from, more exactly than `origin` says."""

    def origin_of(self, path: str) -> str:
        """Where a setting of this layer comes from."""
        return self.sources.get(path, self.origin)


class TrialConfig(Section):
    """Everything that determines a trial's numbers, apart from the data's content."""

    task: TaskConfig = TaskConfig()
    loss: LossConfig = LossConfig()
    regularizer: RegularizerConfig = RegularizerConfig()
    batch: BatchConfig = BatchConfig()
    data: DataConfig = DataConfig()
    augment: AugmentConfig = AugmentConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    seed: Annotated[int, Field(ge=0)] = 0

    @classmethod
    def from_settings(cls, *layers: Layer) -> tuple[Self, dict[str, str]]:
        """Resolve layers of flat dotted settings; returns (configuration, origin of each setting).

        A layer that changes a method (`loss.name`) drops that method's knobs set by earlier layers, since they were
        meant for another one; of `training.steps` and `training.epochs` the one set by the later layer counts.
        Raises ConfigError with every problem of every section.
        """
        merged, origins = _merge(layers)
        sections: dict[str, Any] = {}
        problems: list[Problem] = []
        for path in sorted(merged):
            if path.partition(".")[0] not in cls.model_fields:
                known = [*cls.model_fields, *_known_paths()]
                problems.append(Problem(path, "unknown setting", merged[path], nearest(path, known, what="section")))
        for name, info in cls.model_fields.items():
            if name == "seed":
                continue
            part = {key.partition(".")[2]: value for key, value in merged.items() if key.startswith(name + ".")}
            section, found = _section(name, info.annotation, part)  # type: ignore[arg-type]
            sections[name] = section
            problems += [_with_origin(problem, origins) for problem in found]
        seed = merged.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            problems.append(Problem("seed", "must be a whole number >= 0", seed))
        sound = {name: section for name, section in sections.items() if section is not None}
        problems += [_with_origin(problem, origins) for problem in _cross_checks(sound)]
        if problems:
            raise ConfigError(problems)
        config = cls(**sections, seed=seed)
        resolved = config.settings()
        return config, {path: origins.get(path, "default") for path in resolved}

    def settings(self) -> dict[str, Value]:
        """The flat dotted form with every default filled in; `from_settings` of it gives this object back."""
        flat: dict[str, Any] = {}
        for name in type(self).model_fields:
            part = getattr(self, name)
            if not isinstance(part, Section):
                flat[name] = part
                continue
            own = part.model_dump()
            knobs = own.pop("parameters", {})
            flat.update({f"{name}.{key}": _listed(value) for key, value in {**own, **knobs}.items()})
        return flat

    def digest(self) -> str:
        """Identity of the cell: 16 hexadecimal digits of the resolved settings, without seed and folders."""
        identity = {key: value for key, value in self.settings().items() if key not in PLACES}
        return hashlib.sha256(canonical(identity).encode()).hexdigest()[:16]

    def with_seed(self, seed: int) -> Self:
        """The same cell under another seed."""
        return self.model_copy(update={"seed": seed})


def canonical(value: object) -> str:
    """JSON with sorted keys and no spaces: equal objects give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse_value(text: str) -> Value:
    """A setting typed on the command line: JSON when it is (`1`, `0.5`, `true`, `null`, `[1,2]`), else the text itself."""
    try:
        value: Value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    return value


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _merge(layers: tuple[Layer, ...]) -> tuple[dict[str, Value], dict[str, str]]:
    merged: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for path in _abandoned(merged, layer.settings):
            del merged[path], origins[path]
        changes = {**layer.settings, **_length(layer.settings)}
        merged.update(changes)
        origins.update({path: layer.origin_of(path) for path in changes})
    return merged, origins


def _abandoned(merged: Mapping[str, Value], settings: Mapping[str, Value]) -> set[str]:
    """The knobs set so far whose method a layer replaces by another one."""
    found: set[str] = set()
    for name, model in _method_sections().items():
        changed = {
            key
            for key in model.chooses
            if settings.get(f"{name}.{key}", _named(merged, name, key)) != _named(merged, name, key)
        }
        if not changed:
            continue
        kept = set(_fields(name))
        for key in set(model.chooses) - changed:
            method = methods_of(model.chooses[key]).get(str(_named(merged, name, key)))
            kept |= {knob.name for knob in parameters_of(method)} if method else set()
        found |= {path for path in merged if path.startswith(name + ".") and path.partition(".")[2] not in kept}
    return found


def _named(merged: Mapping[str, Value], section: str, key: str) -> Value:
    default: Value = _model(section).model_fields[key].default
    return merged.get(f"{section}.{key}", default)


LENGTHS = ("training.steps", "training.epochs")


def _length(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Steps and epochs exclude each other: to set one is to take back the other."""
    given = [path for path in LENGTHS if settings.get(path) is not None]
    return {path: None for path in LENGTHS if len(given) == 1 and path not in given}


def _model(section: str) -> Any:
    return TrialConfig.model_fields[section].annotation


@cache
def _method_sections() -> dict[str, type[Method]]:
    return {name: _model(name) for name in TrialConfig.model_fields if _is_a(Method, name)}


def _is_a(kind: type[Section], section: str) -> bool:
    return isinstance(_model(section), type) and issubclass(_model(section), kind)


def _fields(section: str) -> list[str]:
    return [name for name in _model(section).model_fields if name != "parameters"]


def _known_paths() -> list[str]:
    return [f"{name}.{key}" for name in TrialConfig.model_fields if _is_a(Section, name) for key in _fields(name)]


def _section(name: str, model: type[Section], part: Mapping[str, Value]) -> tuple[Section | None, list[Problem]]:
    fields = _fields(name)
    own: dict[str, Any] = {key: value for key, value in part.items() if key in fields}
    extra = {key: value for key, value in part.items() if key not in fields}
    problems: list[Problem] = []
    known = list(fields)
    if issubclass(model, Method):
        own["parameters"], extra, knobs, problems = _choose(name, model, own, extra)
        known += knobs
    for key, value in extra.items():
        problems.append(Problem(f"{name}.{key}", "unknown setting", value, nearest(key, known, what="setting")))
    try:
        section = model(**own)
    except ValidationError as error:
        return None, problems + problems_of(error, name, known)
    return section, problems


def _choose(
    name: str, model: type[Method], own: Mapping[str, Value], extra: Mapping[str, Value]
) -> tuple[dict[str, Any], dict[str, Value], list[str], list[Problem]]:
    """The knobs of a section's methods; returns (values, settings that are no knobs, known knobs, problems)."""
    values: dict[str, Any] = {}
    left = dict(extra)
    known: list[str] = []
    problems: list[Problem] = []
    for key, registry in model.chooses.items():
        method = str(own.get(key, model.model_fields[key].default))
        methods = methods_of(registry)
        if method not in methods:
            remedy = nearest(method, list(methods), what="name")
            problems.append(Problem(f"{name}.{key}", f"unknown {registry} method", method, remedy))
            left = {}  # they may be knobs of the method that was meant
            continue
        knobs = [knob.name for knob in parameters_of(methods[method])]
        given = {knob: left.pop(knob) for knob in knobs if knob in left}
        found, wrong = resolve(methods[method], {**presets_of(registry, method), **given}, name)
        values.update(found)
        known += knobs
        problems += wrong
    return values, left, known, problems


def _with_origin(problem: Problem, origins: Mapping[str, str]) -> Problem:
    origin = origins.get(problem.place)
    return (
        problem
        if origin is None
        else Problem(f"{problem.place} ({origin})", problem.rule, problem.value, problem.remedy)
    )


def _cross_checks(sections: Mapping[str, Any]) -> list[Problem]:
    """Rules that tie settings together and need no data, for the sections that are sound in themselves."""
    from trainables.regularizers.schedules import SCHEDULES
    from trainables.samplers import sampler_problems
    from trainables.tasks.task import tasks

    problems = []
    if (regularizer := sections.get("regularizer")) and regularizer.schedule not in SCHEDULES:
        remedy = nearest(regularizer.schedule, list(SCHEDULES))
        problems.append(Problem("regularizer.schedule", "unknown name", regularizer.schedule, remedy))
    if batch := sections.get("batch"):
        problems += sampler_problems(batch.sampler, batch.batch_size, batch.instances_per_class)
    if training := sections.get("training"):
        problems += _length_problems(training)
    if (data := sections.get("data")) and data.folds is not None and data.fold >= data.folds:
        problems.append(Problem("data.fold", f"must lie in 0 .. {data.folds - 1}", data.fold))
    if (model := sections.get("model")) and model.freeze_bn_affine and not model.freeze_bn:
        rule = "only a frozen batch normalisation can keep its gamma and beta"
        problems.append(Problem("model.freeze_bn_affine", rule, True, "Set model.freeze_bn=true."))
    if (task := sections.get("task")) and task.name in tasks():
        problems += tasks()[task.name].problems(sections)
    return problems


def _length_problems(training: TrainingConfig) -> list[Problem]:
    steps, epochs = training.steps, training.epochs
    if (steps is None) == (epochs is None):
        rule = "give either training.steps or training.epochs"
        return [Problem("training.steps", rule, {"steps": steps, "epochs": epochs}, "Set one to null.")]
    if steps is not None and training.eval_every > steps:
        rule = f"training.eval_every must not exceed training.steps ({steps})"
        return [Problem("training.eval_every", rule, training.eval_every, "Lower it.")]
    return []
