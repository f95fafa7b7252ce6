"""What the classification losses share: one weight vector per class, a margin on the target, cross entropy."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.proxies import ProxyLoss, Solution
from trainables.losses.parts.soft_maximum import log_sum_exp

Scale = Annotated[float, Field(gt=0, description="scale s of the cosines")]


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross entropy of logits (B, C) and its derivative, which overwrites them."""
    own = labels[:, None]
    target = logits.gather(1, own)[:, 0]
    total, slopes = log_sum_exp(logits, dim=1)
    slopes.scatter_add_(1, own, slopes.new_full(own.shape, -1.0))
    return (total - target).mean(), slopes.div_(len(labels))


class ClassWeightLoss(ProxyLoss):
    """L = mean_i CE(scale_i * (cos_i with the target's cosine replaced by psi), y_i).

    `proxies` (C, 1, D) are the class weights; cos_ic is their cosine with embedding i. A subclass gives the
    margin function psi and the scale.
    """

    def reset_parameters(self) -> None:
        """Xavier-normal of the (C, D) matrix; only directions matter to the logits, norms to the size of a step."""
        classes, _, dimension = self.proxies.shape
        with torch.no_grad():
            self.proxies.normal_(std=math.sqrt(2 / (classes + dimension)))

    @abstractmethod
    def target(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """The margin function psi of the target's cosine (B, 1), and its derivative."""


class ScaledClassLoss(ClassWeightLoss):
    """A class-weight loss whose logits have one fixed scale."""

    def __init__(self, num_classes: int, embedding_dim: int, *, scale: float):
        super().__init__(num_classes, embedding_dim)
        self.scale = scale

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> Solution:
        """Value and slopes of the cosines (B, C)."""
        own = labels[:, None]
        psi, psi_slope = self.target(similarity.gather(1, own))
        logits = similarity.mul(self.scale).scatter_(1, own, psi * self.scale)
        value, slopes = cross_entropy(logits, labels)
        slopes.scatter_(1, own, slopes.gather(1, own) * psi_slope)
        return Solution(value, slopes.mul_(self.scale))
