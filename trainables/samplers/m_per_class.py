"""M pictures of each of B/M classes: the sampler of pair losses."""

from functools import cached_property

import numpy as np

from trainables.errors import Problem
from trainables.samplers.base import Batch, Sampler

_STREAM = 0x3_9E12
_BLOCK_STEPS = 64  # steps whose batches are drawn at once; drawing singly would cost 1 % of a small network's step


class MPerClass(Sampler):
    """B/M classes drawn without replacement, M pictures of each without replacement, independently at every step.

    A class with fewer than M pictures is sampled with replacement, so a picture can occur twice in a batch. Classes are
    drawn independently at every step, so an epoch is only a number of steps (docs/specification.md, section 8; as in
    the released code of spherical embedding constraints).
    """

    name = "m_per_class"
    citation = "Hermans et al., In Defense of the Triplet Loss for Person Re-Identification, 2017"
    by_class = True

    _last: tuple[int, Batch] | None = None

    @classmethod
    def problems(
        cls, batch_size: int, instances_per_class: int, *, num_classes: int | None = None, num_images: int | None = None
    ) -> list[Problem]:
        """Require that B is a multiple of M, and B/M at most the number of classes."""
        sizes = {"batch.batch_size": batch_size, "batch.instances_per_class": instances_per_class}
        if problems := [Problem(key, "must be at least 1", value) for key, value in sizes.items() if value < 1]:
            return problems
        classes, remainder = divmod(batch_size, instances_per_class)
        if remainder:
            multiples = [m for m in (batch_size - remainder, batch_size + instances_per_class - remainder) if m]
            rule = f"must be a multiple of batch.instances_per_class={instances_per_class}"
            problems.append(Problem("batch.batch_size", rule, batch_size, f"Try {' or '.join(map(str, multiples))}."))
        if num_classes is not None and classes > num_classes:
            rule = (
                f"{classes} classes of {instances_per_class} need as many training classes, and there are {num_classes}"
            )
            fewest = -(-batch_size // max(num_classes, 1))
            divisor = next(m for m in range(fewest, batch_size + 1) if batch_size % m == 0)
            most = num_classes * instances_per_class
            remedy = f"Set batch.batch_size to {most} or less, or batch.instances_per_class to {divisor}."
            problems.append(Problem("batch.batch_size", rule, batch_size, remedy))
        return problems

    @property
    def steps_per_epoch(self) -> int:
        """Steps that show as many pictures as there are, at least 1."""
        return max(1, len(self.labels) // self.batch_size)

    def batch(self, step: int) -> Batch:
        """Return class after class, M pictures each."""
        block, position = divmod(step, _BLOCK_STEPS)
        # This is a cache, not state: a step always has the same batch.
        if self._last is None or self._last[0] != block:
            self._last = (block, self._draw_block(block))
        drawn: Batch = self._last[1][position]
        return drawn

    @cached_property
    def _by_class(self) -> tuple[Batch, Batch, Batch]:
        """Pictures sorted by class, and the start and size of each class."""
        order = np.argsort(self.labels, kind="stable")
        _, starts, counts = np.unique(self.labels[order], return_index=True, return_counts=True)
        return order, starts, counts

    def _draw_block(self, block: int) -> Batch:
        """Draw the batches of `_BLOCK_STEPS` steps in a row, (_BLOCK_STEPS, batch_size)."""
        m = self.instances_per_class
        generator = np.random.default_rng((_STREAM, self.seed, block))
        order, starts, sizes = self._by_class
        classes = np.full(_BLOCK_STEPS, len(sizes))
        chosen = _without_replacement(generator, classes, self.batch_size // m).ravel()
        counts = sizes[chosen]
        is_small = counts < m
        members = np.empty((len(chosen), m), dtype=np.int64)
        members[is_small] = generator.integers(0, counts[is_small, None], size=(int(is_small.sum()), m))
        members[~is_small] = _without_replacement(generator, counts[~is_small], m)
        drawn: Batch = order[starts[chosen][:, None] + members]
        return drawn.reshape(_BLOCK_STEPS, self.batch_size)


def _without_replacement(generator: np.random.Generator, counts: Batch, m: int) -> Batch:
    """Draw for every n in `counts` m distinct uniform numbers below n in uniform random order, (len(counts), m).

    Floyd's algorithm for all rows at once: the j-th draw is below n-m+j+1, and a repeat is replaced by n-m+j. It needs
    m draws per row for any n. Floyd's subsets are uniform but their order is not, so the result is shuffled.
    """
    last = counts[:, None] - m + np.arange(m)
    chosen: Batch = generator.integers(0, last + 1)
    for j in range(1, m):
        repeated = (chosen[:, :j] == chosen[:, j, None]).any(axis=1)
        chosen[repeated, j] = last[repeated, j]
    return generator.permuted(chosen, axis=1)
