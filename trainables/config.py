"""Define a trial's configuration as one frozen object, with every setting that can change its numbers.

A section that names methods (`loss.name`, `model.backbone`) holds the knobs that each method declares in its
constructor; in the flat form they stand beside the section's own fields (`loss.margin`, `model.weights`). The module
imports only pydantic. `trainables.resolve` turns layers of settings into a checked `TrialConfig`.

    config.settings()        the flat dotted form, with defaults
    config.digest()          the identity of a cell (without the seed)
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field

from trainables.methods import NoBooleanNumbers

# Increased whenever the same configuration would give other numbers.
PROTOCOL_VERSION = 3

# Settings outside a cell's identity: paths, replicate and display.
_NOT_IDENTITY = frozenset(
    ["seed", "data.root", "task.evaluation_root"]
    + [f"evaluation.{name}" for name in ("sheet_queries", "clustering", "feature_maps", "keep")]
)

# Sources of randomness that can have their own seed; null means the trial's seed.
Source = Literal["init", "order", "split"]
SOURCES: tuple[Source, ...] = get_args(Source)
SEED_LIMIT = 2**63  # torch takes seeds below it
FREE_SEEDS = frozenset(f"seeds.{source}" for source in SOURCES)

# Settings added later, with neutral values. A cell's identity omits neutral settings, so that older cells keep theirs.
_LATER_SETTINGS: Mapping[str, object] = {
    "data.label_noise": 0.0,
    "data.pictures_per_class": None,
    "data.long_tail": None,
    "loss.denominator": "all",
    "memory.size": 0,
    "memory.start": 0,
    "memory.weight": 1.0,
    "model.head_init": "he_fan_out",
    "model.red_mean": 128.0,
    **dict.fromkeys(FREE_SEEDS),
}

HeadInit = Literal["he_fan_out", "torch", "torch_zero_bias"]
"""Initial weights of a head's linear layers; see `trainables.models.base.Head.initialise`."""

Value = float | int | str | bool | None
Knobs = dict[str, Any]
Settings = Mapping[str, Any]
"""Dotted name -> value; `TrialConfig` checks each value."""


class ConfigSection(NoBooleanNumbers):
    """A named part of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    chooses: ClassVar[Mapping[str, str]] = {}
    """Field that names a method -> its registry (see `trainables.registries.methods_of`)."""

    @classmethod
    @cache
    def own_fields(cls) -> tuple[str, ...]:
        """Return the section's own settings, without methods' knobs."""
        return tuple(name for name in cls.model_fields if name != "parameters")

    @cached_property
    def flat(self) -> dict[str, Value]:
        """The section's settings by name."""
        return {name: _tuple_to_list(getattr(self, name)) for name in self.own_fields()}


class MethodSection(ConfigSection):
    """A section that names methods."""

    parameters: dict[str, Knobs] = Field(default_factory=dict)
    """Field that names a method -> that method's knobs."""

    def knobs(self, chooser: str = "name") -> Knobs:
        """Return the knobs of the method that a field names."""
        return dict(self.parameters.get(chooser, {}))

    @cached_property
    def flat(self) -> dict[str, Value]:
        """The section's settings and its methods' knobs by name."""
        names = flat_names(type(self), self.parameters)
        return super().flat | {
            name: _tuple_to_list(self.parameters[chooser][knob]) for (chooser, knob), name in names.items()
        }


def flat_names(section: type[MethodSection], knobs: Mapping[str, Iterable[str]]) -> dict[tuple[str, str], str]:
    """Return (field that names the method, knob) -> the knob's name within the section.

    The name is the knob's own (`weights`), or field and knob (`pooling.p`) if several settings of the section share it.
    """
    pairs = [(chooser, knob) for chooser, own in knobs.items() for knob in own]
    names = [*section.own_fields(), *(knob for _, knob in pairs)]
    return {(chooser, knob): knob if names.count(knob) == 1 else f"{chooser}.{knob}" for chooser, knob in pairs}


def _tuple_to_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class TaskConfig(MethodSection):
    """The task: retrieval of unseen classes, face recognition or contrastive learning."""

    chooses: ClassVar = {"name": "task"}
    name: str = "retrieval"


class LossConfig(MethodSection):
    """The metric loss, on raw embeddings."""

    chooses: ClassVar = {"name": "loss"}
    name: str = "triplet"


class RegularizerConfig(MethodSection):
    """L = L_metric + eta_t * L_regularizer."""

    chooses: ClassVar = {"name": "regularizer"}
    name: str = "none"
    eta: Annotated[float, Field(ge=0, description="weight of the regularizer; 0 skips it")] = 0.0
    schedule: Annotated[str, Field(description="how eta grows over training")] = "constant"


class MemoryConfig(ConfigSection):
    """Cross-batch memory: earlier embeddings that a pair loss compares each batch with."""

    size: Annotated[int, Field(ge=0, description="pictures remembered; 0 is the loss alone")] = 0
    start: Annotated[int, Field(ge=0, description="batches seen before the memory begins to fill")] = 0
    weight: Annotated[float, Field(gt=0, description="weight of the loss against the memory")] = 1.0


