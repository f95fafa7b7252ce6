"""Contrastive learning without labels: two views of a picture form a class. Linear classifiers evaluate it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from trainables import distributed
from trainables.context import TrialContext
from trainables.data.augment import AUGMENTATIONS
from trainables.data.base import Indices, Pictures
from trainables.data.features import Features
from trainables.data.formats.feature_store import FeatureRows
from trainables.errors import Problem
from trainables.losses import LOSSES
from trainables.metrics.linear_evaluation import LinearProbes, fit_linear_probes
from trainables.samplers import SAMPLERS
from trainables.tasks.evaluation import Evaluation, embedding_statistics, evidence_of, neighbour_sheet, with_part
from trainables.tasks.learner import Learner
from trainables.tasks.splits import Split, shared_class_split, with_fewer_pictures
from trainables.tasks.task import Task

_VIEWS = 2
_TOP = (1, 5)


@dataclass(frozen=True, kw_only=True)
class ContrastiveTask(Task):
    """SimCLR: a pair loss on the projections of two views of each picture; training uses no labels.

    `batch_size` counts pictures, so loss and regularizer see 2 `batch_size` raw projections. Linear evaluation uses the
    input of the projection head: pooled features of the backbone, of the deterministic view. Softmax classifiers are
    fitted to the training pictures' labels, one for each rate. Validation pictures choose the rate, and the same
    classifier is evaluated on the test pictures. `data.validation_fraction` is a share of the pictures of each class.
    """

    name = "contrastive"
    citation = "Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020"
    headline = "val/linear_top1"
    splits = ("shared_classes", "paper_test_selection")

    linear_lrs: Annotated[
        tuple[Annotated[float, Field(gt=0)], ...],
        Field(min_length=1, description="rates of linear evaluation; validation chooses"),
    ] = (1.0, 2.0, 5.0, 10.0)
    linear_epochs: Annotated[
        int, Field(ge=1, description="epochs of linear evaluation; rate / 5 after 60, 75 and 90 %")
    ] = 100
    linear_batch_size: Annotated[int, Field(ge=1, description="pictures per step of linear evaluation")] = 256
    test_fraction: Annotated[
        float, Field(gt=0, lt=1, description="test share of each class if the data set names no test pictures")
    ] = 0.25

    def metrics(self) -> list[str]:
        return [f"val/linear_top{k}" for k in _TOP]

    def split(self, pictures: Pictures) -> Split:
        """Split the pictures of every class; the data set's official test pictures, if any, are the test half."""
        split = shared_class_split(
            pictures.labels,
            pictures.extras.get("official_test"),
            seed=self.config.seed_of("split"),
            validation_fraction=self.config.data.validation_fraction,
            test_fraction=self.test_fraction,
            protocol=self.config.data.split,
        )
        return with_fewer_pictures(split, pictures.labels, self.config)

    def problems(self) -> list[Problem]:
        """Require batches independent of labels, views that differ, and a loss without class vectors."""
        problems = super().problems()
        sampler, loss = self.config.batch.sampler, self.config.loss.name
        if sampler in SAMPLERS and SAMPLERS[sampler].by_class:
            rule = "contrastive learning has no classes to draw by"
            classless = [name for name, kind in SAMPLERS.items() if not kind.by_class]
            problems.append(Problem("batch.sampler", rule, sampler, f"Set batch.sampler={' or '.join(classless)}."))
        if LOSSES[loss].counts_classes:
            rule = "contrastive learning has no classes, and this loss holds a vector for each"
            classless = [name for name, kind in LOSSES.items() if not kind.counts_classes]
            problems.append(Problem("loss.name", rule, loss, f"Set loss.name to one of {', '.join(classless)}."))
        if self.config.memory.size:
            rule = "contrastive learning numbers the pictures of every batch from 0, so a memory would confuse them"
            problems.append(Problem("memory.size", rule, self.config.memory.size, "Set memory.size=0."))
        if self.config.data.label_noise:
            rule = "contrastive learning sees no labels in training"
            problems.append(Problem("data.label_noise", rule, self.config.data.label_noise, "Set data.label_noise=0."))
        if self.config.augment.name not in AUGMENTATIONS and self.config.data.name != Features.name:
            rule = "the views of a picture must differ"
            remedy = f"Set augment.name to {' or '.join(AUGMENTATIONS)}."
            problems.append(Problem("augment.name", rule, self.config.augment.name, remedy))
        return problems

    def size_problems(self, pictures: Pictures) -> list[Problem]:
        """Add the problem of features with fewer than two stored views."""
        problems = super().size_problems(pictures)
        if isinstance(pictures.images, FeatureRows) and pictures.images.views < _VIEWS:
            rule = "the views of a picture must differ, but each picture has one stored view"
            problems.append(Problem("data", rule, None, "Store more: `tune-dml features ... --views 4`."))
        return problems

    def learner(self, context: TrialContext, cache_dir: Path | None = None) -> ContrastiveLearner:
        return ContrastiveLearner(self, context, cache_dir)


