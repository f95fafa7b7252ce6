"""The loss `softmax`."""

import math
from abc import abstractmethod
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.proxies import ClassSolution, ProxyLoss
from trainables.losses.parts.soft_maximum import cross_entropy

Scale = Annotated[float, Field(gt=0, description="scale s of the cosines")]


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
        return cosine, torch.ones_like(cosine)
