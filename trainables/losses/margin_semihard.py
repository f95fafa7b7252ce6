"""The loss `margin_semihard`."""

from abc import abstractmethod

import torch
from torch import Tensor

from trainables.errors import Problem
from trainables.losses.parts.pair_terms import Margin, MarginKnobs, MarginWidth, Threshold
from trainables.losses.parts.pairs import PairLoss, Pairs, Solution
from trainables.losses.parts.random_stream import RandomStream, SamplingSeed


class MinedMarginLoss(MarginKnobs, PairLoss):
    """L = mean over all ordered positive pairs and the mined ordered negative pairs of the margin loss."""

    depends_on_order = True

    def __init__(self, *, margin: float, threshold: float, sampling_seed: int):
        super().__init__()
        self.margin = margin
        self.threshold = threshold
        self.term = Margin(margin, threshold)
        self.stream = RandomStream(sampling_seed)

    @abstractmethod
    def negatives(self, pairs: Pairs, uniform: Tensor) -> Tensor:
        """Return how often each negative pair is chosen, (B, B) float, from random numbers (B, B) in [0, 1)."""

    def solve(self, pairs: Pairs) -> Solution:
        """Average over the chosen pairs with their multiplicity."""
        losses, slopes = self.term(pairs)
        uniform = self.stream.uniform(losses.shape, like=losses)
        chosen = self.negatives(pairs, uniform).add_(pairs.positive)
        chosen.div_(chosen.sum().clamp_min(1))
        return Solution((chosen * losses).sum(), slopes.mul_(chosen))


class MarginSemihardLoss(MinedMarginLoss):
    """Margin loss on all positives and, per anchor, at most as many semi-hard negatives: threshold - m < S < threshold.

    An anchor's semi-hard negatives (those with a loss between 0 and m) are drawn uniformly without replacement. All are
    taken when there are no more of them than positives.
    """

    name = "margin_semihard"
    citation = "Qi et al., A Simple and Effective Framework for Pairwise Deep Metric Learning, ECCV 2020"
    section = "5.8"

    def __init__(self, *, margin: MarginWidth = 0.2, threshold: Threshold = 0.5, sampling_seed: SamplingSeed = 0):
        super().__init__(margin=margin, threshold=threshold, sampling_seed=sampling_seed)

    @classmethod
    def check_parameters(cls, *, margin: float, threshold: float, **_: object) -> list[Problem]:
        """Check the limits of every margin loss, and that semi-hard pairs are possible."""
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
