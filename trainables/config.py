"""One trial, as one frozen object: every setting that can change its numbers, resolved and checked.

    config, origins = TrialConfig.from_settings(layer, layer, ...)   # later layers win; raises ConfigError with every problem
    config.settings()                                                # the flat dotted form, defaults filled in
    config.digest()                                                  # the identity of a cell (seed excluded)

Imports no torch: the registries of methods are looked up when a configuration is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainables.errors import ConfigError, Problem, nearest
from trainables.parameters import parameters_of, problems_of, resolve

__all__ = ["PROTOCOL_VERSION", "Layer", "TrialConfig", "canonical", "parse_value"]

# Raised whenever the same configuration would train or judge differently than before.
PROTOCOL_VERSION = 1

# Where things lie and which replicate this is: not part of a cell's identity.
PLACES = frozenset({"seed", "data.root", "task.evaluation_root"})

Value = float | int | str | bool | None


class Section(BaseModel):
    """A named part of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Method(Section):
    """A part that names a method; the method's own knobs live in `parameters`."""

    name: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class TaskConfig(Method):
    """What is trained for and how it is judged: retrieval of unseen classes, face recognition, contrastive learning."""

    name: str = "retrieval"


class LossConfig(Method):
    """The metric loss; it sees raw embeddings and normalises inside."""

    name: str = "triplet"


class RegularizerConfig(Method):
    """L = L_metric + eta_t * L_regularizer."""

    name: str = "none"
    eta: Annotated[float, Field(ge=0, description="weight of the regularizer; 0 skips it")] = 0.0
    schedule: Annotated[str, Field(description="how eta grows over training")] = "constant"


class BatchConfig(Section):
    """The global batch and how its pictures are drawn."""

    sampler: str = "m_per_class"
    batch_size: Annotated[int, Field(ge=1, description="pictures in the global batch")] = 90
    instances_per_class: Annotated[int, Field(ge=1, description="pictures per class, M")] = 3


class DataConfig(Method):
    """The data set and its class-disjoint split."""

    name: str = "glyphs"
    root: Annotated[str | None, Field(description="folder of the pictures; not part of the identity")] = None
    validation_fraction: Annotated[float, Field(gt=0, lt=1, description="share of training classes")] = 0.25
    split: Annotated[
        Literal["class_disjoint", "shared_classes", "paper_test_selection"],
        Field(
            description="what is held out: classes, or pictures of every class (contrastive learning); "
            "paper_test_selection validates on the test half, as the papers did"
        ),
    ] = "class_disjoint"


class ModelConfig(Section):
    """Backbone, pooling and head; the output is the un-normalised embedding."""

    backbone: str = "small_conv"
    pooling: str = "avg"
    head: str = "fc"
    embedding_dim: Annotated[int, Field(ge=1)] = 64


class OptimConfig(Section):
    """The optimizer and its schedule."""

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    loss_lr_multiplier: Annotated[float, Field(gt=0, description="lr of proxies over lr")] = 100.0
    lr_decay: Annotated[float, Field(gt=0, le=1, description="factor at each milestone")] = 1.0
    lr_milestones: Annotated[tuple[int, ...], Field(description="steps before which lr is multiplied")] = ()


class TrainingConfig(Section):
    """How long to train and when to judge."""

    steps: Annotated[int, Field(ge=1)] = 300
    eval_every: Annotated[int, Field(ge=1, description="steps between evaluations and checkpoints")] = 100
    precision: Literal["float32", "float64"] = "float32"


class EvaluationConfig(Section):
    """What is measured, and which evaluation counts."""

    ks: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (1, 2, 4, 8)
    epoch: Annotated[
        Literal["last", "best_validation"],
        Field(description="the evaluation a trial is judged by: the last, or the best on validation"),
    ] = "last"


@dataclass(frozen=True)
class Layer:
    """Settings from one place, for `--set`, a file, a space, a protocol: the later layer wins."""

    origin: str
    settings: Mapping[str, Value]


class TrialConfig(Section):
    """Everything that determines a trial's numbers, apart from the data's content."""

    task: TaskConfig = TaskConfig()
    loss: LossConfig = LossConfig()
    regularizer: RegularizerConfig = RegularizerConfig()
    batch: BatchConfig = BatchConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    seed: Annotated[int, Field(ge=0)] = 0

    @classmethod
    def from_settings(cls, *layers: Layer) -> tuple[Self, dict[str, str]]:
        """Resolve layers of flat dotted settings; returns (configuration, origin of each setting).

        A layer that changes a section's method (`loss.name`) drops that method's knobs set by earlier layers, since they
        were meant for another method. Raises ConfigError with every problem of every section.
        """
        merged, origins = _merge(layers)
        sections: dict[str, Any] = {}
        problems: list[Problem] = []
        for path in sorted(merged):
            if path.partition(".")[0] not in cls.model_fields:
                known = [*cls.model_fields, *_known_paths()]
                problems.append(
                    Problem(path, "unknown setting", merged[path], nearest(path, known, what="section"))
                )
        for name, info in cls.model_fields.items():
            if name == "seed":
                continue
            part = {
                key.partition(".")[2]: value for key, value in merged.items() if key.startswith(name + ".")
            }
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
            for key, value in part.model_dump().items():
                if key == "parameters":
                    flat.update({f"{name}.{knob}": item for knob, item in value.items()})
                else:
                    flat[f"{name}.{key}"] = list(value) if isinstance(value, tuple) else value
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


