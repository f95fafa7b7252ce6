"""Watch a fixed sample of training pictures during a trial: norms and directions of their embeddings.

    v_i = |fh_i(s + K) - fh_i(s)|_2,   fh = f / |f|

v_i, the turn of picture i between two snapshots, is the chord between its directions: 2 sin(angle / 2), in 0..2. It is
our reading of "the direction variation of each sample in the training set per 1000 iterations" (Zhang et al., Deep
Metric Learning with Spherical Embedding, NeurIPS 2020, supplement C.2 and Figure 2, which prints its variance but no
formula). Trials log train/direction_mean and the biased train/direction_variance of v. A snapshot stores the histogram
of all turns, and the norms of `_FOLLOWED` of the pictures (rebuttal, Figure 1). The seed chooses the sample, so it is
the same for every cell of a sweep.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.data.base import Indices
from trainables.evidence.from_embeddings import histogram_of
from trainables.evidence.record import Snapshot, WatchedPictures

_INTERVAL = 1000  # the paper's K, steps
_SNAPSHOTS = 4  # smallest number in a shorter trial, if it has enough rows
_SAMPLE = 256  # pictures; the relative error of their variance is about a tenth (sqrt(2 / n))
_STREAM = 0x5EC_0_C02  # separates this generator from the samplers' for equal seeds
_FOLLOWED = 16  # pictures whose norms are kept
_MAX_SNAPSHOTS = 60  # largest number of snapshots; then every second one is dropped


def interval(total_steps: int, row_every: int) -> int:
    """Return the steps between snapshots: 1000, or about a quarter of a shorter trial; a multiple of `row_every`."""
    return min(_INTERVAL, row_every * max(1, total_steps // (row_every * _SNAPSHOTS)))


def sample_pictures(pictures: Indices, *, seed: int) -> Indices:
    """Draw the training pictures to watch, ascending."""
    generator = np.random.default_rng((_STREAM, seed))
    return np.sort(generator.choice(pictures, min(_SAMPLE, len(pictures)), replace=False))


def _turn_lengths(before: Tensor, after: Tensor) -> Tensor:
    """Return v_i of unit vectors (n, D) before and after, (n,)."""
    lengths: Tensor = torch.linalg.vector_norm(after.double() - before.double(), dim=1)
    return lengths


def turn_statistics(before: Tensor, after: Tensor) -> dict[str, float]:
    """Return mean and variance of v; empty if a direction is not finite, which the training loop reports."""
    lengths = _turn_lengths(before, after)
    if not bool(torch.isfinite(lengths).all()):
        return {}
    return {"direction_mean": float(lengths.mean()), "direction_variance": float(lengths.var(correction=0))}


def _followed_rows(count: int) -> NDArray[np.int64]:
    """Return the rows of the `count` watched pictures whose norms are kept, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(_FOLLOWED, count)).round().astype(np.int64))


def snapshot(step: int, embeddings: Tensor, before: Tensor | None, units: Tensor) -> Snapshot | None:
    """Return the snapshot of raw embeddings (n, D), after directions `before`; None if a norm is not finite."""
    norms = torch.linalg.vector_norm(embeddings.double(), dim=1)
    if not bool(torch.isfinite(norms).all()):
        return None
    turns = None if before is None else histogram_of(_turn_lengths(before, units))
    return Snapshot(step, tuple(round(norm, 6) for norm in norms[_followed_rows(len(norms))].tolist()), turns)


def append_snapshot(snapshots: list[Snapshot], new: Snapshot | None) -> list[Snapshot]:
    """Return the snapshots with `new` appended, at most `_MAX_SNAPSHOTS`."""
    if new is None:
        return snapshots
    return [*(snapshots if len(snapshots) < _MAX_SNAPSHOTS else snapshots[::2]), new]


def to_evidence(snapshots: list[Snapshot], pictures: Indices) -> WatchedPictures | None:
    """Return the snapshots of the watched pictures (n,) for the evidence; None if there are none."""
    own = pictures[_followed_rows(len(pictures))]
    return WatchedPictures(tuple(own.tolist()), tuple(snapshots)) if snapshots else None
