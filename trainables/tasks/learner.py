"""Base class of learners: data, network, loss and regularizer of one trial. `training.train` runs any learner."""

import io
import pickle  # for the error that torch raises
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from trainables import distributed
from trainables.config import TrialConfig
from trainables.context import UNTESTED, TrialContext
from trainables.data.base import DataSet, Indices, Pictures
from trainables.errors import ConfigError, DataError, Problem
from trainables.evidence import watched
from trainables.losses import Loss, build_loss
from trainables.losses.parts.memory import CrossBatchMemory
from trainables.losses.parts.pairs import PairLoss
from trainables.losses.parts.random_stream import RandomStream
from trainables.method_checks import checked_diagnostics
from trainables.models.embedder import Embedder
from trainables.models.pooled import pooled_features
from trainables.models.views import Views
from trainables.regularizers import add_penalty, build_regularizer
from trainables.regularizers.schedules import eta_at
from trainables.samplers import build_sampler, local_part, whole_batch
from trainables.tasks.evaluation import Evaluation
from trainables.tasks.task import Task

# Pixels embedded at a time; on the CPU as many as fit its cache, 30 % faster than thousands of pictures.
_EVALUATION_PIXELS = {"cpu": 150_000, "cuda": 5_000_000}
_EVALUATION_BATCH = (8, 1000)  # smallest and largest number of pictures at a time
_SMALL = 1 << 19  # bytes of the largest head that is stored for a later test; larger ones would fill the disk
_MEAN_STREAM = 0x5EC_0_3EA2  # separates this generator from the samplers' for equal seeds

_E = TypeVar("_E", bound=Evaluation)


