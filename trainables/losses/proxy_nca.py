"""The loss `proxy_nca`."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.proxies import ClassSolution, ProxyLoss
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
