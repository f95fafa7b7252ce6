"""The similarities of each query to its positives."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from trainables.metrics.counting import largest
from trainables.metrics.grouping import Search

ENTRIES = 2**23
"""Similarities to positives held at once: bounds the memory when a class is huge."""

STEP = 128
"""Queries per product: about as many as a few classes have, so that most of the products are between positives."""


def tie_width(vectors: Tensor) -> float:
    """The difference up to which two similarities of unit vectors (N, D) tie: u * max(sqrt(D), 8), u the unit roundoff.

    sqrt(D) u is the probabilistic bound for a dot product of length D (Higham and Mary, A New Approach to Probabilistic
    Rounding Error Analysis, 2019); 8 u covers the rounding of the unit vectors themselves. 1.3e-6 for D = 512 in float32,
    where duplicates were seen to differ by up to 5e-7.
    """
    unit_roundoff = float(torch.finfo(vectors.dtype).eps) / 2
    return unit_roundoff * max(math.sqrt(vectors.shape[1]), 8.0)


def bands(wanted: Tensor, unit: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of queries, multiples of `unit` long, whose similarities to positives fit in memory together.

    `wanted` (N,) is how many positives each query needs, non-decreasing.
    """
    needs = wanted.tolist()
    first = last = 0
    while last < len(needs):
        end = min(last + unit, len(needs))
        if last > first and (end - first) * (needs[end - 1] + 1) > ENTRIES:
            yield first, last
            first = last
        last = end
    yield first, last


def positive_similarities(search: Search, band: tuple[int, int], count: int) -> Tensor:
    """(B, P): similarities of the queries of a band to their P = `count` best positives, descending, padded with -inf."""
    rows, columns = search.rows, search.columns
    found = rows.vectors.new_full((band[1] - band[0], count), -torch.inf)
    for first in range(*band, STEP):
        last = min(first + STEP, band[1])
        left, right = search.span(first, last)
        similarity = rows.vectors[first:last] @ columns.vectors[left:right].T
        hidden = rows.classes[first:last, None] != columns.classes[left:right]
        if search.itself:
            index = torch.arange(first, last, device=hidden.device)
            hidden[index - first, index - left] = True
        best = largest(similarity.masked_fill_(hidden, -torch.inf), min(count, right - left))
        found[first - band[0] : last - band[0], : best.shape[1]] = best
    return found
