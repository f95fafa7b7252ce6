"""F1 of the pairs that a clustering puts together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainables.metrics.contingency import contingency
from trainables.metrics.inputs import Array


def pairwise_f1(assignment: Array, labels: Array) -> float:
    """F1 = 2 P R / (P + R) over unordered pairs in one cluster, in percent; 0 when no such pair is of one class.

    TP = Σ_kj C(n_kj, 2), P = TP / Σ_k C(|k|, 2) over clusters k, R = TP / Σ_j C(|j|, 2) over classes j (method
    specification, section 7). Raises ConfigError for wrong types or lengths.
    """
    table = contingency(assignment, labels)
    together = _pairs(table.both)
    return 100 * 2 * together / (_pairs(table.a) + _pairs(table.b)) if together else 0.0


def _pairs(sizes: NDArray[np.int64]) -> int:
    """Σ C(n, 2)."""
    return int((sizes * (sizes - 1) // 2).sum())
