"""Base class of samplers: a pure function from the step to the global batch, so that resuming needs no state."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainables.errors import ConfigError, Problem, raise_if_any

Batch = NDArray[np.int64]


class Sampler(ABC):
    """Draws batches of picture indices. No step changes its state.

    Args:
        labels: class of every training picture, (n,).
        batch_size: pictures in the global batch, over all workers.
        instances_per_class: M, pictures per class in a batch (ignored by samplers that do not balance classes).
        seed: determines every batch; samplers with equal arguments draw equal batches.

    Raises:
        ConfigError: every broken rule of `problems`.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    by_class: ClassVar[bool] = False
    """Whether the sampler draws pictures by their classes."""

    def __init__(self, labels: ArrayLike, batch_size: int, instances_per_class: int = 1, seed: int = 0) -> None:
        self.labels = np.asarray(labels, dtype=np.int64)
        self.batch_size, self.instances_per_class, self.seed = batch_size, instances_per_class, seed
        classes = len(np.unique(self.labels))
        raise_if_any(self.problems(batch_size, instances_per_class, num_classes=classes, num_images=len(self.labels)))

    @classmethod
    @abstractmethod
    def problems(
        cls, batch_size: int, instances_per_class: int, *, num_classes: int | None = None, num_images: int | None = None
    ) -> list[Problem]:
        """Return the rules that these sizes break; counts of the training half are optional."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Steps of one pass over the training pictures."""

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """Return the global batch of a step (from 0): indices of training pictures (batch_size,)."""


def whole_batch(sampler: Sampler, step: int) -> Batch:
    """Return the global batch of a step. Raise ConfigError if it is not `batch_size` indices of training pictures."""
    drawn, size, pictures = sampler.batch(step), sampler.batch_size, len(sampler.labels)
    try:
        batch = np.asarray(drawn)
    except ValueError:  # lists of different lengths
        batch = np.asarray(None)
    is_valid = batch.shape == (size,) and np.issubdtype(batch.dtype, np.integer)
    if is_valid and batch.min() >= 0 and batch.max() < pictures:
        return batch
    rule = f"batch({step}) must be {size} numbers of the {pictures} training pictures, from 0"
    got = f"{batch.dtype} of shape {batch.shape}" if batch.ndim else type(drawn).__name__
    got += f", {batch.min()} to {batch.max()}" if batch.size and batch.dtype.kind in "iuf" else ""
    raise ConfigError(Problem(f"sampler {sampler.name}", rule, got))


def local_part(batch: Batch, rank: int, world_size: int) -> Batch:
    """Return this worker's contiguous part of a global batch; the first `B mod W` parts have one picture more."""
    size, extra = divmod(len(batch), world_size)
    bounds = [r * size + min(r, extra) for r in range(world_size + 1)]
    return batch[bounds[rank] : bounds[rank + 1]]