class BatchConfig(ConfigSection):
    """The global batch and its sampler."""

    sampler: str = "m_per_class"
    batch_size: Annotated[int, Field(ge=1, description="pictures in the global batch")] = 90
    instances_per_class: Annotated[int, Field(ge=1, description="pictures per class, M")] = 3


class DataConfig(MethodSection):
    """The data set and its split."""

    chooses: ClassVar = {"name": "data"}
    name: str = "glyphs"
    root: Annotated[str | None, Field(description="folder of the pictures; not part of the identity")] = None
    validation_fraction: Annotated[float, Field(gt=0, lt=1, description="share of training classes")] = 0.25
    folds: Annotated[
        int | None, Field(ge=2, description="deal the training classes into so many folds and validate on one")
    ] = None
    fold: Annotated[int, Field(ge=0, description="the fold to validate on, from 0")] = 0
    split: Annotated[
        Literal["class_disjoint", "shared_classes", "paper_test_selection"],
        Field(
            description="what is held out: classes, or pictures of every class (contrastive learning); "
            "paper_test_selection validates on the test half, as the papers did"
        ),
    ] = "class_disjoint"
    label_noise: Annotated[
        float, Field(ge=0, lt=1, description="share of training pictures labelled as another training class at random")
    ] = 0.0
    pictures_per_class: Annotated[
        int | None, Field(ge=2, description="pictures kept of each training class, drawn by the seed")
    ] = None
    long_tail: Annotated[
        float | None,
        Field(ge=1, description="most over fewest pictures of a training class, falling exponentially in between"),
    ] = None


class AugmentConfig(MethodSection):
    """Augmentation of training pictures; evaluation sees the resized centre crop, or the stored picture for `none`."""

    chooses: ClassVar = {"name": "augment"}
    name: str = "none"


class ModelConfig(MethodSection):
    """Backbone, pooling and head; the output is the raw embedding."""

    chooses: ClassVar = {"backbone": "backbone", "pooling": "pooling", "head": "head"}
    backbone: str = "small_conv"
    pooling: str = "avg"
    head: str = "fc"
    head_init: Annotated[
        HeadInit,
        Field(
            description="initialisation of the head's linear layers: he_fan_out draws He normal weights over the outputs "
            "and zero biases, torch keeps nn.Linear's uniform ones, torch_zero_bias those with zero biases; a head of "
            "another package may have its own initialisation"
        ),
    ] = "he_fan_out"
    embedding_dim: Annotated[int, Field(ge=1)] = 64
    freeze_bn: Annotated[bool, Field(description="the backbone's batch normalisation keeps its running statistics")] = (
        False
    )
    freeze_bn_affine: Annotated[
        bool, Field(description="gamma and beta of the frozen batch normalisation do not train either")
    ] = False


class OptimConfig(MethodSection):
    """Optimizer, parameter groups and learning-rate schedule."""

    chooses: ClassVar = {"name": "optimizer", "lr_schedule": "lr_schedule"}
    name: str = "adamw"
    lr: Annotated[float, Field(gt=0, description="learning rate of the head; others are multiples of it")] = 1e-3
    backbone_lr_multiplier: Annotated[float, Field(gt=0, description="lr of the backbone over lr")] = 1.0
    loss_lr_multiplier: Annotated[float, Field(gt=0, description="lr of proxies over lr")] = 100.0
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    weight_decay_on: Annotated[
        Literal["weights", "all_but_norms", "all"],
        Field(description="weights: neither biases nor normalisation; all_but_norms: biases too; all"),
    ] = "weights"
    loss_weight_decay: Annotated[
        float, Field(ge=0, description="weight decay of proxies, centres and class weights")
    ] = 0.0
    clip_value: Annotated[float | None, Field(gt=0, description="limit of each entry of the gradient")] = None
    clip_norm: Annotated[float | None, Field(gt=0, description="limit of the norm of the whole gradient")] = None
    lr_schedule: Annotated[str, Field(description="how the learning rate changes over training")] = "constant"
    freeze_backbone_steps: Annotated[
        int, Field(ge=0, description="steps at the start in which only head and loss train")
    ] = 0
    freeze_backbone_epochs: Annotated[
        float, Field(ge=0, description="the same in epochs; the longer of the two counts")
    ] = 0.0


