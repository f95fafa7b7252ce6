"""Losses with one weight vector a class: softmax on cosines, without and with a margin on the target.

>>> import torch
>>> from trainables.losses import build_loss
>>> loss = build_loss("arcface", num_classes=10, embedding_dim=64, margin=0.5)
>>> loss.proxies.shape, loss(torch.ones(4, 64), torch.arange(4)).shape
(torch.Size([10, 1, 64]), torch.Size([]))
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.proxies import ClassSolution, ProxyLoss
from trainables.losses.parts.soft_maximum import cross_entropy

Scale = Annotated[float, Field(gt=0, description="scale s of the cosines")]
_BOUND = 1 - 1e-7  # cosines are kept inside, where the slope of the angle is finite


class ClassWeightLoss(ProxyLoss):
    """L = mean_i CE(scale_i * (cos_i with the target's cosine replaced by psi), y_i).

    `proxies` (C, 1, D) are the class weights; cos_ic is their cosine with embedding i. A subclass defines the margin
    function psi and the scale.
    """

    def reset_parameters(self) -> None:
        """Draw the (C, D) matrix from Xavier's normal; logits use only directions, norms set the size of a step."""
        classes, _, dimension = self.proxies.shape
        with torch.no_grad():
            self.proxies.normal_(std=math.sqrt(2 / (classes + dimension)))

    @abstractmethod
    def target(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """Return the margin function psi of the target's cosine (B, 1), and its derivative."""


class ScaledClassLoss(ClassWeightLoss):
    """A class-weight loss whose logits have one fixed scale."""

    def __init__(self, num_classes: int, embedding_dim: int, *, scale: float):
        super().__init__(num_classes, embedding_dim)
        self.scale = scale

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        own = labels[:, None]
        psi, psi_slope = self.target(similarity.gather(1, own))
        logits = similarity.mul(self.scale).scatter_(1, own, psi * self.scale)
        value, slopes = cross_entropy(logits, labels)
        slopes.scatter_(1, own, slopes.gather(1, own) * psi_slope)
        return ClassSolution(value, slopes.mul_(self.scale))


class SoftmaxLoss(ScaledClassLoss):
    """L = mean_i CE(s cos_i, y_i): cross entropy on unit embeddings and unit class weights, no margin."""

    name = "softmax"
    citation = "Wang et al., NormFace: L2 Hypersphere Embedding for Face Verification, ACM MM 2017"
    section = "3"

    def __init__(self, num_classes: int, embedding_dim: int, *, scale: Scale = 64.0):
        super().__init__(num_classes, embedding_dim, scale=scale)

    def target(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """The cosine itself."""
        return cosine, torch.ones_like(cosine)


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
        """Compute psi by Chebyshev polynomials, cos(m theta) = T_m(cos theta), derivative m U_{m-1}: finite at theta = 0."""
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


class CosFaceLoss(ScaledClassLoss):
    """Target logit s (cos theta - m), other logits s cos; mean cross entropy."""

    name = "cosface"
    citation = "Wang et al., CosFace: Large Margin Cosine Loss for Deep Face Recognition, CVPR 2018"
    section = "3"

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        margin: Annotated[float, Field(ge=0, description="margin m on the cosine")] = 0.35,
        scale: Scale = 64.0,
    ):
        super().__init__(num_classes, embedding_dim, scale=scale)
        self.margin = margin

    def target(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """Psi = cos theta - m."""
        return cosine - self.margin, torch.ones_like(cosine)


class ArcFaceLoss(ScaledClassLoss):
    """Target logit s cos(theta + m), other logits s cos; mean cross entropy.

    For theta > pi - m, where cos(theta + m) would rise again, the target logit is s (cos theta - m sin m), as in the
    authors' code: it stays decreasing in theta.
    """

    name = "arcface"
    citation = "Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, CVPR 2019"
    section = "3"

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        margin: Annotated[float, Field(ge=0, le=math.pi, description="margin m on the angle, rad")] = 0.5,
        scale: Scale = 64.0,
    ):
        super().__init__(num_classes, embedding_dim, scale=scale)
        self.margin = margin

    def target(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """Psi = cos(theta + m) = cos theta cos m - sin theta sin m, without going through the angle."""
        cos_m, sin_m = math.cos(self.margin), math.sin(self.margin)
        inside = cosine.clamp(-_BOUND, _BOUND)
        sine = (1 - inside.square()).sqrt()
        beyond = cosine < -cos_m  # theta > pi - m
        psi = torch.where(beyond, cosine - self.margin * sin_m, inside * cos_m - sine * sin_m)
        return psi, torch.where(beyond, 1.0, cos_m + inside / sine * sin_m)
