"""The retrieval task: pictures to embeddings, trained by a metric loss, judged by nearest neighbours of unseen classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainables import distributed
from trainables.config import TrialConfig
from trainables.context import TrialContext
from trainables.data import build_dataset
from trainables.data.base import Pictures
from trainables.data.splits import Split, class_disjoint_split
from trainables.errors import ConfigError, Problem
from trainables.losses import build_loss
from trainables.losses.base import normalise
from trainables.metrics import retrieval_metrics
from trainables.models import build_model
from trainables.regularizers import build_regularizer, penalised
from trainables.regularizers.schedules import eta_at
from trainables.samplers import build_sampler, sampler_problems
from trainables.samplers import local as local_part

__all__ = ["RetrievalTask", "data_problems", "split_of"]

EVALUATION_BATCH = 1000  # pictures embedded at a time


class RetrievalTask:
    """Data, network, loss and regularizer of one trial, and how a step and an evaluation go.

    The objective is L = L_metric(f/|f|) + eta_t * L_regularizer(f) on the global batch of all workers. Validation uses
    classes never trained on; test classes are looked at once, for the evaluation that counts, and stay sealed.
    """

    def __init__(self, config: TrialConfig, context: TrialContext, *, cache_dir: Path | None = None):
        self.config = config
        self.context = context
        data = config.data
        root = Path(data.root) if data.root else None
        self.pictures = build_dataset(data.name, root=root, cache_dir=cache_dir, **data.parameters).prepare()
        self.split = split_of(config, self.pictures)
        train_labels = self.pictures.labels[self.split.train]
        self.classes, self.train_labels = np.unique(train_labels, return_inverse=True)
        batch = config.batch
        self.sampler = build_sampler(
            batch.sampler,
            self.train_labels,
            batch.batch_size,
            instances_per_class=batch.instances_per_class,
            seed=config.seed,
        )
        self.dtype = getattr(torch, config.training.precision)
        self._build_modules()

    def _build_modules(self) -> None:
        """The network first: its initial weights depend on the seed alone, whatever the loss draws afterwards."""
        config, device = self.config, self.context.device
        model = config.model
        network = build_model(
            backbone=model.backbone,
            pooling=model.pooling,
            head=model.head,
            embedding_dim=model.embedding_dim,
            in_channels=self.pictures.in_channels,
            image_size=self.pictures.image_size,
        )
        loss = build_loss(
            config.loss.name,
            num_classes=len(self.classes),
            embedding_dim=model.embedding_dim,
            **config.loss.parameters,
        )
        regularizer = build_regularizer(config.regularizer.name, **config.regularizer.parameters)
        self.network: nn.Module = network.to(device, self.dtype)
        self.loss: nn.Module = loss.to(device, self.dtype)
        self.regularizer = regularizer.to(device)
        self.modules = nn.ModuleDict(
            {"network": self.network, "loss": self.loss, "regularizer": self.regularizer}
        )
        self.eta = 0.0

    def objective(self, network: nn.Module, step: int) -> Tensor:
        """The training objective of one step on the global batch; a scalar, the same on every rank."""
        self.modules.train()
        batch = self.sampler.batch(step)
        parts = [local_part(batch, rank, self.context.world_size) for rank in range(self.context.world_size)]
        sizes, local = [len(part) for part in parts], parts[self.context.rank]
        pictures = self._pictures(self.split.train[local])
        labels = torch.from_numpy(self.train_labels[local]).to(self.context.device)
        embeddings, labels = distributed.gather_batch(network(pictures), labels, sizes)
        regularizer = self.config.regularizer
        total = self.config.training.steps
        epochs = max(total / self.sampler.steps_per_epoch, 1e-9)
        self.eta = eta_at(regularizer.schedule, regularizer.eta, step=step, total_steps=total, epochs=epochs)
        return penalised(self.loss(embeddings, labels), self.regularizer, embeddings, self.eta)

    def validate(self) -> dict[str, float]:
        """Retrieval metrics on the validation classes, `val/...`, with the mean pairwise cosine and norm statistics."""
        embeddings, labels = self._embed(self.split.validation)
        return {f"val/{name}": value for name, value in self._judge(embeddings, labels).items()}

    def test(self) -> dict[str, float]:
        """The same on the test classes, `test/...`: sealed."""
        embeddings, labels = self._embed(self.split.test)
        return {f"test/{name}": value for name, value in self._judge(embeddings, labels).items()}

    def diagnostics(self) -> dict[str, Tensor]:
        """Mechanism figures of the last batch: norms, mu, eta and what the loss itself reports."""
        figures = {**self.regularizer.diagnostics(), **self.loss.diagnostics()}
        return {"eta": torch.tensor(self.eta), **figures}

    def state_dict(self) -> dict[str, Any]:
        """Weights, loss parameters and generators, regularizer state."""
        state: dict[str, Any] = self.modules.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.modules.load_state_dict(state)

    def _pictures(self, indices: np.ndarray[Any, Any]) -> Tensor:
        """uint8 pictures (B, C, H, W) on the device; the network scales them."""
        pictures = torch.from_numpy(np.ascontiguousarray(self.pictures.images[indices]))
        return pictures.to(self.context.device, non_blocking=True).permute(0, 3, 1, 2)

    @torch.no_grad()
    def _embed(self, indices: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
        """Raw embeddings and labels of pictures, in order; the ranks share the work."""
        self.modules.eval()
        own = np.array_split(indices, self.context.world_size)[self.context.rank]
        parts = [
            self.network(self._pictures(own[start : start + EVALUATION_BATCH]))
            for start in range(0, len(own), EVALUATION_BATCH)
        ]
        empty = torch.empty(0, self.config.model.embedding_dim, dtype=self.dtype, device=self.context.device)
        embeddings = distributed.gather_rows(torch.cat([empty, *parts]))
        return embeddings, torch.from_numpy(self.pictures.labels[indices]).to(self.context.device)

    def _judge(self, embeddings: Tensor, labels: Tensor) -> dict[str, float]:
        cosine = _mean_cosine(embeddings)
        if not bool(torch.isfinite(embeddings).all()):
            return {"mean_cosine": float("nan"), "norm_mean": float("nan")}
        norms = torch.linalg.vector_norm(embeddings, dim=1)
        return {
            **retrieval_metrics(embeddings, labels, ks=self.config.evaluation.ks),
            "mean_cosine": cosine,
            "norm_mean": float(norms.mean()),
            "norm_variance": float(norms.var(correction=0)),
        }


def data_problems(config: TrialConfig, pictures: Pictures) -> list[Problem]:
    """Whether this trial's split and batches can be drawn from these pictures; needs no network."""
    try:
        split = split_of(config, pictures)
    except ConfigError as error:
        return list(error.problems)
    labels = pictures.labels[split.train]
    batch = config.batch
    classes = len(np.unique(labels))
    return sampler_problems(
        batch.sampler,
        batch.batch_size,
        batch.instances_per_class,
        num_classes=classes,
        num_images=len(labels),
    )


def split_of(config: TrialConfig, pictures: Pictures) -> Split:
    """The class-disjoint train, validation and test pictures of a trial; the seed chooses the validation classes."""
    return class_disjoint_split(
        pictures.labels,
        pictures.test_classes,
        validation_fraction=config.data.validation_fraction,
        seed=config.seed,
        protocol=config.data.split,
    )


def _mean_cosine(embeddings: Tensor) -> float:
    """Mean cosine over all pairs i != j, from the sum of unit vectors: (|sum fh|^2 - N) / (N (N - 1))."""
    n = len(embeddings)
    total = normalise(embeddings.double()).sum(dim=0).square().sum()
    return float((total - n) / max(n * (n - 1), 1))
