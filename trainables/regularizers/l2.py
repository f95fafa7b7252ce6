"""The regularizer `l2`."""

from torch import Tensor

from trainables.regularizers.base import Regularizer


class L2Regularizer(Regularizer):
    """R = (1/B) Σ n_i², the mean squared norm: fixed-mean SEC with mu = 0 (SEC supplement, "L2-reg").

    The norms are squared, unlike in pytorch-metric-learning's LpRegularizer, whose default power is 1.
    """

    name = "l2"
    citation = "Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020 (L2-reg)"
    section = "1.4"

    def value(self, norms: Tensor) -> Tensor:
        return norms.square().mean()
