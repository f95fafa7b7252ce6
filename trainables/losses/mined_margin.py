"""The margin loss on mined negatives: every positive pair, and per anchor as many negatives as it has positives.

Mining baselines of the DRO paper, section 4.2.2; docs/specification.md, section 5.8. Each anchor's draws come from the
loss's own stream, on the CPU and for the whole (global) batch: equal on every rank and device.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from trainables.errors import Problem
from trainables.losses.parts.pair_terms import Margin, MarginKnobs, MarginWidth, Threshold
from trainables.losses.parts.pairs import PairLoss, Pairs, Solution
from trainables.losses.parts.random_stream import RandomStream, SamplingSeed
from trainables.losses.parts.uncertainty import sample_in_proportion

_CLOSEST = 0.5  # shorter distances count as this one, which bounds the weight of close pairs
_FARTHEST = 1.4  # pairs at least this far apart are not drawn


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
    """Margin loss on all positives and, per anchor, up to as many semi-hard negatives: threshold - m < S_ij < threshold.

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
        """Add to the limits of every margin loss that semi-hard pairs must be possible."""
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


class MarginDWSLoss(MinedMarginLoss):
    """Margin loss on all positives and, per anchor, as many negatives drawn with probability ~ 1 / q(D).

    q is the density of distances on the unit sphere in d dimensions. The log weight is
    (2 - d) log D - (d - 3)/2 log(1 - D²/4), with D = sqrt(2 - 2S) raised to at least 0.5, and the weight is 0 from 1.4 on.
    Draws are with replacement. Weights are scaled by the largest of each anchor ("row"). "global" scales by the largest
    of the batch, as the original code does: in high dimensions a single close pair then leaves almost every other anchor
    without negatives (weights underflow to 0).
    """

    name = "margin_dws"
    citation = (
        "Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017; with the pair loss of Qi et al., ECCV 2020"
    )
    section = "5.8"

    def __init__(
        self,
        *,
        margin: MarginWidth = 0.2,
        threshold: Threshold = 0.5,
        dws_normalise: Annotated[
            Literal["row", "global"], Field(description="scale weights per anchor, or per batch (as first published)")
        ] = "row",
        sampling_seed: SamplingSeed = 0,
    ):
        super().__init__(margin=margin, threshold=threshold, sampling_seed=sampling_seed)
        self.dws_normalise = dws_normalise

    def negatives(self, pairs: Pairs, uniform: Tensor) -> Tensor:
        """Draw one of the anchor's negatives for each of its positive pairs."""
        cumulative = _sampling_weights(pairs, self.dws_normalise).cumsum(dim=1)
        drawn = sample_in_proportion(cumulative, uniform)
        counted = (pairs.positive & (cumulative[:, -1:] > 0)).to(uniform.dtype)
        return torch.zeros_like(uniform).scatter_add_(1, drawn, counted)


def _sampling_weights(pairs: Pairs, normalise: str) -> Tensor:
    """Return weights (B, B) of each anchor's negatives, scaled to a largest of 1 a row or a batch; 0: not eligible."""
    squared = (2 - 2 * pairs.similarity).clamp_(_CLOSEST**2, _FARTHEST**2)
    eligible = pairs.negative & (squared < _FARTHEST**2)
    log_weights = (1 - squared / 4).log_().mul_(-(pairs.dimension - 3) / 2)
    log_weights.add_(squared.log_(), alpha=(2 - pairs.dimension) / 2).masked_fill_(~eligible, -torch.inf)
    top = log_weights.amax(dim=1, keepdim=True)
    if normalise == "global":
        top = top.amax().expand_as(top).contiguous()
    return log_weights.sub_(top.masked_fill_(top == -torch.inf, 0)).exp_()
