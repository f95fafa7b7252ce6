"""Normalised mutual information of two partitions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainables.metrics.contingency import contingency
from trainables.metrics.inputs import Array


def nmi(assignment: Array, labels: Array) -> float:
    """NMI = 2 I(A; B) / (H(A) + H(B)), in percent, for cluster and class numbers (N,).

    The arithmetic mean of the entropies normalises (older papers' programs took the geometric one). 100 when both
    partitions have a single part. Raises ConfigError for wrong types or lengths.
    """
    table = contingency(assignment, labels)
    total = max(int(table.a.sum()), 1)
    entropies = _entropy(table.a / total) + _entropy(table.b / total)
    if entropies == 0:
        return 100.0
    joint = table.both / total
    independent = (table.a[table.of_a] / total) * (table.b[table.of_b] / total)
    information = float((joint * np.log(joint / independent)).sum())
    return min(100.0, max(0.0, 200 * information / entropies))


def _entropy(shares: NDArray[np.float64]) -> float:
    return float(-(shares * np.log(shares)).sum())
