"""The regularizer `none`."""

from __future__ import annotations

from torch import Tensor

from trainables.regularizers.base import Regularizer


class NoRegularizer(Regularizer):
    """R = 0 with zero gradient; the norm statistics are recorded as for every regularizer."""

    name = "none"
    citation = "Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020 (baseline)"
    section = "1"

    def value(self, norms: Tensor) -> Tensor:
        return 0 * norms.sum()
