"""The loss `mpa`."""

from torch import Tensor

from trainables.losses.parts.proxies import ClassSolution, GammaProxy, ProxiesPerClass, ProxyLoss, Tau
from trainables.losses.proxy_anchor import Alpha, Delta, class_wise


class MultiProxyLoss(ProxyLoss):
    """An MPA loss: K proxies a class, scale alpha, margin delta."""

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        proxies_per_class: ProxiesPerClass = 10,
        alpha: Alpha = 32.0,
        delta: Delta = 0.1,
        gamma: GammaProxy = 0.1,
        tau: Tau = 0.2,
    ):
        super().__init__(num_classes, embedding_dim, proxies_per_class=proxies_per_class, gamma=gamma, tau=tau)
        self.alpha = alpha
        self.delta = delta


class MPALoss(MultiProxyLoss):
    """ProxyAnchor's two class-wise terms on multi-proxy similarities, plus tau R.

    The negative term is averaged over the classes with a negative sample in the batch: all C, or C - 1 if the batch has
    only one class. The paper does not state alpha; 32 is ProxyAnchor's. K = 1 is ProxyAnchor.
    """

    name = "mpa"
    citation = "Saeki et al., Multi Proxy Anchor Family Loss for Several Types of Gradients, 2023 (MPA)"
    section = "6.4"

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        one_class = (labels == labels[0]).all().to(similarity.dtype)
        negative_classes = (similarity.shape[1] - one_class).clamp_min(1)
        return class_wise(similarity, labels, self.alpha, self.delta, negative_classes)
