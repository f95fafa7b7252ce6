"""Shuffled passes over all pictures: the sampler of proxy and classification losses."""

import numpy as np

from trainables.errors import Problem
from trainables.samplers.base import Batch, Sampler

_STREAM = 0x4A_11D0


class RandomBatches(Sampler):
    """A new permutation of the training pictures in every epoch, cut into batches, without an incomplete last batch.

    Used by the multi-proxy, SoftTriple and Proxy-Anchor papers (docs/specification.md, section 8).
    """

    name = "random"
    citation = "the usual shuffled pass, as in Movshovitz-Attias et al., No Fuss Distance Metric Learning, ICCV 2017"

    _last: tuple[int, Batch] | None = None

    @classmethod
    def problems(
        cls, batch_size: int, instances_per_class: int, *, num_classes: int | None = None, num_images: int | None = None
    ) -> list[Problem]:
        """Require a batch no larger than the training half."""
        if batch_size < 1:
            return [Problem("batch.batch_size", "must be at least 1", batch_size)]
        if num_images is not None and batch_size > num_images:
            rule = f"must not exceed the {num_images} pictures of the training half"
            remedy = f"Set batch.batch_size to {num_images} or less."
            return [Problem("batch.batch_size", rule, batch_size, remedy)]
        return []

    @property
    def steps_per_epoch(self) -> int:
        return len(self.labels) // self.batch_size

    def batch(self, step: int) -> Batch:
        """Return the step's part of its epoch's permutation."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = self._permutation(epoch)
        return order[position * self.batch_size : (position + 1) * self.batch_size]

    def _permutation(self, epoch: int) -> Batch:
        # This is a cache, not state: an epoch always has the same permutation.
        if self._last is None or self._last[0] != epoch:
            order = np.random.default_rng((_STREAM, self.seed, epoch)).permutation(len(self.labels))
            self._last = (epoch, order)
        return self._last[1]
