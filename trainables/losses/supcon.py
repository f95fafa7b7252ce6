"""The loss `supcon`."""

from typing import Annotated

import torch
from pydantic import Field

from trainables.losses.parts.pairs import PairLoss, Pairs, Solution
from trainables.losses.parts.soft_maximum import log_sum_exp


class SupConLoss(PairLoss):
    """L = mean over anchors i of -(1/P_i) Σ_{p in P_i} [S_ip/T - log Σ_{a != i} e^{S_ia/T}], the paper's L_out.

    The denominator holds every other picture of the batch, including the other positives (NT-Xent leaves these out).
    The mean is over the anchors that have a positive; without any, the loss is 0.
    """

    name = "supcon"
    citation = "Khosla et al., Supervised Contrastive Learning, NeurIPS 2020"
    section = "2.7"

    def __init__(self, *, temperature: Annotated[float, Field(ge=1e-4, description="temperature T")] = 0.1):
        super().__init__()
        self.temperature = temperature

    def solve(self, pairs: Pairs) -> Solution:
        """Compute each anchor's cross entropy with its positives as equal targets."""
        logits = pairs.similarity / self.temperature
        targets = pairs.positive / pairs.positive.sum(dim=1, keepdim=True).clamp_min(1).to(logits.dtype)
        anchors = pairs.positive.any(dim=1)
        mean = (targets * logits).sum(dim=1)
        is_other = pairs.positive | pairs.negative
        total, shares = log_sum_exp(logits.masked_fill_(~is_other, -torch.inf), dim=1)
        count = anchors.sum().clamp_min(1).to(logits.dtype)
        value = (total - mean).masked_fill_(~anchors, 0).sum() / count
        weight = anchors[:, None] / (count * self.temperature)
        return Solution(value, shares.sub_(targets).mul_(weight))
