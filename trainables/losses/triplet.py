"""The loss `triplet`."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.pairs import PairLoss, Pairs, Solution

TripletMargin = Annotated[float, Field(ge=0, description="margin m on squared distances")]


class TripletLoss(PairLoss):
    """L = mean over all valid (a, p, n) of [D²_ap - D²_an + m]_+, D² = 2 - 2S, zeros counted (SEC supplement, B.1, C.2; code).

    Exact in O(B² log B) time and O(B²) memory. Each pair gets one key: u_an = S_an for negatives and
    u_ap = S_ap - m/2 for positives. A triplet's hinge is then 2 [u_an - u_ap]_+. Sorting each anchor's keys gives the
    number of positives that each negative violates, and the reverse. These counts w are the gradient, and L = <w, u>.
    The loss is 0 when the batch has no triplet.
    """

    name = "triplet"
    citation = "Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020"
    section = "2.1"

    def __init__(self, *, margin: TripletMargin = 1.0):
        super().__init__()
        self.margin = margin

    def solve(self, pairs: Pairs) -> Solution:
        positive = pairs.positive.to(pairs.similarity.dtype)
        keys = torch.add(pairs.similarity, positive, alpha=-self.margin / 2)
        if pairs.within:
            keys.fill_diagonal_(-torch.inf)  # the self pair comes first, so that ranks count the others
        order = keys.argsort(dim=1, stable=True)
        if pairs.within:
            keys.fill_diagonal_(0)
        counts = _count_violations(positive.gather(1, order), first=0 if pairs.within else 1)
        slopes = torch.empty_like(keys).scatter_(1, order, counts)
        negatives = pairs.negative.sum(dim=1)
        triplets = (pairs.positive.sum(dim=1) * negatives).sum().clamp_min(1).to(keys.dtype)
        slopes.mul_(2 / triplets)
        return Solution((slopes * keys).sum(), slopes)


def _count_violations(positive: Tensor, *, first: int) -> Tensor:
    """Return the counts w from 1/0 for positive/negative in ascending order of the keys, (B, N).

    `first` is the rank of the first column: 0 for the self pair, 1 where there is none.
    """
    # Counted in integers: exact, and deterministic on every device.
    positives_below = positive.cumsum(dim=1, dtype=torch.int32).to(positive.dtype)
    rank = torch.arange(first, first + positive.shape[1], device=positive.device, dtype=positive.dtype)
    negatives_below = rank - positives_below
    negatives_above = negatives_below[:, -1:] - negatives_below
    return torch.lerp(positives_below, -negatives_above, positive)
