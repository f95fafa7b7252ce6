"""The loss `cosface`."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.softmax import Scale, ScaledClassLoss


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
        return cosine - self.margin, torch.ones_like(cosine)
