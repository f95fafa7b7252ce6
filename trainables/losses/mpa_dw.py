"""The loss `mpa_dw`."""

import torch
from torch import Tensor, nn

from trainables.losses.mpa import MultiProxyLoss
from trainables.losses.parts.proxies import ClassSolution
from trainables.losses.parts.soft_maximum import log_sum_exp


class MPADataWiseLoss(MultiProxyLoss):
    """L = (1/B) Σ_i [ softplus(-alpha (S_iy - delta)) + log(1 + Σ_{c != y} e^{alpha (S_ic + delta)}) ] + tau R."""

    name = "mpa_dw"
    citation = "Saeki et al., Multi Proxy Anchor Family Loss for Several Types of Gradients, 2023 (MPA-DW)"
    section = "6.5"

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        own = labels[:, None]
        pull = self.alpha * (self.delta - similarity.gather(1, own))
        logits = similarity.mul(self.alpha).add_(self.alpha * self.delta).scatter_(1, own, -torch.inf)
        push, slopes = log_sum_exp(logits, dim=1, add_one=True)
        slopes.scatter_(1, own, -pull.sigmoid()).mul_(self.alpha / len(labels))
        return ClassSolution(push.mean() - nn.functional.logsigmoid(-pull).mean(), slopes)
