"""The loss `nt_xent`."""

from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from trainables.losses.parts.pairs import PairLoss, Pairs, Solution
from trainables.losses.parts.soft_maximum import log_sum_exp


class NTXentLoss(PairLoss):
    """L = mean over ordered positive pairs (i, p) of -S_ip/T + log(e^{S_ip/T} + Σ_{n in N_i} e^{S_in/T}).

    Two views of one image share a label. With two items of every label the denominator holds every other item: SimCLR's
    loss of 2N views. With more than two it leaves the other positives out, as in pytorch-metric-learning.
    """

    name = "nt_xent"
    citation = "Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020"
    section = "4"

    def __init__(self, *, temperature: Annotated[float, Field(ge=1e-4, description="temperature T")] = 0.5):
        super().__init__()
        self.temperature = temperature

    def solve(self, pairs: Pairs) -> Solution:
        """Compute a pair's loss as softplus(Λ_i - S_ip / T), Λ_i = log Σ_n e^{S_in / T}."""
        logits = pairs.similarity / self.temperature
        total, shares = log_sum_exp(logits.masked_fill(~pairs.negative, -torch.inf), dim=1)
        excess = (total[:, None] - logits).masked_fill_(~pairs.positive, -torch.inf)
        count = pairs.positive.sum().clamp_min(1).to(logits.dtype)
        pull = excess.sigmoid().div_(count * self.temperature)
        slopes = shares.mul_(pull.sum(dim=1, keepdim=True)).sub_(pull)
        # nn.functional.softplus is linear beyond 20; this is exact everywhere.
        return Solution(-nn.functional.logsigmoid(-excess).sum() / count, slopes)
