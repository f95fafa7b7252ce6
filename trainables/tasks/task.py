"""What a task is: how pictures become an objective, and how the network is judged. `training.train` runs any of them.

Tasks are found by being there: a subclass of `Task` with a `name` in a module of this package, or an entry point of the
group `tune_dml.tasks`. `task.name` in a configuration selects one; the keyword-only parameters of its constructor are its
knobs, `task.<knob>`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trainables import distributed
from trainables.config import TrialConfig
from trainables.context import TrialContext
from trainables.data import build_dataset
from trainables.data.augment import Augmentation, build_augmentation
from trainables.data.base import DataSet, Indices, Pictures
from trainables.data.splits import Protocol, Split
from trainables.discovery import discover
from trainables.errors import ConfigError, Problem
from trainables.evidence import directions
from trainables.evidence.from_embeddings import NEIGHBOURS, histogram_of, neighbour_rows, queries_of
from trainables.evidence.record import Evidence, Sheet
from trainables.losses import Loss, build_loss
from trainables.losses.base import normalise
from trainables.losses.parts.random_stream import RandomStream
from trainables.models import BACKBONES, build_model
from trainables.models.batch_norm import batch_norms
from trainables.models.embedder import Embedder
from trainables.models.views import Views
from trainables.regularizers import build_regularizer, penalised
from trainables.regularizers.schedules import eta_at, schedule_problems
from trainables.samplers import build_sampler, sampler_problems
from trainables.samplers import local as local_part

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}

# Pixels embedded at a time: on the CPU as many as stay in its cache (30% faster than thousands of pictures).
EVALUATION_PIXELS = {"cpu": 150_000, "cuda": 5_000_000}
EVALUATION_BATCH = (8, 1000)  # and pictures, at least and at most
MEAN_STREAM = 0x5EC_0_3EA2  # keeps this generator apart from the samplers' for equal seeds


class Task(ABC):
    """Data, network, loss and regularizer of one trial, and how a step and an evaluation go.

    The objective is L = L_metric + eta_t * L_regularizer on the raw embeddings of the global batch of all workers.
    A subclass sets `name`, `citation` and `headline`, and says how pictures are split and how embeddings are judged.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    headline: ClassVar[str]
    """The validation metric that `evaluation.epoch=best_validation` maximises."""
    splits: ClassVar[tuple[Protocol, ...]] = ("class_disjoint", "paper_test_selection")
    """The values of `data.split` that make sense for it, the usual one first."""

    def __init__(self, config: TrialConfig, context: TrialContext, *, cache_dir: Path | None = None):
        self.config = config
        self.context = context
        data = config.data
        root = Path(data.root) if data.root else None
        self.pictures = build_dataset(data.name, root=root, cache_dir=cache_dir, **data.parameters).prepare()
        self.split = self.split_of(config, self.pictures)
        self.classes, self.train_labels = np.unique(self.pictures.labels[self.split.train], return_inverse=True)
        batch = config.batch
        self.sampler = build_sampler(
            batch.sampler,
            self.train_labels,
            batch.batch_size,
            instances_per_class=batch.instances_per_class,
            seed=config.seed,
        )
        self.dtype = torch.float64 if config.training.precision == "float64" else torch.float32
        self.views = Views(self.pictures.images, self.augmentation(config), seed=config.seed, device=context.device)
        self.eta = 0.0
        self.evidence: Evidence | None = None
        """What the last validation leaves to look at; None where embeddings were not finite."""
        self._build_modules()

    def _build_modules(self) -> None:
        """The network first: its initial weights depend on the seed alone, whatever the loss draws afterwards."""
        config, device = self.config, self.context.device
        model = config.model
        network = self.build_network(config, self.pictures)
        network.autocast = HALF.get(config.training.precision)
        network.micro_batch = config.training.micro_batch
        if network.micro_batch and not model.freeze_bn and batch_norms(network.backbone):
            rule = "micro-batches equal the whole batch only where the backbone uses no batch statistics"
            raise ConfigError(Problem("training.micro_batch", rule, network.micro_batch, "Set model.freeze_bn=true."))
        loss = build_loss(
            config.loss.name,
            num_classes=len(self.classes),
            embedding_dim=model.embedding_dim,
            **config.loss.parameters,
        )
        for module in loss.modules():
            if isinstance(module, RandomStream):
                module.start_trial(config.seed)
        regularizer = build_regularizer(config.regularizer.name, **config.regularizer.parameters)
        layout = torch.channels_last if config.training.channels_last else torch.preserve_format
        self.network: Embedder = network.to(device, self.dtype, memory_format=layout)  # type: ignore[call-overload]
        self.loss: Loss = loss.to(device, self.dtype)
        self.regularizer = regularizer.to(device)
        self.modules = nn.ModuleDict({"network": self.network, "loss": self.loss, "regularizer": self.regularizer})

    @classmethod
    def build_network(cls, config: TrialConfig, pictures: Pictures) -> Embedder:
        """The network of a trial with its initial weights, which may have to be fetched first."""
        model = config.model
        return build_model(
            backbone=model.backbone,
            pooling=model.pooling,
            head=model.head,
            embedding_dim=model.embedding_dim,
            in_channels=pictures.in_channels,
            image_size=cls.picture_size(config, pictures),
            freeze_bn=model.freeze_bn,
            freeze_bn_affine=model.freeze_bn_affine,
            backbone_parameters=model.knobs("backbone"),
            pooling_parameters=model.knobs("pooling"),
        )

    def objective(self, network: nn.Module, step: int) -> Tensor:
        """The training objective of one step on the global batch; a scalar, the same on every rank."""
        if not self.modules.training:
            self.modules.train()  # walks through every module: only after an evaluation
        embeddings, labels = self.batch(network, step)
        regularizer = self.config.regularizer
        total = self.total_steps
        epochs = max(total / self.sampler.steps_per_epoch, 1e-9)
        self.eta = eta_at(regularizer.schedule, regularizer.eta, step=step, total_steps=total, epochs=epochs)
        return penalised(self.loss(embeddings, labels), self.regularizer, embeddings, self.eta)

    @property
    def total_steps(self) -> int:
        """How many steps the trial has."""
        return self.config.training.total_steps(self.sampler.steps_per_epoch)

    def batch(self, network: nn.Module, step: int) -> tuple[Tensor, Tensor]:
        """Raw embeddings and labels of a step's global batch, on every rank."""
        drawn, first, sizes = self._drawn(step)
        pictures = self.views.train(self.split.train[drawn], step=step, first=first)
        labels = torch.from_numpy(self.train_labels[drawn]).to(self.context.device)
        return distributed.gather_batch(network(pictures), labels, sizes)

    def _drawn(self, step: int) -> tuple[Indices, int, list[int]]:
        """This rank's training pictures, the place of the first in the global batch, and how many each rank has."""
        batch = self.sampler.batch(step)
        rank, world = self.context.rank, self.context.world_size
        sizes = [len(local_part(batch, other, world)) for other in range(world)]
        return local_part(batch, rank, world), sum(sizes[:rank]), sizes

    @classmethod
    def augmentation(cls, config: TrialConfig) -> Augmentation | None:
        """How training pictures are varied; None shows them as they are stored."""
        return build_augmentation(config.augment.name, **config.augment.parameters)

    @classmethod
    def picture_size(cls, config: TrialConfig, pictures: Pictures) -> int | None:
        """Height = width that the network sees; None where pictures of different sizes are not cut to one."""
        augmentation = cls.augmentation(config)
        return augmentation.crop if augmentation else pictures.image_size

    def settle(self) -> None:
        """Measure what must be known before the first step: the mean norm that `sec_fixed` keeps."""
        if self.regularizer.needs_mean:
            self.regularizer.set_mean(self._initial_mean_norm())

    @torch.no_grad()
    def _initial_mean_norm(self) -> float:
        """Mean norm of all training pictures' embeddings in training mode, without augmentation; changes no statistics.

        Batch normalisation sees batches of the training size in a random order, whatever the number of workers.
        """
        self.modules.train()
        kept = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
        order = np.random.default_rng((MEAN_STREAM, self.config.seed)).permutation(self.split.train)
        total = torch.zeros((), dtype=torch.float64, device=self.context.device)
        for start in range(0, len(order), self.config.batch.batch_size):
            batch = order[start : start + self.config.batch.batch_size]
            own = local_part(batch, self.context.rank, self.context.world_size)
            embeddings = self.network(self.views.evaluation(own))
            total += torch.linalg.vector_norm(embeddings, dim=1).double().sum()
        for name, buffer in self.network.named_buffers():
            buffer.copy_(kept[name])
        return float(distributed.all_reduce_sum(total)) / len(order)

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Figures `val/...` of validation pictures, among them `val/mean_cosine` and `val/norm_mean`."""

    @abstractmethod
    def test(self) -> dict[str, float]:
        """The same on the test pictures, `test/...`: sealed, and looked at once, for the evaluation that counts."""

    @classmethod
    @abstractmethod
    def validation_metrics(cls, config: TrialConfig) -> list[str]:
        """The names under which `validate` reports what a sweep can be judged by."""

    @classmethod
    @abstractmethod
    def split_of(cls, config: TrialConfig, pictures: Pictures) -> Split:
        """Train, validation and test pictures of a trial. Raises ConfigError where a part is too small."""

    @classmethod
    def problems(cls, sections: Mapping[str, Any]) -> list[Problem]:
        """Rules that tie this task to other settings and need no data; holds the sections that are sound."""
        data = sections.get("data")
        if data is None or data.split in cls.splits:
            return []
        rule = f"task {cls.name} splits data by {' or '.join(cls.splits)}"
        return [Problem("data.split", rule, data.split, f"Set data.split={cls.splits[0]}.")]

    @classmethod
    def data_problems(cls, config: TrialConfig, pictures: Pictures) -> list[Problem]:
        """Whether this trial's split and batches can be drawn from these pictures; needs no network."""
        try:
            split = cls.split_of(config, pictures)
        except ConfigError as error:
            return list(error.problems)
        labels = pictures.labels[split.train]
        batch, regularizer = config.batch, config.regularizer
        found = cls._size_problems(config, pictures)
        found += BACKBONES[config.model.backbone].file_problems(**config.model.knobs("backbone"))
        found += sampler_problems(
            batch.sampler,
            batch.batch_size,
            batch.instances_per_class,
            num_classes=len(np.unique(labels)),
            num_images=len(labels),
        )
        if regularizer.eta and not found:
            per_epoch = max(len(labels) // batch.batch_size, 1)
            epochs = config.training.total_steps(per_epoch) / per_epoch
            found = schedule_problems(regularizer.schedule, epochs=epochs)
        return found

    @classmethod
    def _size_problems(cls, config: TrialConfig, pictures: Pictures) -> list[Problem]:
        """Whether pictures can be put into batches, and are large enough for the backbone."""
        size, backbone = cls.picture_size(config, pictures), config.model.backbone
        if size is None:
            rule = "pictures of different sizes need an augmentation, which says how large a crop to show"
            return [Problem("augment.name", rule, config.augment.name, "Set augment.name=crop_flip.")]
        place = "augment.crop" if config.augment.name != "none" else "data"
        found = BACKBONES[backbone].size_problems(size, **config.model.knobs("backbone"))
        return [Problem(place, problem.rule, problem.value, problem.remedy) for problem in found]

    @classmethod
    def notes(cls, config: TrialConfig, pictures: Pictures) -> list[str]:
        """What a reader of the results must know about how these pictures are split."""
        return []

    @classmethod
    def further_datasets(cls, config: TrialConfig, cache_dir: Path | None) -> Sequence[DataSet]:
        """Data sets it reads besides the one it trains on; their content is part of a trial's identity."""
        return ()

    def diagnostics(self) -> dict[str, Tensor]:
        """Mechanism figures of the last batch: norms, mu, eta and what the loss itself reports."""
        figures = {**self.regularizer.diagnostics(), **self.loss.diagnostics()}
        return {"eta": torch.tensor(self.eta), **figures}

    def directions(self) -> Tensor:
        """Unit embeddings (n, D) of the training pictures whose turning is watched; see `trainables.evidence.directions`."""
        return normalise(self._embed(directions.sampled(self.split.train, seed=self.config.seed))[0])

    def state_dict(self) -> dict[str, Any]:
        """Weights, loss parameters and generators, regularizer state."""
        state: dict[str, Any] = self.modules.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.modules.load_state_dict(state)

    def _embed(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Raw embeddings and labels of pictures, in order."""
        embeddings = self._rows(lambda part: self.network(self.views.evaluation(part)), indices)
        return embeddings, torch.from_numpy(self.pictures.labels[indices]).to(self.context.device)

    @torch.no_grad()
    def _rows(self, compute: Callable[[Indices], Tensor], indices: Indices) -> Tensor:
        """`compute` of pictures, row by row and in order, in evaluation mode; the ranks share the work."""
        self.modules.eval()
        own = np.array_split(indices, self.context.world_size)[self.context.rank]
        size = self.picture_size(self.config, self.pictures) or 1
        least, most = EVALUATION_BATCH
        wanted = EVALUATION_PIXELS.get(self.context.device.type, EVALUATION_PIXELS["cuda"]) // size**2
        count = min(max(least, wanted), most)
        starts = range(0, max(len(own), 1), count)  # no picture still tells the number of columns
        parts = [compute(own[start : start + count]) for start in starts]
        return distributed.gather_rows(torch.cat(parts))

    def _evidence(self, embeddings: Tensor, sheet: Sheet | None) -> Evidence | None:
        """What raw embeddings (N, D) of the validation pictures leave to look at."""
        norms = histogram_of(torch.linalg.vector_norm(embeddings, dim=1))
        selected = self.split.protocol == "paper_test_selection"
        part = "test pictures, which validate under paper_test_selection" if selected else "validation pictures"
        return None if norms is None else Evidence(part, norms, sheet)

    def _neighbours(
        self, embeddings: Tensor, indices: Indices, places: tuple[Indices, Indices] | None = None
    ) -> Sheet | None:
        """A few of the pictures `indices` with their nearest by embedding (N, D).

        `places`: of queries and gallery among them, where a protocol keeps these apart.
        """
        count = self.config.evaluation.sheet_queries
        if not count or not bool(torch.isfinite(embeddings).all()):
            return None
        queries, gallery = places if places else (np.arange(len(indices)), None)
        numbers = indices[queries]
        searched = np.arange(len(indices)) if gallery is None else gallery
        asked = queries[
            queries_of(
                numbers,
                None if gallery is None else indices[gallery],
                self.pictures.labels,
                count,
                seed=self.config.seed,
            )
        ]
        if not len(asked):
            return None

        def of(part: Indices) -> tuple[Tensor, Indices]:
            return embeddings[torch.from_numpy(part).to(embeddings.device)], indices[part]

        rows = neighbour_rows(of(asked), of(searched), self.pictures, top=NEIGHBOURS)
        return Sheet(((0, "query"), (1, "nearest pictures")), rows, self.pictures)

    def _statistics(self, embeddings: Tensor) -> dict[str, float]:
        """Mean pairwise cosine and norm statistics; NaN where an embedding is not finite."""
        if not bool(torch.isfinite(embeddings).all()):
            return {"mean_cosine": float("nan"), "norm_mean": float("nan")}
        norms = torch.linalg.vector_norm(embeddings, dim=1)
        return {
            "mean_cosine": _mean_cosine(embeddings),
            "norm_mean": float(norms.mean()),
            "norm_variance": float(norms.var(correction=0)),
        }


@cache
def tasks() -> dict[str, type[Task]]:
    """Name -> class of every task."""
    return discover("trainables.tasks", Task, group="tune_dml.tasks")  # type: ignore[type-abstract]


def build_task(config: TrialConfig, context: TrialContext, *, cache_dir: Path | None = None) -> Task:
    """The task that a configuration selects."""
    return tasks()[config.task.name](config, context, cache_dir=cache_dir, **config.task.parameters)


def data_problems(config: TrialConfig, pictures: Pictures) -> list[Problem]:
    """Whether the trial's task can be trained and judged on these pictures."""
    return tasks()[config.task.name].data_problems(config, pictures)


def _mean_cosine(embeddings: Tensor) -> float:
    """Mean cosine over all pairs i != j, from the sum of unit vectors: (|sum fh|^2 - N) / (N (N - 1))."""
    n = len(embeddings)
    total = normalise(embeddings.double()).sum(dim=0).square().sum()
    return float((total - n) / max(n * (n - 1), 1))
