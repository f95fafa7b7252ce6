"""Normalised softmax loss."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.losses.parts.class_weights import Scale, ScaledClassLoss


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
