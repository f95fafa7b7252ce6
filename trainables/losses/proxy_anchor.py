"""Proxy-anchor loss."""

from __future__ import annotations

from torch import Tensor

from trainables.losses.parts.multi_proxy import Alpha, Delta, class_wise
from trainables.losses.parts.proxies import ProxyLoss, Solution


class ProxyAnchorLoss(ProxyLoss):
    """Each proxy is an anchor that pulls its hardest samples and pushes the nearest others (eq. 4).

    L = (1/|C+|) Σ_{c in C+} log(1 + Σ_{i: y_i = c} e^{-alpha (S_ic - delta)})
      + (1/C)    Σ_c         log(1 + Σ_{i: y_i != c} e^{alpha (S_ic + delta)})

    C+ are the classes present in the batch; the second mean runs over all C, absent ones included.
    """

    name = "proxy_anchor"
    citation = "Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020"
    section = "6.3"

    def __init__(self, num_classes: int, embedding_dim: int, *, alpha: Alpha = 32.0, delta: Delta = 0.1):
        super().__init__(num_classes, embedding_dim)
        self.alpha = alpha
        self.delta = delta

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> Solution:
        """Value and slopes of S (B, C)."""
        return class_wise(similarity, labels, self.alpha, self.delta, similarity.shape[1])