class TrainingConfig(ConfigSection):
    """Length of training, evaluation interval and arithmetic."""

    steps: Annotated[int | None, Field(ge=1, description="optimiser steps; null if epochs sets the length")] = 300
    epochs: Annotated[float | None, Field(gt=0, description="passes over the training pictures, instead of steps")] = (
        None
    )
    eval_every: Annotated[int, Field(ge=1, description="steps between evaluations and checkpoints")] = 100
    precision: Annotated[
        Literal["float32", "float64", "bf16", "fp16"],
        Field(description="precision of the network; loss and metrics stay float32 with bf16 and fp16"),
    ] = "float32"
    micro_batch: Annotated[
        int | None, Field(ge=1, description="pictures a worker holds at a time; the loss still sees the whole batch")
    ] = None
    channels_last: Annotated[bool, Field(description="memory layout that tensor cores prefer")] = False
    compile: Annotated[
        bool, Field(description="fuse kernels by torch.compile, and replay them as CUDA graphs on one GPU")
    ] = False

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the number of steps of the trial."""
        if self.epochs is None:
            return self.steps or 1
        return max(1, round(self.epochs * steps_per_epoch))


class EvaluationConfig(ConfigSection):
    """Metrics and the selection of the reported evaluation."""

    ks: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (1, 2, 4, 8)
    epoch: Annotated[
        Literal["last", "best_validation"],
        Field(description="the evaluation that a trial reports: the last, or the best on validation"),
    ] = "last"
    matched_classes: Annotated[
        bool,
        Field(
            description="also evaluate the test half among as many of its classes as validation has: the figures "
            "test/matched_... compare with validation's (retrieval)"
        ),
    ] = False
    feature_maps: Annotated[
        bool,
        Field(
            description="also draw the most active feature maps of the sheet's queries, the first picture of each row"
        ),
    ] = False
    clustering: Annotated[
        bool, Field(description="measure NMI and F1 of k-means at the selected evaluation (retrieval)")
    ] = True
    sheet_queries: Annotated[
        int, Field(ge=0, le=12, description="queries on a trial's sheet of retrieved pictures; 0 makes none")
    ] = 6
    keep: Annotated[
        Literal["scores", "embeddings", "weights"],
        Field(
            description="what a trial stores of its evaluation: hits by class, or also embeddings (float16), from which "
            "`tune-dml rescore` computes further metrics without training (retrieval), or the network (network.pt2)"
        ),
    ] = "scores"


class SeedsConfig(ConfigSection):
    """Seeds of single sources of randomness, in place of the trial's seed."""

    init: Annotated[
        int | None,
        Field(ge=0, lt=SEED_LIMIT, description="seed of initial weights, and of the network's draws in training"),
    ] = None
    order: Annotated[
        int | None,
        Field(ge=0, lt=SEED_LIMIT, description="seed of batches, augmentation and the loss's random choices"),
    ] = None
    split: Annotated[
        int | None, Field(ge=0, lt=SEED_LIMIT, description="seed of the validation split, and of pairs drawn from it")
    ] = None


class TrialConfig(ConfigSection):
    """All settings that determine a trial's numbers, apart from the data's content."""

    task: TaskConfig = TaskConfig()
    loss: LossConfig = LossConfig()
    memory: MemoryConfig = MemoryConfig()
    regularizer: RegularizerConfig = RegularizerConfig()
    batch: BatchConfig = BatchConfig()
    data: DataConfig = DataConfig()
    augment: AugmentConfig = AugmentConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    seeds: SeedsConfig = SeedsConfig()
    seed: Annotated[int, Field(ge=0, lt=SEED_LIMIT)] = 0

    def seed_of(self, source: Source) -> int:
        """Return the seed of a source of randomness: its own if set, else the trial's."""
        own: int | None = getattr(self.seeds, source)
        return self.seed if own is None else own

    def sections(self) -> Iterator[tuple[str, ConfigSection]]:
        """Yield each section with its name."""
        return ((name, getattr(self, name)) for name in SECTIONS)

    def settings(self) -> dict[str, Value]:
        """Return the flat dotted form with all defaults; resolving it gives an equal object."""
        flat = {f"{name}.{key}": value for name, section in self.sections() for key, value in section.flat.items()}
        return {**flat, "seed": self.seed}

    def digest(self) -> str:
        """Return the cell's identity: 16 hexadecimal digits of the settings, without seed and folders."""
        return settings_digest(self.settings())


SECTIONS: dict[str, type[ConfigSection]] = {
    name: info.annotation
    for name, info in TrialConfig.model_fields.items()
    if isinstance(info.annotation, type) and issubclass(info.annotation, ConfigSection)
}


def identity_settings(settings: Mapping[str, Value], left_out: Set[str] = _NOT_IDENTITY) -> dict[str, Value]:
    """Return the settings that identify a cell; omit later settings at their default."""
    return {
        path: value
        for path, value in settings.items()
        if path not in left_out and not (path in _LATER_SETTINGS and value == _LATER_SETTINGS[path])
    }


def settings_digest(settings: Mapping[str, Value]) -> str:
    """Return the identity of the cell with these resolved settings."""
    return hashlib.sha256(canonical(identity_settings(settings)).encode()).hexdigest()[:16]


def canonical(value: object) -> str:
    """Return JSON with sorted keys and no spaces: equal objects give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse_value(text: str) -> Value:
    """Parse a setting from the command line: JSON if it is valid, else the text itself.

    Example:
        >>> parse_value("0.5"), parse_value("triplet"), parse_value("[1, 2]")
        (0.5, 'triplet', [1, 2])
    """
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except json.JSONDecodeError:
        return text
