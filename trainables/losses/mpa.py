"""Multi-proxies anchor loss, class-wise."""

from __future__ import annotations

from torch import Tensor

from trainables.losses.parts.multi_proxy import MultiProxyLoss, class_wise
from trainables.losses.parts.proxies import Solution


class MPALoss(MultiProxyLoss):
    """ProxyAnchor's two class-wise terms on multi-proxy similarities, plus tau R.

    The negative term is averaged over the classes with a negative sample in the batch: all C, or C - 1 when
    the batch holds one class only. The paper does not state alpha; 32 is ProxyAnchor's. K = 1 is ProxyAnchor.
    """

    name = "mpa"
    citation = "Saeki et al., Multi Proxy Anchor Family Loss for Several Types of Gradients, 2023 (MPA)"
    section = "6.4"

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> Solution:
        """Value and slopes of S (B, C)."""
        one_class = (labels == labels[0]).all().to(similarity.dtype)
        negative_classes = (similarity.shape[1] - one_class).clamp_min(1)
        return class_wise(similarity, labels, self.alpha, self.delta, negative_classes)
