"""The loss `circle`."""

from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from trainables.losses.parts.pairs import PairLoss, Pairs, Solution
from trainables.losses.parts.soft_maximum import log_sum_exp


class CircleLoss(PairLoss):
    """L = (1/B) Σ_i log(1 + Σ_n e^{s a_n (S_in - m)} Σ_p e^{-s a_p (S_ip - 1 + m)}), a_n = [S_in + m]_+, a_p = [1 + m - S_ip]_+.

    The weights a are held constant (the paper's code), so the gradient is not that of the value. An anchor without a
    positive or without a negative contributes 0; the mean is over all B anchors. Margin and scale are those of the
    paper's fine-grained retrieval.
    """

    name = "circle"
    citation = "Sun et al., Circle Loss: A Unified Perspective of Pair Similarity Optimization, CVPR 2020"
    section = "2.8"
    surrogate_gradient = True

    def __init__(
        self,
        *,
        margin: Annotated[float, Field(ge=0, le=1, description="relaxation m: optima 1 + m and -m")] = 0.4,
        scale: Annotated[float, Field(gt=0, description="scale s")] = 80.0,
    ):
        super().__init__()
        self.margin = margin
        self.scale = scale

    def solve(self, pairs: Pairs) -> Solution:
        """Compute an anchor's loss as softplus(v+ + v-), from its two log-sum-exps v+ and v-."""
        similarity, m = pairs.similarity, self.margin
        pull = (1 + m - similarity).clamp_min_(0).mul_(-self.scale)
        push = (similarity + m).clamp_min_(0).mul_(self.scale)
        positive, positive_shares = log_sum_exp(
            (pull * (similarity - (1 - m))).masked_fill_(~pairs.positive, -torch.inf), dim=1
        )
        negative, negative_shares = log_sum_exp(
            (push * (similarity - m)).masked_fill_(~pairs.negative, -torch.inf), dim=1
        )
        has_both = pairs.positive.any(dim=1) & pairs.negative.any(dim=1)
        exponent = torch.where(has_both, positive + negative, -torch.inf)
        # nn.functional.softplus is linear beyond 20; this is exact everywhere.
        value = -nn.functional.logsigmoid(-exponent).mean()
        slopes = pull.mul_(positive_shares).add_(push.mul_(negative_shares))
        return Solution(value, slopes.mul_(exponent.sigmoid()[:, None] / len(similarity)))
