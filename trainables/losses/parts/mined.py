"""The margin loss on mined negatives: every positive pair, and per anchor as many negatives as it has positives.

Mining baselines of the DRO paper, section 4.2.2; docs/specification.md, section 5.8. Each anchor's draws come from the
loss's own stream, on the CPU and for the whole (global) batch: equal on every rank and device.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from trainables.losses.parts.pair_terms import Margin, MarginKnobs
from trainables.losses.parts.pairs import PairLoss, Pairs, Solution
from trainables.losses.parts.random_stream import RandomStream


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
        """How often each negative pair is chosen, (B, B) float; uniform (B, B) are fresh numbers in [0, 1)."""

    def solve(self, pairs: Pairs) -> Solution:
        """Mean over the chosen pairs with their multiplicity."""
        losses, slopes = self.term(pairs)
        uniform = self.stream.uniform(losses.shape, like=losses)
        chosen = self.negatives(pairs, uniform).add_(pairs.positive)
        chosen.div_(chosen.sum().clamp_min(1))
        return Solution((chosen * losses).sum(), slopes.mul_(chosen))
