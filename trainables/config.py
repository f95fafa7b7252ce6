"""One trial, as one frozen object: every setting that can change its numbers, with its type, domain, default and meaning.

A section that names methods (`loss.name`, `model.backbone`) keeps the knobs that each method declares in its constructor;
in the flat form they lie beside the section's own fields (`loss.margin`, `model.weights`). Pure data: nothing is looked up
or imported here but pydantic. `trainables.resolve` turns layers of settings into a `TrialConfig`, checked.

    config.settings()        the flat dotted form, defaults filled in
    config.digest()          the identity of a cell (seed excluded)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field

from trainables.methods import NoBooleanNumbers

# Raised whenever the same configuration would train or judge differently than before.
PROTOCOL_VERSION = 3

# Where things lie, which replicate this is, and what is shown of it: not part of a cell's identity.
_NOT_IDENTITY = frozenset(
    {
        "seed",
        "data.root",
        "task.evaluation_root",
        "evaluation.sheet_queries",
        "evaluation.clustering",
        "evaluation.feature_maps",
        "evaluation.keep",
    }
)

# Sources of chance, each of which can be held at a seed of its own; null follows the trial's.
Source = Literal["init", "order", "split"]
SOURCES: tuple[Source, ...] = get_args(Source)
FREE_SEEDS = frozenset(f"seeds.{source}" for source in SOURCES)

# Settings that came later, with the values at which a trial is what it was without them: left out of a cell's identity
# there, so that cells planned before keep theirs.
CAME_LATER: Mapping[str, object] = {
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
"""How the linear layers of a head start (see `trainables.models.base.Head.initialise`)."""

Value = float | int | str | bool | None
Knobs = dict[str, Any]


class ConfigSection(NoBooleanNumbers):
    """A named part of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    chooses: ClassVar[Mapping[str, str]] = {}
    """Field that names a method -> the registry it is looked up in (see `trainables.registries.methods_of`)."""

    @classmethod
    @cache
    def own_fields(cls) -> tuple[str, ...]:
        """The settings that are declared here, not by a method."""
        return tuple(name for name in cls.model_fields if name != "parameters")

    @cached_property
    def flat(self) -> dict[str, Any]:
        """Every setting of the section by its name within it."""
        return {name: _plain(getattr(self, name)) for name in self.own_fields()}


class MethodSection(ConfigSection):
    """A section that names methods."""

    parameters: dict[str, Knobs] = Field(default_factory=dict)
    """The same field -> the knobs of the method it names."""

    def knobs(self, chooser: str = "name") -> Knobs:
        """The knobs of the method that a field names."""
        return dict(self.parameters.get(chooser, {}))

    @cached_property
    def flat(self) -> dict[str, Any]:
        """Every setting of the section by its name within it, the methods' knobs among them."""
        names = flat_names(type(self), self.parameters)
        return super().flat | {name: _plain(self.parameters[chooser][knob]) for (chooser, knob), name in names.items()}


def flat_names(section: type[MethodSection], knobs: Mapping[str, Iterable[str]]) -> dict[tuple[str, str], str]:
    """(field that names the method, knob) -> the knob's name within the section.

    It is the knob's own (`weights`), or that of field and knob (`pooling.p`) where several methods of the section, or the
    section itself, have a setting of that name.
    """
    pairs = [(chooser, knob) for chooser, own in knobs.items() for knob in own]
    taken = [*section.own_fields(), *(knob for _, knob in pairs)]
    return {(chooser, knob): knob if taken.count(knob) == 1 else f"{chooser}.{knob}" for chooser, knob in pairs}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class TaskConfig(MethodSection):
    """What is trained for and how it is judged: retrieval of unseen classes, face recognition, contrastive learning."""

    chooses: ClassVar = {"name": "task"}
    name: str = "retrieval"


class LossConfig(MethodSection):
    """The metric loss; it sees raw embeddings and normalises inside."""

    chooses: ClassVar = {"name": "loss"}
    name: str = "triplet"


class RegularizerConfig(MethodSection):
    """L = L_metric + eta_t * L_regularizer."""

    chooses: ClassVar = {"name": "regularizer"}
    name: str = "none"
    eta: Annotated[float, Field(ge=0, description="weight of the regularizer; 0 skips it")] = 0.0
    schedule: Annotated[str, Field(description="how eta grows over training")] = "constant"


class MemoryConfig(ConfigSection):
    """Embeddings of earlier batches that a loss of pairs compares each batch with (cross-batch memory)."""

    size: Annotated[int, Field(ge=0, description="pictures remembered; 0 is the loss alone")] = 0
    start: Annotated[int, Field(ge=0, description="batches seen before the memory begins to fill")] = 0
    weight: Annotated[float, Field(gt=0, description="weight of the loss against the memory")] = 1.0


class BatchConfig(ConfigSection):
    """The global batch and how its pictures are drawn."""

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
        int | None,
        Field(ge=2, description="deal the training classes into so many folds and validate on one"),
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
    """What training sees of a picture; evaluation sees the resized centre crop, or the picture as stored for `none`."""

    chooses: ClassVar = {"name": "augment"}
    name: str = "none"


