"""How far the directions of training pictures' embeddings turn between two looks, and how unequally.

    v_i = |fh_i(s + K) - fh_i(s)|_2,   in 0..2: the chord of the angle by which it turned, v = 2 sin(angle / 2),

of picture i, fh = f / |f|, is our reading of "the direction variation of each sample in the training set per 1000 iterations"
(Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020, supplement C.2 and Figure 2, which prints its
variance but no formula). Logged are train/direction_mean and the biased train/direction_variance of v over a fixed sample of n
training pictures, which the seed chooses: the same for every cell of a sweep.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trainables.data.base import Indices

_INTERVAL = 1000  # the paper's K, steps
_LOOKS = 4  # a shorter trial is looked at at least this often, as far as its rows allow
_SAMPLE = 256  # pictures; their variance is known to about a tenth (sqrt(2 / n))
_STREAM = 0x5EC_0_C02  # keeps this generator apart from the samplers' for equal seeds


def interval(total_steps: int, row_every: int) -> int:
    """Steps between two looks: 1000, in shorter trials about a quarter of them; always a multiple of `row_every`."""
    return min(_INTERVAL, row_every * max(1, total_steps // (row_every * _LOOKS)))


def sample_pictures(pictures: Indices, *, seed: int) -> Indices:
    """The training pictures that are watched, ascending."""
    generator = np.random.default_rng((_STREAM, seed))
    return np.sort(generator.choice(pictures, min(_SAMPLE, len(pictures)), replace=False))


def turn_lengths(before: Tensor, after: Tensor) -> Tensor:
    """v_i of unit vectors (n, D) and (n, D): (n,)."""
    lengths: Tensor = torch.linalg.vector_norm(after - before, dim=1)
    return lengths


def turn_statistics(before: Tensor, after: Tensor) -> dict[str, float]:
    """Mean and variance of v; empty where a direction is not finite, which ends the trial elsewhere."""
    lengths = turn_lengths(before.double(), after.double())
    if not bool(torch.isfinite(lengths).all()):
        return {}
    return {"direction_mean": float(lengths.mean()), "direction_variance": float(lengths.var(correction=0))}
