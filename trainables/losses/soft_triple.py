"""The loss `soft_triple`."""

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from trainables.losses.parts.proxies import ClassSolution, GammaProxy, ProxiesPerClass, ProxyLoss, Tau
from trainables.losses.parts.soft_maximum import cross_entropy


class SoftTripleLoss(ProxyLoss):
    """L = mean_i CE(la (S(i, .) - delta onehot(y_i)), y_i) + tau R.

    The mean over the batch, as in the authors' code (the MPA paper's eq. 4 writes a sum). K = 1 is CosFace.
    """

    name = "soft_triple"
    citation = "Qian et al., SoftTriple Loss: Deep Metric Learning Without Triplet Sampling, ICCV 2019"
    section = "6.2"

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        proxies_per_class: ProxiesPerClass = 10,
        la: Annotated[float, Field(gt=0, description="scale lambda of the logits")] = 20.0,
        delta: Annotated[float, Field(ge=0, description="margin delta of the own class")] = 0.01,
        gamma: GammaProxy = 0.1,
        tau: Tau = 0.2,
    ):
        super().__init__(num_classes, embedding_dim, proxies_per_class=proxies_per_class, gamma=gamma, tau=tau)
        self.la = la
        self.delta = delta

    def reset_parameters(self) -> None:
        """Draw the (D, C K) matrix from Kaiming's uniform, a = sqrt 5, as in their code: within 1 / sqrt(C K)."""
        bound = float(self.proxies.shape[0] * self.proxies.shape[1]) ** -0.5
        nn.init.uniform_(self.proxies, -bound, bound)

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        logits = self.la * similarity
        own = labels[:, None]
        value, slopes = cross_entropy(
            logits.scatter_add_(1, own, logits.new_full(own.shape, -self.la * self.delta)), labels
        )
        return ClassSolution(value, slopes.mul_(self.la))
