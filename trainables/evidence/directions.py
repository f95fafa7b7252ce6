"""Measure how far the directions of training embeddings turn between two snapshots: mean and variance over pictures.

    v_i = |fh_i(s + K) - fh_i(s)|_2,   fh = f / |f|

v_i is the chord between the two directions of picture i: 2 sin(angle / 2), in 0..2. It is our reading of "the direction
variation of each sample in the training set per 1000 iterations" (Zhang et al., Deep Metric Learning with Spherical
Embedding, NeurIPS 2020, supplement C.2 and Figure 2, which prints its variance but no formula). Trials log
train/direction_mean and the biased train/direction_variance of v over a fixed sample of training pictures. The seed
chooses the sample, so it is the same for every cell of a sweep.
"""

import numpy as np
import torch
from torch import Tensor

from trainables.data.base import Indices

_INTERVAL = 1000  # the paper's K, steps
_SNAPSHOTS = 4  # smallest number in a shorter trial, if it has enough rows
_SAMPLE = 256  # pictures; the relative error of their variance is about a tenth (sqrt(2 / n))
_STREAM = 0x5EC_0_C02  # separates this generator from the samplers' for equal seeds


def interval(total_steps: int, row_every: int) -> int:
    """Return the steps between snapshots: 1000, or about a quarter of a shorter trial; a multiple of `row_every`."""
    return min(_INTERVAL, row_every * max(1, total_steps // (row_every * _SNAPSHOTS)))


def sample_pictures(pictures: Indices, *, seed: int) -> Indices:
    """Draw the training pictures to watch, ascending."""
    generator = np.random.default_rng((_STREAM, seed))
    return np.sort(generator.choice(pictures, min(_SAMPLE, len(pictures)), replace=False))


def turn_lengths(before: Tensor, after: Tensor) -> Tensor:
    """Return v_i of unit vectors (n, D) before and after, (n,)."""
    lengths: Tensor = torch.linalg.vector_norm(after - before, dim=1)
    return lengths


def turn_statistics(before: Tensor, after: Tensor) -> dict[str, float]:
    """Return mean and variance of v; empty if a direction is not finite, which the training loop reports."""
    lengths = turn_lengths(before.double(), after.double())
    if not bool(torch.isfinite(lengths).all()):
        return {}
    return {"direction_mean": float(lengths.mean()), "direction_variance": float(lengths.var(correction=0))}
