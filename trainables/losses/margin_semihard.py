"""Margin loss with semi-hard negatives."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.errors import Problem
from trainables.losses.parts.mined import MinedMarginLoss
from trainables.losses.parts.pair_terms import MarginWidth, Threshold
from trainables.losses.parts.pairs import Pairs
from trainables.losses.parts.random_stream import SamplingSeed


class MarginSemihardLoss(MinedMarginLoss):
    """Margin loss on all positives and, per anchor, up to as many semi-hard negatives: threshold - m < S_ij < threshold.

    The semi-hard negatives of an anchor (those with a loss between 0 and m) are drawn uniformly without replacement; all
    are taken when there are no more of them than positives.
    """

    name = "margin_semihard"
    citation = "Qi et al., A Simple and Effective Framework for Pairwise Deep Metric Learning, ECCV 2020"
    section = "5.8"

    def __init__(self, *, margin: MarginWidth = 0.2, threshold: Threshold = 0.5, sampling_seed: SamplingSeed = 0):
        super().__init__(margin=margin, threshold=threshold, sampling_seed=sampling_seed)

    @classmethod
    def check_parameters(cls, *, margin: float, threshold: float, **_: object) -> list[Problem]:
        """Besides the limits of every margin loss: semi-hard pairs must be possible."""
        problems = super().check_parameters(margin=margin, threshold=threshold)
        if margin == 0:
            problems.append(
                Problem("margin", "must be positive, else no negative is semi-hard", margin, "Raise margin.")
            )
        return problems

    def negatives(self, pairs: Pairs, uniform: Tensor) -> Tensor:
        """Shuffle each anchor's semi-hard negatives to the front and take the first P_i."""
        similarity = pairs.similarity
        semihard = pairs.negative & (similarity > self.threshold - self.margin) & (similarity < self.threshold)
        order = uniform.masked_fill_(~semihard, 2).argsort(dim=1, stable=True)
        quota = torch.minimum(pairs.positive.sum(dim=1, keepdim=True), semihard.sum(dim=1, keepdim=True))
        first = torch.arange(order.shape[1], device=order.device) < quota
        return torch.zeros_like(similarity).scatter_(1, order, first.to(similarity.dtype))
