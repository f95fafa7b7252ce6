"""The loss `sphereface`."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.proxies import ClassSolution
from trainables.losses.parts.soft_maximum import cross_entropy
from trainables.losses.softmax import ClassWeightLoss


class SphereFaceLoss(ClassWeightLoss):
    """Logits n_i cos, with n_i psi(theta) for the target; mean cross entropy.

    psi(theta) = (-1)^k cos(m theta) - 2k, k = floor(m theta / pi): decreasing on [0, pi]. The scale is the norm of the
    raw embedding, so this loss, unlike the others, also changes norms. With `annealing` lambda the target is
    (lambda cos theta + psi) / (1 + lambda). The original lowers lambda during training; 0 is the loss itself. m = 1 is
    the "modified softmax" of the same paper.
    """

    name = "sphereface"
    citation = "Liu et al., SphereFace: Deep Hypersphere Embedding for Face Recognition, CVPR 2017"
    section = "3"
    uses_norms = True

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        margin: Annotated[int, Field(ge=1, le=8, description="integer factor m of the angle")] = 4,
        annealing: Annotated[float, Field(ge=0, description="weight lambda of the plain cosine in the target")] = 0.0,
    ):
        super().__init__(num_classes, embedding_dim)
        self.margin = margin
        self.annealing = annealing

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        own, length = labels[:, None], norms[:, None]
        psi, psi_slope = self.target(similarity.gather(1, own))
        cosines = similarity.scatter(1, own, psi)
        value, slopes = cross_entropy(cosines * length, labels)
        norm_slopes = (slopes * cosines).sum(dim=1)
        slopes.scatter_(1, own, slopes.gather(1, own) * psi_slope)
        return ClassSolution(value, slopes.mul_(length), norm_slopes)

    def target(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """Compute psi by Chebyshev polynomials: cos(m theta) = T_m(cos theta), whose derivative m U_{m-1} is finite."""
        m, weight = self.margin, 1 / (1 + self.annealing)
        k = (m * cosine.clamp(-1, 1).acos() / math.pi).floor().clamp_max(m - 1)
        sign = 1 - 2 * (k % 2)
        T, T_next = torch.ones_like(cosine), cosine  # T_0, T_1
        U, U_next = torch.zeros_like(cosine), torch.ones_like(cosine)  # U_{-1}, U_0
        for _ in range(m):
            T, T_next = T_next, 2 * cosine * T_next - T
            U, U_next = U_next, 2 * cosine * U_next - U
        psi = weight * (self.annealing * cosine + sign * T - 2 * k)
        return psi, weight * (self.annealing + sign * m * U)
