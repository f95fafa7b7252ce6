"""Contrastive learning without labels: two views of a picture are a class of their own; judged by linear evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from trainables import distributed
from trainables.config import TrialConfig
from trainables.context import TrialContext
from trainables.data.base import Indices, Pictures
from trainables.data.splits import Split, shared_class_split
from trainables.errors import Problem
from trainables.losses import LOSSES
from trainables.metrics.linear_evaluation import LinearProbes, fit_linear_probes
from trainables.tasks.task import Task

VIEWS = 2
TOP = (1, 5)


class ContrastiveTask(Task):
    """SimCLR: a pair loss on the projections of two views of each picture; labels are never seen in training.

    `batch_size` counts pictures, so loss and regularizer see 2 `batch_size` raw projections. Linear evaluation judges what
    the projection head is given (pooled features of the backbone, of the deterministic view): softmax classifiers are
    fitted to the training pictures' labels, one for each rate; validation pictures choose the rate, and the same
    classifier is then read on the test pictures. `data.validation_fraction` is a share of the pictures of each class.
    """

    name = "contrastive"
    citation = "Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020"
    headline = "val/linear_top1"
    splits = ("shared_classes", "paper_test_selection")

    def __init__(
        self,
        config: TrialConfig,
        context: TrialContext,
        *,
        cache_dir: Path | None = None,
        linear_lrs: Annotated[
            tuple[Annotated[float, Field(gt=0)], ...],
            Field(min_length=1, description="rates of linear evaluation; validation chooses"),
        ] = (1.0, 2.0, 5.0, 10.0),
        linear_epochs: Annotated[
            int, Field(ge=1, description="epochs of linear evaluation; rate / 5 after 60, 75 and 90 %")
        ] = 100,
        linear_batch_size: Annotated[int, Field(ge=1, description="pictures a step of it")] = 256,
        test_fraction: Annotated[
            float,
            Field(gt=0, lt=1, description="test share of each class where the data set names no test pictures"),
        ] = 0.25,
    ) -> None:
        super().__init__(config, context, cache_dir=cache_dir)
        self.linear_lrs, self.linear_epochs, self.linear_batch_size = (
            linear_lrs,
            linear_epochs,
            linear_batch_size,
        )
        self.labels = torch.from_numpy(self.pictures.labels).to(context.device)
        self._chosen: tuple[LinearProbes, int] | None = None

    @classmethod
    def split_of(cls, config: TrialConfig, pictures: Pictures) -> Split:
        """Pictures of every class in every part; the data set's official test pictures where it names them."""
        return shared_class_split(
            pictures.labels,
            pictures.extras.get("official_test"),
            seed=config.seed,
            validation_fraction=config.data.validation_fraction,
            test_fraction=config.task.parameters["test_fraction"],
            protocol=config.data.split,
        )

    @classmethod
    def validation_metrics(cls, config: TrialConfig) -> list[str]:
        """Top-1 and top-5 accuracy of linear evaluation."""
        return [f"val/linear_top{k}" for k in TOP]

    @classmethod
    def problems(cls, sections: Mapping[str, Any]) -> list[Problem]:
        """Batches must not follow labels, views must differ, and the loss must not count classes."""
        found = super().problems(sections)
        batch, loss, augment = sections.get("batch"), sections.get("loss"), sections.get("augment")
        if batch is not None and batch.sampler != "random":
            rule = "contrastive learning knows no classes to draw by"
            found.append(Problem("batch.sampler", rule, batch.sampler, "Set batch.sampler=random."))
        if loss is not None and LOSSES[loss.name].counts_classes:
            rule = "contrastive learning has no classes, and this loss holds a vector for each"
            found.append(Problem("loss.name", rule, loss.name, "Set loss.name=nt_xent."))
        if augment is not None and augment.name == "none":
            rule = "the views of a picture must differ"
            found.append(Problem("augment.name", rule, augment.name, "Set augment.name=simclr."))
        return found

    def objective(self, network: nn.Module, step: int) -> Tensor:
        """The objective of one step; classifiers fitted to earlier weights are forgotten."""
        self._chosen = None
        return super().objective(network, step)

    def batch(self, network: nn.Module, step: int) -> tuple[Tensor, Tensor]:
        """Projections of all first views, then of all second views, and the pictures' places in the batch as labels."""
        drawn, first, sizes = self._drawn(step)
        indices = self.split.train[drawn]
        views = [self.views.train(indices, step=step, first=first, view=view) for view in range(VIEWS)]
        places = torch.arange(first, first + len(drawn), device=self.context.device).repeat(VIEWS)
        embeddings, labels = distributed.gather_batch(
            network(torch.cat(views)), places, [VIEWS * size for size in sizes]
        )
        # Ranks come one after the other, each with all its views; one process has view after view.
        parts = [size for size in sizes for _ in range(VIEWS)]
        order = [view + VIEWS * rank for view in range(VIEWS) for rank in range(len(sizes))]
        return _reordered(embeddings, parts, order), _reordered(labels, parts, order)

    def validate(self) -> dict[str, float]:
        """Linear evaluation on the validation pictures, `val/...`, with statistics of their projections.

        Their sheet shows neighbours by the features that linear evaluation judges.
        """
        features, projections = self._encode(self.split.validation)
        self.evidence = self._evidence(projections, self._neighbours(features, self.split.validation))
        figures = self._statistics(projections)
        probes = self._fit()
        if probes is None:
            figures["mean_cosine"] = math.nan
        else:
            tops = probes.top_k(features, self.labels[self.split.validation], TOP)
            best = max(range(len(probes.lrs)), key=lambda probe: [tops[k][probe] for k in TOP])
            self._chosen = probes, best
            figures |= {f"linear_top{k}": tops[k][best] for k in TOP}
            figures["linear_lr"] = probes.lrs[best]
        return {f"val/{name}": value for name, value in figures.items()}

    def test(self) -> dict[str, float]:
        """The classifier that validation chose, on the test pictures, `test/...`: sealed."""
        if self._chosen is None:
            self.validate()
        features, projections = self._encode(self.split.test)
        figures = self._statistics(projections)
        if self._chosen is not None and not math.isnan(figures["mean_cosine"]):
            probes, best = self._chosen
            tops = probes.top_k(features, self.labels[self.split.test], TOP)
            figures |= {f"linear_top{k}": tops[k][best] for k in TOP}
        return {f"test/{name}": value for name, value in figures.items()}

    def _fit(self) -> LinearProbes | None:
        """Classifiers of the training pictures' features; None where these left the finite numbers."""
        features, _ = self._encode(self.split.train)
        if not bool(torch.isfinite(features).all()):
            return None
        return fit_linear_probes(
            features,
            self.labels[self.split.train],
            num_classes=len(self.pictures.class_names),
            lrs=self.linear_lrs,
            epochs=self.linear_epochs,
            batch_size=self.linear_batch_size,
            seed=self.config.seed,
        )

    def _encode(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Features before the projection head (N, F) and raw projections (N, d) of pictures, in order."""

        def both(part: Indices) -> Tensor:
            features = self.network.features(self.views.evaluation(part))
            return torch.cat([features, self.network.head(features)], dim=1)

        rows = self._rows(both, indices)
        dimension = self.config.model.embedding_dim
        return rows[:, :-dimension], rows[:, -dimension:]


def _reordered(rows: Tensor, sizes: list[int], order: list[int]) -> Tensor:
    """Consecutive parts of these sizes, in another order."""
    parts = torch.split(rows, sizes)
    return torch.cat([parts[number] for number in order])
