"""The loss `proxy_nca_pp`."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from trainables.losses.parts.proxies import ClassSolution, ProxyLoss
from trainables.losses.parts.soft_maximum import cross_entropy


class ProxyNCAPPLoss(ProxyLoss):
    """L = mean_i -log [ e^{-D²(i, y_i)/T} / Σ_c e^{-D²(i, c)/T} ], D² between unit vectors, all classes in the sum.

    ProxyNCA with the own class in the sum and vectors scaled to length 1/√T. The rest of the method is configuration:
    global max pooling, a layer norm in the head, a 10 to 1000 times larger learning rate of the proxies, and batches of
    several pictures a class.
    """

    name = "proxy_nca_pp"
    citation = "Teh et al., ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component Analysis, ECCV 2020"
    section = "6.9"

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        temperature: Annotated[float, Field(ge=1e-4, description="temperature T of the squared distances")] = 1 / 9,
    ):
        super().__init__(num_classes, embedding_dim)
        self.temperature = temperature

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        # The constant of D² = 2 - 2 cos cancels.
        factor = 2 / self.temperature
        value, slopes = cross_entropy(similarity * factor, labels)
        return ClassSolution(value, slopes.mul_(factor))
