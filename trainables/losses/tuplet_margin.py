"""The loss `tuplet_margin`."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from trainables.losses.parts.pairs import PairLoss, Pairs, Solution
from trainables.losses.parts.uncertainty import Entropic

_COSINE_LIMIT = 1e-7  # cosines are kept this far from +-1, where the slope of sin(acos S) is infinite


class TupletMarginLoss(PairLoss):
    """L = mean over ordered positive pairs of lse0_{n in N_a}(s (S_an - cos(theta_ap - margin))) + ipv_weight * V.

    V = mean_pos [(1 - eps) Sbar_p - S_p]²_+ + mean_neg [S_n - (1 + eps) Sbar_n]²_+, Sbar the batch's mean positive /
    negative cosine (not held constant). cos(theta - margin) = S cos(margin) + sqrt(1 - S²) sin(margin). The loss is 0
    for a batch without positive pairs.
    """

    name = "tuplet_margin"
    citation = "Yu and Tao, Deep Metric Learning with Tuplet Margin Loss, ICCV 2019"
    section = "2.5"

    def __init__(
        self,
        *,
        margin: Annotated[float, Field(ge=0, lt=math.pi / 2, description="angular margin, radians")] = 0.1,
        scale: Annotated[float, Field(gt=0, description="scale s of the cosines")] = 64.0,
        ipv_weight: Annotated[float, Field(ge=0, description="weight of the intra-pair variance loss")] = 0.5,
        ipv_epsilon: Annotated[float, Field(ge=0, lt=1, description="slack around the mean cosines")] = 0.01,
    ):
        super().__init__()
        self.margin = margin
        self.scale = scale
        self.ipv_weight = ipv_weight
        self.ipv_epsilon = ipv_epsilon
        self.negative_set = Entropic(1 / scale, counting=True)

    def solve(self, pairs: Pairs) -> Solution:
        """Compute a pair's term as softplus(s (v_a - cos(theta_ap - margin))), v_a = lse_n(s S_an) / s."""
        target, target_slopes = self._shift_target(pairs.similarity)
        hardest, p = self.negative_set.worst_case(pairs.similarity, pairs.negative)
        exponent = (hardest[:, None] - target).mul_(self.scale)
        valid = pairs.positive & pairs.negative.any(dim=1, keepdim=True)
        count = valid.sum().clamp_min(1).to(exponent.dtype)
        # softplus turns linear above its threshold; at 50 that is exact in double precision too.
        value = nn.functional.softplus(exponent, threshold=50).masked_fill_(~valid, 0).sum() / count
        pull = exponent.sigmoid_().masked_fill_(~valid, 0).mul_(self.scale / count)
        slopes = p.mul_(pull.sum(dim=1, keepdim=True)).sub_(pull.mul_(target_slopes))
        if self.ipv_weight:
            variance, variance_slopes = self._variance(pairs)
            value += self.ipv_weight * variance
            slopes.add_(variance_slopes, alpha=self.ipv_weight)
        return Solution(value, slopes)

    def _shift_target(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos(theta - margin) and its derivative with respect to S, both (B, B)."""
        cosine = similarity.clamp(-1 + _COSINE_LIMIT, 1 - _COSINE_LIMIT)
        sine = (1 - cosine.square()).sqrt_()
        cos_margin, sin_margin = math.cos(self.margin), math.sin(self.margin)
        slopes = (cos_margin - sin_margin * cosine / sine).mul_(cosine == similarity)
        return cosine.mul_(cos_margin).add_(sine, alpha=sin_margin), slopes

    def _variance(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return V and dV/dS; 0 without positive pairs."""
        value, slopes = torch.zeros_like(pairs.similarity[0, 0]), torch.zeros_like(pairs.similarity)
        present = pairs.positive.any()
        for mask, sign in ((pairs.positive, -1.0), (pairs.negative, 1.0)):
            weight = mask.to(slopes.dtype).mul_(present) / mask.sum().clamp_min(1).to(slopes.dtype)
            level = 1 + sign * self.ipv_epsilon
            mean = (weight * pairs.similarity).sum()
            hinge = (pairs.similarity - level * mean).mul_(sign).clamp_min_(0)
            value = value + (weight * hinge.square()).sum()
            slopes += 2 * sign * weight * (hinge - level * (weight * hinge).sum())
        return value, slopes
