"""The loss `semihard_triplet`."""

import torch

from trainables.losses.parts.pairs import PairLoss, Pairs, Solution
from trainables.losses.triplet import TripletMargin


class SemihardTripletLoss(PairLoss):
    """L = mean over ordered positive pairs (a, p) of [D²_ap - D²_an* + m]_+, D² = 2 - 2S, zeros counted.

    n* is the closest negative farther away than the positive, D²_an > D²_ap. If there is none, n* is the farthest
    negative of all (not the hardest). n* may lie outside the margin. Anchors without a negative contribute no pair.
    The loss is 0 when the batch has no triplet.
    """

    name = "semihard_triplet"
    citation = (
        "Schroff et al., FaceNet, CVPR 2015; as used by Zhang et al., Deep Metric Learning with Spherical Embedding, "
        "NeurIPS 2020"
    )
    section = "2.2"

    def __init__(self, *, margin: TripletMargin = 0.2):
        super().__init__()
        self.margin = margin

    def solve(self, pairs: Pairs) -> Solution:
        """Sort each anchor's negatives; the number of them below S_ap points at n*."""
        similarity = pairs.similarity
        # Others sort to the end: the first N_a columns of `ranked` are the negatives, from far to close.
        ranked, order = similarity.masked_fill(~pairs.negative, torch.inf).sort(dim=1, stable=True)
        farther = torch.searchsorted(ranked, similarity)  # negatives with S_an < S_ap
        chosen = farther.sub_(1).clamp_min_(0)
        valid = pairs.positive & pairs.negative.any(dim=1, keepdim=True)
        count = valid.sum().clamp_min(1).to(similarity.dtype)
        hinge = (2 * (ranked.gather(1, chosen) - similarity) + self.margin).masked_fill_(~valid, 0).clamp_min_(0)
        slopes = (hinge > 0).to(hinge.dtype).mul_(2 / count)
        pushed = torch.zeros_like(slopes).scatter_add_(1, order.gather(1, chosen), slopes)
        return Solution(hinge.sum() / count, pushed.sub_(slopes))