class ModelConfig(MethodSection):
    """Backbone, pooling and head; the output is the un-normalised embedding."""

    chooses: ClassVar = {"backbone": "backbone", "pooling": "pooling", "head": "head"}
    backbone: str = "small_conv"
    pooling: str = "avg"
    head: str = "fc"
    head_init: Annotated[
        HeadInit,
        Field(
            description="start of the head's linear layers: he_fan_out draws He normal weights over the outputs and zero "
            "biases, torch keeps nn.Linear's uniform ones, torch_zero_bias those with zero biases; a head of another "
            "package may have a start of its own"
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
    """The optimizer, what it does to which parameters, and how the learning rate goes."""

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
    lr_schedule: Annotated[str, Field(description="how the learning rate goes")] = "constant"
    freeze_backbone_steps: Annotated[
        int, Field(ge=0, description="steps at the start in which only head and loss train")
    ] = 0
    freeze_backbone_epochs: Annotated[
        float, Field(ge=0, description="the same in epochs; the longer of the two counts")
    ] = 0.0


class TrainingConfig(ConfigSection):
    """How long to train, when to judge, and how to compute."""

    steps: Annotated[int | None, Field(ge=1, description="optimiser steps; null where epochs says how long")] = 300
    epochs: Annotated[float | None, Field(gt=0, description="passes over the training pictures, instead of steps")] = (
        None
    )
    eval_every: Annotated[int, Field(ge=1, description="steps between evaluations and checkpoints")] = 100
    precision: Annotated[
        Literal["float32", "float64", "bf16", "fp16"],
        Field(description="of the network; loss and evaluation metrics stay float32 with bf16 and fp16"),
    ] = "float32"
    micro_batch: Annotated[
        int | None,
        Field(ge=1, description="pictures a worker holds at a time; the loss still sees the whole batch"),
    ] = None
    channels_last: Annotated[bool, Field(description="memory layout that tensor cores prefer")] = False
    compile: Annotated[bool, Field(description="run the network through torch.compile")] = False

    def total_steps(self, steps_per_epoch: int) -> int:
        """How many steps the trial has."""
        if self.epochs is None:
            return self.steps or 1
        return max(1, round(self.epochs * steps_per_epoch))


class EvaluationConfig(ConfigSection):
    """What is measured, and which evaluation counts."""

    ks: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (1, 2, 4, 8)
    epoch: Annotated[
        Literal["last", "best_validation"],
        Field(description="the evaluation a trial is judged by: the last, or the best on validation"),
    ] = "last"
    matched_classes: Annotated[
        bool,
        Field(
            description="judge the test half also among as many of its classes as validation has, test/matched_...: "
            "figures that compare with validation's (retrieval)"
        ),
    ] = False
    feature_maps: Annotated[
        bool,
        Field(
            description="also draw the most active feature maps of the sheet's queries, the first picture of each row"
        ),
    ] = False
    clustering: Annotated[
        bool, Field(description="measure NMI and F1 of k-means at the evaluation that counts (retrieval)")
    ] = True
    sheet_queries: Annotated[
        int, Field(ge=0, le=12, description="pictures on a trial's sheet of what it retrieves; 0 makes none")
    ] = 6
    keep: Annotated[
        Literal["scores", "embeddings", "weights"],
        Field(
            description="what a trial keeps of its evaluation: hits by class, or also embeddings (float16), of which "
            "`tune-dml rescore` computes further metrics without training (retrieval), or the network (network.pt2)"
        ),
    ] = "scores"


class SeedsConfig(ConfigSection):
    """Sources of chance that do not follow the trial's seed: each is held at a seed of its own, and varies no more."""

    init: Annotated[
        int | None, Field(ge=0, description="of initial weights, and of what the network draws while it trains")
    ] = None
    order: Annotated[int | None, Field(ge=0, description="of batches, augmentation and the loss's random choices")] = (
        None
    )
    split: Annotated[
        int | None, Field(ge=0, description="of what is held out for validation, and of pairs drawn from it")
    ] = None


class TrialConfig(ConfigSection):
    """Everything that determines a trial's numbers, apart from the data's content."""

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
    seed: Annotated[int, Field(ge=0)] = 0

    def seed_of(self, source: Source) -> int:
        """The seed of one source of chance: its own, else the trial's."""
        own: int | None = getattr(self.seeds, source)
        return self.seed if own is None else own

    def sections(self) -> Iterator[tuple[str, ConfigSection]]:
        """Each section with its name."""
        return ((name, getattr(self, name)) for name in SECTIONS)

    def settings(self) -> dict[str, Any]:
        """The flat dotted form with every default filled in; resolving it gives this object back."""
        flat = {f"{name}.{key}": value for name, section in self.sections() for key, value in section.flat.items()}
        return {**flat, "seed": self.seed}

    def digest(self) -> str:
        """Identity of the cell: 16 hexadecimal digits of the resolved settings, without seed and folders."""
        return settings_digest(self.settings())


SECTIONS: dict[str, type[ConfigSection]] = {
    name: info.annotation
    for name, info in TrialConfig.model_fields.items()
    if isinstance(info.annotation, type) and issubclass(info.annotation, ConfigSection)
}


def identifying(settings: Mapping[str, Value]) -> dict[str, Value]:
    """The settings that make a cell what it is.

    A later setting at its default is as if it were not named.
    """
    return {
        path: value
        for path, value in settings.items()
        if path not in _NOT_IDENTITY and not (path in CAME_LATER and value == CAME_LATER[path])
    }


def settings_digest(settings: Mapping[str, Value]) -> str:
    """The identity of the cell that has these resolved settings."""
    return hashlib.sha256(canonical(identifying(settings)).encode()).hexdigest()[:16]


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
