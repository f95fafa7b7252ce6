"""Cross entropy over similarities to proxies: Proxy-NCA, ProxyNCA++ and SoftTriple."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from trainables.losses.parts.proxies import ClassSolution, GammaProxy, ProxiesPerClass, ProxyLoss, Tau
from trainables.losses.parts.soft_maximum import cross_entropy, log_sum_exp


class ProxyNCALoss(ProxyLoss):
    """L = mean_i { D²(i, y_i) + log Σ_{c != y_i} e^{-D²(i, c)} }, D between vectors of length `scale`.

    D² = 2 scale² (1 - cos). The paper's form leaves the own class out of the sum, so the loss can be negative; a single
    class then gives 0. `include_positive` adds the own class: cross entropy over -D², as in most code.
    """

    name = "proxy_nca"
    citation = "Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017"
    section = "6.7"

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        scale: Annotated[float, Field(gt=0, description="length the unit vectors are scaled to")] = 3.0,
        include_positive: Annotated[bool, Field(description="count the own class in the sum")] = False,
    ):
        super().__init__(num_classes, embedding_dim)
        self.scale = scale
        self.include_positive = include_positive

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        # The constant of D² cancels between the two terms.
        factor = 2 * self.scale**2
        logits = similarity * factor
        if self.include_positive:
            value, slopes = cross_entropy(logits, labels)
        elif similarity.shape[1] == 1:
            value, slopes = similarity.new_zeros(()), torch.zeros_like(similarity)
        else:
            own = labels[:, None]
            target = logits.gather(1, own)[:, 0]
            total, slopes = log_sum_exp(logits.scatter_(1, own, -torch.inf), dim=1)
            value = (total - target).mean()
            slopes.scatter_(1, own, -1.0).div_(len(labels))
        return ClassSolution(value, slopes.mul_(factor))


class ProxyNCAPPLoss(ProxyLoss):
    """L = mean_i -log [ e^{-D²(i, y_i)/T} / Σ_c e^{-D²(i, c)/T} ], D² between unit vectors, all classes in the sum.

    ProxyNCA with the own class in the sum and vectors scaled to length 1/√T. The rest of the method is configuration: global
    max pooling, a layer norm in the head, a 10 to 1000 times larger learning rate of the proxies, and batches of several
    pictures a class.
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
        """Kaiming-uniform with a = sqrt 5 of the (D, C K) matrix, as in the authors' code: within 1 / sqrt(C K)."""
        bound = float(self.proxies.shape[0] * self.proxies.shape[1]) ** -0.5
        nn.init.uniform_(self.proxies, -bound, bound)

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        logits = self.la * similarity
        own = labels[:, None]
        value, slopes = cross_entropy(
            logits.scatter_add_(1, own, logits.new_full(own.shape, -self.la * self.delta)), labels
        )
        return ClassSolution(value, slopes.mul_(self.la))
