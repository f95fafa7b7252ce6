"""Triplet loss over all valid triplets of the batch."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.base import Loss, normalise

__all__ = ["TripletLoss"]


class TripletLoss(Loss):
    """L = mean over all valid (a, p, n) of [D²_ap - D²_an + m]_+, D² = 2 - 2S, zeros counted (SEC supplement, table 1)."""

    name = "triplet"
    citation = "Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020"
    section = "2.1"

    def __init__(self, *, margin: Annotated[float, Field(ge=0, description="margin m on squared distances")] = 1.0):
        super().__init__()
        self.margin = margin

    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Mean hinge over all triplets; 0 when the batch has none."""
        unit = normalise(embeddings)
        similarity = unit @ unit.T
        same = labels[:, None] == labels[None, :]
        positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        anchor, other = positive.nonzero(as_tuple=True)
        hinge = (2 * similarity[anchor] - 2 * similarity[anchor, other][:, None] + self.margin).clamp_min(0)
        valid = ~same[anchor]
        return torch.where(valid, hinge, 0).sum() / valid.sum().clamp_min(1) + 0 * embeddings.sum()