def methods_of(section: str) -> dict[str, type]:
    """Name -> class of the methods a section can name."""
    from trainables.data import DATASETS
    from trainables.losses import LOSSES
    from trainables.regularizers import REGULARIZERS
    from trainables.task import tasks

    registries: dict[str, Mapping[str, type]] = {
        "task": tasks(),
        "loss": LOSSES,
        "regularizer": REGULARIZERS,
        "data": DATASETS,
    }
    return dict(registries[section])


def _merge(layers: tuple[Layer, ...]) -> tuple[dict[str, Value], dict[str, str]]:
    merged: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for name in _method_sections():
            renamed = layer.settings.get(f"{name}.name", merged.get(f"{name}.name"))
            if renamed != merged.get(f"{name}.name"):
                common = {f"{name}.{key}" for key in _fields(name)}
                for path in [path for path in merged if path.startswith(name + ".") and path not in common]:
                    del merged[path], origins[path]
        merged.update(layer.settings)
        origins.update(dict.fromkeys(layer.settings, layer.origin))
    return merged, origins


def _method_sections() -> list[str]:
    return [
        name
        for name, info in TrialConfig.model_fields.items()
        if isinstance(info.annotation, type) and issubclass(info.annotation, Method)
    ]


def _fields(section: str) -> list[str]:
    model: Any = TrialConfig.model_fields[section].annotation
    return [name for name in model.model_fields if name != "parameters"]


def _known_paths() -> list[str]:
    paths = []
    for name, info in TrialConfig.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            paths += [f"{name}.{field}" for field in _fields(name)]
    return paths


def _section(
    name: str, model: type[Section], part: Mapping[str, Value]
) -> tuple[Section | None, list[Problem]]:
    fields = _fields(name)
    own = {key: value for key, value in part.items() if key in fields}
    extra = {key: value for key, value in part.items() if key not in fields}
    problems: list[Problem] = []
    known = list(fields)
    if issubclass(model, Method):
        method = str(own.get("name", model.model_fields["name"].default))
        methods = methods_of(name)
        if method in methods:
            known += [parameter.name for parameter in parameters_of(methods[method])]
            unknown = {key: value for key, value in extra.items() if key not in known}
            values, problems = resolve(methods[method], {k: v for k, v in extra.items() if k in known}, name)
            own["parameters"] = values  # type: ignore[assignment]
            extra = unknown
        else:
            remedy = nearest(method, list(methods), what="name")
            problems.append(Problem(f"{name}.name", f"unknown {name} method", method, remedy))
            extra = {}
    for key, value in extra.items():
        problems.append(
            Problem(f"{name}.{key}", "unknown setting", value, nearest(key, known, what="setting"))
        )
    try:
        section = model(**own)
    except ValidationError as error:
        return None, problems + problems_of(error, name, known)
    return section, problems


def _with_origin(problem: Problem, origins: Mapping[str, str]) -> Problem:
    origin = origins.get(problem.place)
    return (
        problem
        if origin is None
        else Problem(f"{problem.place} ({origin})", problem.rule, problem.value, problem.remedy)
    )


def _cross_checks(sections: Mapping[str, Any]) -> list[Problem]:
    """Rules that tie settings together and need no data, for the sections that are sound in themselves."""
    from trainables.models import BACKBONES, HEADS, POOLINGS
    from trainables.regularizers.schedules import SCHEDULES
    from trainables.samplers import sampler_problems
    from trainables.task import tasks

    problems = []
    named: list[tuple[str, str, Mapping[str, Callable[..., Any]]]] = [
        ("model", "backbone", BACKBONES),
        ("model", "pooling", POOLINGS),
        ("model", "head", HEADS),
        ("regularizer", "schedule", SCHEDULES),
    ]
    for section, key, registry in named:
        value = getattr(sections.get(section), key, None)
        if value is not None and value not in registry:
            problems.append(
                Problem(f"{section}.{key}", "unknown name", value, nearest(value, list(registry)))
            )
    if batch := sections.get("batch"):
        problems += sampler_problems(batch.sampler, batch.batch_size, batch.instances_per_class)
    training = sections.get("training")
    if training is not None and training.eval_every > training.steps:
        rule = f"training.eval_every must not exceed training.steps ({training.steps})"
        problems.append(Problem("training.eval_every", rule, training.eval_every, "Lower it."))
    if (task := sections.get("task")) and task.name in tasks():
        problems += tasks()[task.name].problems(sections)
    return problems
