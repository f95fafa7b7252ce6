"""The parts of a trial's configuration: every setting with its type, domain, default and meaning, declared once.

A `Method` section names methods (`loss.name`, `model.backbone`); each method's own knobs are declared in its constructor
and lie beside the section's fields (`loss.margin`, `model.weights`). Imports no torch: the registries of methods are
looked up when a configuration is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainables.parameters import parameters_of


class Section(BaseModel):
    """A named part of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Method(Section):
    """A part that names methods; their own knobs live in `parameters`."""

    chooses: ClassVar[Mapping[str, str]] = {}
    """Field -> registry of the method it names (see `methods_of`)."""
    parameters: dict[str, Any] = Field(default_factory=dict)

    def knobs(self, field: str = "name") -> dict[str, Any]:
        """The knobs of the method that `field` names."""
        method = methods_of(self.chooses[field])[getattr(self, field)]
        return {knob.name: self.parameters[knob.name] for knob in parameters_of(method)}


class TaskConfig(Method):
    """What is trained for and how it is judged: retrieval of unseen classes, face recognition, contrastive learning."""

    chooses: ClassVar = {"name": "task"}
    name: str = "retrieval"


class LossConfig(Method):
    """The metric loss; it sees raw embeddings and normalises inside."""

    chooses: ClassVar = {"name": "loss"}
    name: str = "triplet"


class RegularizerConfig(Method):
    """L = L_metric + eta_t * L_regularizer."""

    chooses: ClassVar = {"name": "regularizer"}
    name: str = "none"
    eta: Annotated[float, Field(ge=0, description="weight of the regularizer; 0 skips it")] = 0.0
    schedule: Annotated[str, Field(description="how eta grows over training")] = "constant"


class BatchConfig(Section):
    """The global batch and how its pictures are drawn."""

    sampler: str = "m_per_class"
    batch_size: Annotated[int, Field(ge=1, description="pictures in the global batch")] = 90
    instances_per_class: Annotated[int, Field(ge=1, description="pictures per class, M")] = 3


class DataConfig(Method):
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


class AugmentConfig(Method):
    """What training sees of a picture; evaluation sees the resized centre crop, or the picture as stored for `none`."""

    chooses: ClassVar = {"name": "augment"}
    name: str = "none"


class ModelConfig(Method):
    """Backbone, pooling and head; the output is the un-normalised embedding."""

    chooses: ClassVar = {"backbone": "backbone", "pooling": "pooling", "head": "head"}
    backbone: str = "small_conv"
    pooling: str = "avg"
    head: str = "fc"
    embedding_dim: Annotated[int, Field(ge=1)] = 64
    freeze_bn: Annotated[bool, Field(description="the backbone's batch normalisation keeps its running statistics")] = (
        False
    )
    freeze_bn_affine: Annotated[
        bool, Field(description="gamma and beta of the frozen batch normalisation do not train either")
    ] = False


class OptimConfig(Method):
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


class TrainingConfig(Section):
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


class EvaluationConfig(Section):
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
    sheet_queries: Annotated[
        int, Field(ge=0, le=12, description="pictures on a trial's sheet of what it retrieves; 0 makes none")
    ] = 6


class _Nothing:
    """A method without knobs."""


def methods_of(registry: str) -> dict[str, type]:
    """Name -> class of the methods of one kind: task, loss, regularizer, data, augment, backbone, optimizer ..."""
    from trainables.data import DATASETS
    from trainables.data.augment import AUGMENTATIONS, Augmentation
    from trainables.losses import LOSSES
    from trainables.models import BACKBONES, HEADS, POOLINGS
    from trainables.optimizers import OPTIMIZERS
    from trainables.rates import RATES
    from trainables.regularizers import REGULARIZERS
    from trainables.tasks.task import tasks

    registries: dict[str, Mapping[str, type]] = {
        "task": tasks(),
        "loss": LOSSES,
        "regularizer": REGULARIZERS,
        "data": DATASETS,
        "augment": {"none": _Nothing, **dict.fromkeys(AUGMENTATIONS, Augmentation)},
        "backbone": BACKBONES,
        "pooling": POOLINGS,
        "head": HEADS,
        "optimizer": OPTIMIZERS,
        "lr_schedule": RATES,
    }
    return dict(registries[registry])


def presets_of(registry: str, method: str) -> Mapping[str, object]:
    """The knobs in which a named variant of a method differs from its class's defaults."""
    from trainables.data.augment import AUGMENTATIONS

    return AUGMENTATIONS.get(method, {}) if registry == "augment" else {}
