"""The loss `arcface`."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.softmax import Scale, ScaledClassLoss

_BOUND = 1 - 1e-7  # cosines are kept inside, where the slope of the angle is finite


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
        """Return psi = cos(theta + m) = cos theta cos m - sin theta sin m and its derivative, without the angle."""
        cos_m, sin_m = math.cos(self.margin), math.sin(self.margin)
        inside = cosine.clamp(-_BOUND, _BOUND)
        sine = (1 - inside.square()).sqrt()
        beyond = cosine < -cos_m  # theta > pi - m
        psi = torch.where(beyond, cosine - self.margin * sin_m, inside * cos_m - sine * sin_m)
        return psi, torch.where(beyond, 1.0, cos_m + inside / sine * sin_m)