class Learner(ABC, Generic[_E]):
    """Holds data, network, loss and regularizer of one trial; computes its objective and evaluates it.

    The objective is L = L_metric + eta_t * L_regularizer on the raw embeddings of the global batch of all workers.
    A subclass evaluates embeddings; `_E` is the result of `validate`, which `test` may use.
    """

    tests_by_weights: ClassVar[bool] = False
    """Whether `test` depends on the network's weights alone, not on the validation result."""

    def __init__(self, task: Task, context: TrialContext, cache_dir: Path | None = None) -> None:
        config = task.config
        batch, per_class, order = config.batch, config.batch.instances_per_class, config.seed_of("order")
        self.task, self.config, self.context = task, config, context
        self.pictures = open_pictures(task.dataset(cache_dir), context)
        self.split = task.split(self.pictures)
        self.classes = np.unique(self.pictures.labels[self.split.train])
        self.train_labels = np.searchsorted(self.classes, task.training_labels(self.pictures, self.split))
        self.sampler = build_sampler(
            batch.sampler, self.train_labels, batch.batch_size, instances_per_class=per_class, seed=order
        )
        self.total_steps = config.training.total_steps(self.sampler.steps_per_epoch)
        self.views = Views(self.pictures.images, task.augmentation(), seed=order, device=context.device)
        self.eta = 0.0
        dtype = torch.float64 if config.training.precision == "float64" else torch.float32
        # The network comes first, so that its initial weights depend only on the seed, not on the loss's draws.
        network, loss = self.task.build_network(self.pictures), loss_of(config, len(self.classes))
        regularizer = build_regularizer(config.regularizer.name, **config.regularizer.knobs())
        self.network: Embedder = network.prepare(
            context.device, config.training.precision, channels_last=config.training.channels_last
        )
        self.loss: Loss = loss.to(context.device, dtype)
        self.regularizer = regularizer.to(context.device)
        self._pooled = pooled_features(self.pictures, self.network, context.device)
        # The content of a checkpoint: weights, loss parameters and generators, regularizer state.
        self.modules = nn.ModuleDict({"network": self.network, "loss": self.loss, "regularizer": self.regularizer})

    def objective(self, network: nn.Module, step: int) -> Tensor:
        """Return the training objective of one step on the global batch, a scalar, equal on every rank."""
        if not self.modules.training:
            self.modules.train()  # visits every module, so only after an evaluation
        embeddings, labels = self.batch(network, step)
        regularizer, total = self.config.regularizer, self.total_steps
        epochs = max(total / self.sampler.steps_per_epoch, 1e-9)
        self.eta = eta_at(regularizer.schedule, regularizer.eta, step=step, total_steps=total, epochs=epochs)
        return add_penalty(self.loss(embeddings, labels), self.regularizer, embeddings, self.eta)

    def batch(self, network: nn.Module, step: int) -> tuple[Tensor, Tensor]:
        """Return raw embeddings and labels of a step's global batch, on every rank."""
        drawn, first, sizes = self.draw_pictures(step)
        labels = torch.from_numpy(self.train_labels[drawn]).to(self.context.device, non_blocking=True)
        if self._pooled is not None and network is self.network:
            rows = torch.from_numpy(self.views.feature_rows(self.split.train[drawn], step=step))
            return self.network.project(self._pooled.index_select(0, rows)), labels
        pictures = self.views.train(self.split.train[drawn], step=step, first=first)
        return distributed.gather_batch(network(pictures), labels, sizes)

    def draw_pictures(self, step: int) -> tuple[Indices, int, list[int]]:
        """Return this rank's training pictures, the first one's position in the global batch, and all ranks' counts."""
        batch = whole_batch(self.sampler, step)
        rank, world = self.context.rank, self.context.world_size
        if world == 1:
            return batch, 0, [len(batch)]
        sizes = [len(local_part(batch, each_rank, world)) for each_rank in range(world)]
        return local_part(batch, rank, world), sum(sizes[:rank]), sizes

    @torch.no_grad()
    def set_mean_norm(self) -> None:
        """Measure the initial mean norm of all training embeddings, for a regularizer that needs it.

        The network is in training mode, without augmentation, and its statistics do not change. Batch normalisation sees
        batches of the training size (the last may be smaller) in a random order, for any number of workers.
        """
        if not self.regularizer.needs_mean:
            return
        self.modules.train()
        saved = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
        order = np.random.default_rng((_MEAN_STREAM, self.config.seed_of("order"))).permutation(self.split.train)
        total = torch.zeros((), dtype=torch.float64, device=self.context.device)
        for start in range(0, len(order), self.config.batch.batch_size):
            batch = order[start : start + self.config.batch.batch_size]
            own = local_part(batch, self.context.rank, self.context.world_size)
            embeddings = self.network(self.views.evaluation(own))
            total += torch.linalg.vector_norm(embeddings, dim=1).double().sum()
        for name, buffer in self.network.named_buffers():
            buffer.copy_(saved[name])
        self.regularizer.set_mean(float(distributed.all_reduce_sum(total)) / len(order))

    @abstractmethod
    def validate(self) -> _E:
        """Evaluate the validation pictures with the current weights."""

    def conclude(self, validated: _E) -> _E:
        """Add the figures that only the final evaluation measures (`Task.final_metrics`)."""
        return validated

    @abstractmethod
    def test(self, validated: _E) -> Evaluation:
        """Evaluate the test pictures once, for the final evaluation; the `test/...` figures are sealed.

        `validated` is the validation result of the same weights.
        """

    @property
    def stores_small_heads(self) -> bool:
        """Whether a head can be stored and tested later: it reads pooled features, and `test` needs no more."""
        size = sum(value.numel() * value.itemsize for value in self.network.state_dict().values())
        return self.tests_by_weights and self._pooled is not None and size <= _SMALL and len(self.split.test) > 0

    def head_bytes(self) -> bytes:
        content = io.BytesIO()
        torch.save(self.network.state_dict(), content)
        return content.getvalue()

    def load_head(self, content: bytes) -> None:
        """Load the content that `head_bytes` returned. Raise ConfigError if it is damaged or from another network."""
        try:
            weights = torch.load(io.BytesIO(content), map_location=self.context.device, weights_only=True)
            self.network.load_state_dict(weights)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            rule = f"the stored head must be whole and of this configuration ({type(error).__name__})"
            raise ConfigError(Problem(UNTESTED, rule, f"{len(content)} bytes", "Restore it from a backup.")) from error

    def diagnostics(self) -> dict[str, Tensor]:
        """Return mechanism figures of the last batch: norms, mu, eta and the loss's diagnostics."""
        return {"eta": torch.tensor(self.eta), **checked_diagnostics(self.regularizer, self.loss)}

    def watched_pictures(self) -> Indices:
        """Return the training pictures whose norms and directions are watched; see `trainables.evidence.watched`."""
        return watched.sample_pictures(self.split.train, seed=self.config.seed_of("split"))

    def views_of(self, pictures: Pictures) -> Views:
        """Return the views of the training data set, or of another one, shown in the same way."""
        if pictures is self.pictures:
            return self.views
        seed, device = self.config.seed_of("order"), self.context.device
        return Views(pictures.images, self.task.augmentation(), seed=seed, device=device)

    @torch.no_grad()
    def feature_maps(self, indices: Indices, pictures: Pictures) -> Tensor:
        """Return the backbone's output for a few pictures of a data set, (n, C, h, w), in evaluation mode."""
        self.modules.eval()
        backbone = self.network.backbone
        maps: Tensor = backbone(backbone.to_input(self.views_of(pictures).evaluation(indices)))
        return maps

    def embed(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return raw embeddings and labels of pictures, in order."""
        embeddings = self.compute_rows(self._embed_part, indices)
        return embeddings, torch.from_numpy(self.pictures.labels[indices]).to(self.context.device)

    def _embed_part(self, pictures: Indices) -> Tensor:
        if self._pooled is None:
            return self.network(self.views.evaluation(pictures))  # type: ignore[no-any-return]
        stored = len(self._pooled) // len(self.pictures)
        return self.network.project(self._pooled.index_select(0, torch.from_numpy(pictures * stored)))

    @torch.no_grad()
    def compute_rows(self, compute: Callable[[Indices], Tensor], indices: Indices) -> Tensor:
        """Return the rows of `compute` for pictures, in order, in evaluation mode. The ranks share the work."""
        self.modules.eval()
        own = np.array_split(indices, self.context.world_size)[self.context.rank]
        size = self.task.picture_size(self.pictures) or 1
        smallest, largest = _EVALUATION_BATCH
        fitting = _EVALUATION_PIXELS.get(self.context.device.type, _EVALUATION_PIXELS["cuda"]) // size**2
        count = min(max(smallest, fitting), largest)
        starts = range(0, max(len(own), 1), count)  # an empty part still has the number of columns
        parts = [compute(own[start : start + count]) for start in starts]
        return distributed.gather_rows(torch.cat(parts))


def loss_of(config: TrialConfig, num_classes: int) -> Loss:
    """Build a trial's loss, with random choices that depend on the seed, and with its memory if configured."""
    dimension = config.model.embedding_dim
    loss = build_loss(config.loss.name, num_classes=num_classes, embedding_dim=dimension, **config.loss.knobs())
    for module in loss.modules():
        if isinstance(module, RandomStream):
            module.start_trial(config.seed_of("order"))
    memory = config.memory
    if not memory.size or not isinstance(loss, PairLoss):
        return loss
    return CrossBatchMemory(loss, dimension, size=memory.size, start=memory.start, weight=memory.weight)


def open_pictures(dataset: DataSet, context: TrialContext) -> Pictures:
    """Open the decoded data set, without reading its files if its digest is known and this machine has decoded it.

    Raises DataError if the data differ from those of the sweep.
    """
    digest = context.digests.get(dataset.name)
    if digest is None:
        return dataset.prepare()
    pictures = dataset.open_cached(digest) or dataset.prepare()
    if pictures.digest != digest:
        rule = "the data must equal those of the sweep; they have changed, or this machine has other data"
        raise DataError(Problem(f"data set {dataset.name}", rule, pictures.digest[:12], "Restore them."))
    return pictures
