"""Base class of tasks: split, metrics, rules and network of a trial, before data and network are loaded."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from trainables.config import TrialConfig
from trainables.context import TrialContext
from trainables.data import build_dataset
from trainables.data.alterations import relabel
from trainables.data.augment import AUGMENTATIONS, Augmentation, build_augmentation
from trainables.data.base import DataSet, Labels, Pictures
from trainables.errors import ConfigError, Problem
from trainables.models import BACKBONES, build_model
from trainables.models.batch_norm import batch_norms
from trainables.models.embedder import Embedder
from trainables.models.export import export_network
from trainables.regularizers.schedules import schedule_problems
from trainables.samplers import sampler_problems
from trainables.tasks.splits import Protocol, Split

_ANY_SIDE = 64
"""Side in pixels of the pictures that trace a network without a fixed input size."""


@dataclass(frozen=True)
class Task(ABC):
    """Description of one trial's task, made from its configuration; cheap, and without data.

    A subclass sets `name`, `citation` and `headline`, declares its knobs (`task.<knob>`) as keyword-only fields of a
    frozen data class, and implements `metrics`, `split` and `learner`.
    """

    config: TrialConfig

    name: ClassVar[str]
    citation: ClassVar[str]
    headline: ClassVar[str]
    """The validation metric that `evaluation.epoch=best_validation` maximises."""
    keeps_embeddings: ClassVar[bool] = False
    """Whether metrics are functions of one half's embeddings, so that `evaluation.keep=embeddings` is useful."""
    splits: ClassVar[tuple[Protocol, ...]] = ("class_disjoint", "paper_test_selection")
    """Valid values of `data.split`, the usual one first."""

    @abstractmethod
    def metrics(self) -> list[str]:
        """Return the names of the validation metrics, including the final ones."""

    def final_metrics(self) -> list[str]:
        """Return the metrics that only the final evaluation measures, because they are costly."""
        return []

    @abstractmethod
    def split(self, pictures: Pictures) -> Split:
        """Return the trial's train, validation and test pictures. Raises ConfigError if a part is too small."""

    @abstractmethod
    def learner(self, context: TrialContext, cache_dir: Path | None = None) -> Any:
        """Build the `Learner` that trains and evaluates the trial: prepare its data and build its modules."""

    def problems(self) -> list[Problem]:
        """Return the broken rules between the task and other settings, which need no data."""
        split, keep = self.config.data.split, self.config.evaluation.keep
        problems = []
        if split not in self.splits:
            rule = f"task {self.name} splits data by {' or '.join(self.splits)}"
            problems.append(Problem("data.split", rule, split, f"Set data.split={self.splits[0]}."))
        if keep == "embeddings" and not self.keeps_embeddings:
            rule = f"the metrics of task {self.name} cannot be computed from stored embeddings"
            problems.append(Problem("evaluation.keep", rule, keep, "Set evaluation.keep=scores."))
        if self.config.evaluation.epoch == "best_validation" and self.headline not in self.metrics():
            rule, ks = f"best_validation selects by {self.headline}, so it must be measured", self.config.evaluation.ks
            problems.append(Problem("evaluation.ks", rule, list(ks), "Add 1, or set evaluation.epoch=last."))
        return problems

    def kept_bytes(self, pictures: Pictures) -> int:
        """Return the bytes per trial that `evaluation.keep` stores. Raises ConfigError for an untraceable network."""
        if self.config.evaluation.keep != "weights":
            return 0
        side = self.picture_size(pictures) or _ANY_SIDE
        example = torch.zeros(2, pictures.in_channels, side, side, dtype=torch.uint8)
        try:
            return len(export_network(self.build_network(pictures, fetch=False), example))
        except Exception as error:  # torch.export raises many kinds
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            remedy = "Set evaluation.keep=scores."
            problem = Problem("evaluation.keep", f"torch.export must trace the network ({reason})", "weights", remedy)
            raise ConfigError(problem) from error

    def data_problems(self, pictures: Pictures) -> list[Problem]:
        """Return the problems of drawing the trial's split and batches from these pictures. Build no network."""
        try:
            split = self.split(pictures)
        except ConfigError as error:
            return list(error.problems)
        labels = self.training_labels(pictures, split)
        config, batch, regularizer = self.config, self.config.batch, self.config.regularizer
        problems = self.size_problems(pictures)
        problems += BACKBONES[config.model.backbone].file_problems(**config.model.knobs("backbone"))
        problems += sampler_problems(
            batch.sampler,
            batch.batch_size,
            batch.instances_per_class,
            num_classes=len(np.unique(labels)),
            num_images=len(labels),
        )
        if regularizer.eta and not problems:
            per_epoch = max(len(labels) // batch.batch_size, 1)
            epochs = config.training.total_steps(per_epoch) / per_epoch
            problems = schedule_problems(regularizer.schedule, epochs=epochs)
        return problems

    def size_problems(self, pictures: Pictures) -> list[Problem]:
        """Return the problems of the network with these pictures: their sizes, or features that cannot be augmented."""
        size, model = self.picture_size(pictures), self.config.model
        if pictures.are_features and self.augmentation() is not None:
            rule = "stored features cannot be cropped or coloured"
            remedy = "Set augment.name=none; `tune-dml features --views N` stores augmented views."
            return [Problem("augment.name", rule, self.config.augment.name, remedy)]
        if size is None:
            rule = "pictures of different sizes need an augmentation, which sets the size of the crop"
            remedy = f"Set augment.name to {' or '.join(AUGMENTATIONS)}."
            return [Problem("augment.name", rule, self.config.augment.name, remedy)]
        location = "augment.crop" if self.augmentation() else "data"
        problems = BACKBONES[model.backbone].size_problems(size, **model.knobs("backbone"))
        return [Problem(location, problem.rule, problem.value, problem.remedy) for problem in problems]

    def notes(self, pictures: Pictures) -> list[str]:
        """Return notes for readers of the results on how these pictures are split and labelled."""
        data, split = self.config.data, self.split(pictures)
        notes = []
        if data.pictures_per_class is not None or data.long_tail is not None:
            _, counts = np.unique(pictures.labels[split.train], return_counts=True)
            number = " to ".join(map(str, dict.fromkeys((counts.min(), counts.max()))))
            sizes = f"{number} pictures of each of {len(counts)} classes"
            notes.append(f"Training sees {sizes}, drawn by the seed; validation and test are whole.")
        if data.label_noise:
            wrong = int((self.training_labels(pictures, split) != pictures.labels[split.train]).sum())
            notes.append(
                f"{wrong} of {len(split.train)} training labels are wrong on purpose; those of validation and test are right."
            )
        return notes

    def training_labels(self, pictures: Pictures, split: Split) -> Labels:
        """Return the class of each training picture, with the configured label noise."""
        return relabel(
            pictures.labels[split.train], noise=self.config.data.label_noise, seed=self.config.seed_of("split")
        )

    def dataset(self, cache_dir: Path | None) -> DataSet:
        """Return the training data set, without reading it."""
        data = self.config.data
        return build_dataset(data.name, root=data.root or None, cache_dir=cache_dir, **data.knobs())

    def further_datasets(self, cache_dir: Path | None) -> Sequence[DataSet]:
        """Return the other data sets of the task; their content is part of a trial's identity."""
        return ()

    def augmentation(self) -> Augmentation | None:
        """Return the augmentation of training pictures; None for stored pictures."""
        return build_augmentation(self.config.augment.name, **self.config.augment.knobs())

    def picture_size(self, pictures: Pictures) -> int | None:
        """Return height = width of the network's input; None for pictures of different sizes without a crop."""
        augmentation = self.augmentation()
        return augmentation.crop if augmentation else pictures.image_size

    def build_network(self, pictures: Pictures, *, fetch: bool = True) -> Embedder:
        """Build the network with its initial weights, fetched if necessary; random without `fetch`.

        Raises ConfigError for a network that cannot be built, and for micro-batches that would change its numbers.
        """
        model, micro_batch = self.config.model, self.config.training.micro_batch
        knobs = model.knobs("backbone")
        if not fetch and "weights" in knobs:
            knobs = {**knobs, "weights": None}
        network = build_model(
            backbone=model.backbone,
            pooling=model.pooling,
            head=model.head,
            head_init=model.head_init,
            embedding_dim=model.embedding_dim,
            in_channels=pictures.in_channels,
            image_size=self.picture_size(pictures),
            freeze_bn=model.freeze_bn,
            freeze_bn_affine=model.freeze_bn_affine,
            backbone_parameters=knobs,
            pooling_parameters=model.knobs("pooling"),
            head_parameters=model.knobs("head"),
        )
        network.micro_batch = micro_batch
        if micro_batch and not model.freeze_bn and batch_norms(network.backbone):
            rule = "micro-batches equal the whole batch only if the backbone uses no batch statistics"
            raise ConfigError(
                Problem("training.micro_batch", rule, micro_batch, "Set model.freeze_bn=true, or leave it out.")
            )
        return network