@dataclass(frozen=True)
class LinearEvaluation(Evaluation):
    """Validation figures, and the classifier that they selected."""

    probes: LinearProbes | None = None  # one probe per rate; None if a feature is not finite
    best: int = 0  # index of the probe with the best validation accuracy


class ContrastiveLearner(Learner[LinearEvaluation]):
    """Trains on two views of each picture, and evaluates features by linear classifiers."""

    task: ContrastiveTask

    def __init__(self, task: ContrastiveTask, context: TrialContext, cache_dir: Path | None = None) -> None:
        super().__init__(task, context, cache_dir)
        self.labels = torch.from_numpy(self.pictures.labels).to(context.device)

    def batch(self, network: nn.Module, step: int) -> tuple[Tensor, Tensor]:
        """Return projections of all first views, then of all second views; labels number the pictures of the batch."""
        drawn, first, sizes = self.draw_pictures(step)
        indices = self.split.train[drawn]
        views = [self.views.train(indices, step=step, first=first, view=view) for view in range(_VIEWS)]
        numbers = torch.arange(first, first + len(drawn), device=self.context.device).repeat(_VIEWS)
        embeddings, labels = distributed.gather_batch(
            network(torch.cat(views)), numbers, [_VIEWS * size for size in sizes]
        )
        # Gathered rows are ordered by rank, then by view; one process orders them by view.
        parts = [size for size in sizes for _ in range(_VIEWS)]
        order = [view + _VIEWS * rank for view in range(_VIEWS) for rank in range(len(sizes))]
        return _reorder(embeddings, parts, order), _reorder(labels, parts, order)

    def validate(self) -> LinearEvaluation:
        """Return linear evaluation on the validation pictures, with statistics of their projections.

        The sheet shows neighbours by the features of linear evaluation.
        """
        part, count = self.split.validation, self.config.evaluation.sheet_queries
        features, projections = self._encode(part)
        sheet = neighbour_sheet(features, part, self.pictures, count=count, seed=self.config.seed_of("split"))
        evidence = evidence_of(self.split, projections, sheet)
        figures = embedding_statistics(projections)
        probes = self._fit_probes()
        if probes is None:
            return LinearEvaluation(with_part("val", figures | {"mean_cosine": math.nan}), evidence)
        tops = probes.top_k(features, self.labels[part], _TOP)
        best = max(range(len(probes.lrs)), key=lambda probe: [tops[k][probe] for k in _TOP])
        figures |= {f"linear_top{k}": tops[k][best] for k in _TOP}
        figures["linear_lr"] = probes.lrs[best]
        return LinearEvaluation(with_part("val", figures), evidence, probes=probes, best=best)

    def test(self, validated: LinearEvaluation) -> Evaluation:
        features, projections = self._encode(self.split.test)
        figures = embedding_statistics(projections)
        if validated.probes is not None and not math.isnan(figures["mean_cosine"]):
            tops = validated.probes.top_k(features, self.labels[self.split.test], _TOP)
            figures |= {f"linear_top{k}": tops[k][validated.best] for k in _TOP}
        return Evaluation(with_part("test", figures))

    def _fit_probes(self) -> LinearProbes | None:
        """Fit classifiers to the training pictures' features; None if a feature is not finite."""
        features, _ = self._encode(self.split.train)
        if not bool(torch.isfinite(features).all()):
            return None
        return fit_linear_probes(
            features,
            self.labels[self.split.train],
            num_classes=len(self.pictures.class_names),
            lrs=self.task.linear_lrs,
            epochs=self.task.linear_epochs,
            batch_size=self.task.linear_batch_size,
            seed=self.config.seed_of("order"),
        )

    def _encode(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return features before the projection head (N, F) and raw projections (N, d) of pictures, in order."""

        def features_and_projections(part: Indices) -> Tensor:
            features = self.network.features(self.views.evaluation(part))
            return torch.cat([features, self.network.project(features)], dim=1)

        rows = self.compute_rows(features_and_projections, indices)
        dimension = self.config.model.embedding_dim
        return rows[:, :-dimension], rows[:, -dimension:]


def _reorder(rows: Tensor, sizes: list[int], order: list[int]) -> Tensor:
    """Reorder consecutive parts of these sizes."""
    parts = torch.split(rows, sizes)
    return torch.cat([parts[number] for number in order])
