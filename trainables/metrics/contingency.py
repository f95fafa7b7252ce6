"""How two partitions of the same points overlap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainables.errors import raise_if_any
from trainables.metrics.inputs import Array, checked_labels


@dataclass(frozen=True)
class Contingency:
    """Sizes of the parts of partitions A and B and of their non-empty intersections; each sums to N."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    both: NDArray[np.int64]
    """Sizes of the non-empty intersections,"""
    of_a: NDArray[np.int64]
    """the part of A each belongs to,"""
    of_b: NDArray[np.int64]
    """and the part of B."""


def contingency(a: Array, b: Array) -> Contingency:
    """The overlap of two labellings (N,) of the same points. Raises ConfigError for wrong types or lengths."""
    first, problems = checked_labels(a, 0, "assignment")
    second, more = checked_labels(b, 0 if problems else len(first), "labels")
    raise_if_any(problems + more)
    _, in_a = np.unique(first.cpu().numpy(), return_inverse=True)
    parts_b, in_b = np.unique(second.cpu().numpy(), return_inverse=True)
    pairs, both = np.unique(in_a * len(parts_b) + in_b, return_counts=True)
    of_a, of_b = np.divmod(pairs, max(len(parts_b), 1))
    return Contingency(np.bincount(in_a), np.bincount(in_b), both, of_a, of_b)
