"""The loss `proxy_anchor`."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.proxies import ClassSolution, ProxyLoss
from trainables.losses.parts.soft_maximum import log_sum_exp

Alpha = Annotated[float, Field(gt=0, description="scale alpha of the similarities")]
Delta = Annotated[float, Field(ge=0, description="margin delta")]


class ProxyAnchorLoss(ProxyLoss):
    """Each proxy is an anchor that pulls its hardest samples and pushes the nearest others (eq. 4).

    L = (1/|C+|) Σ_{c in C+} log(1 + Σ_{i: y_i = c} e^{-alpha (S_ic - delta)})
      + (1/C)    Σ_c         log(1 + Σ_{i: y_i != c} e^{alpha (S_ic + delta)})

    C+ are the classes present in the batch; the second mean runs over all C, absent ones included.
    """

    name = "proxy_anchor"
    citation = "Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020"
    section = "6.3"

    def __init__(self, num_classes: int, embedding_dim: int, *, alpha: Alpha = 32.0, delta: Delta = 0.1):
        super().__init__(num_classes, embedding_dim)
        self.alpha = alpha
        self.delta = delta

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        return class_wise(similarity, labels, self.alpha, self.delta, similarity.shape[1])


def class_wise(
    similarity: Tensor, labels: Tensor, alpha: float, delta: float, negative_classes: Tensor | int
) -> ClassSolution:
    """Return the sum of ProxyAnchor's and MPA's two class-wise terms; `negative_classes` divides the negative one."""
    own = labels[:, None]
    pull, pull_slopes = _pull(similarity.gather(1, own), labels, alpha, delta)
    logits = similarity.mul(alpha).add_(alpha * delta).scatter_(1, own, -torch.inf)
    push, slopes = log_sum_exp(logits, dim=0, add_one=True)
    slopes.mul_(alpha / negative_classes).scatter_(1, own, pull_slopes)
    return ClassSolution(pull + push.sum() / negative_classes, slopes)


def _pull(own: Tensor, labels: Tensor, alpha: float, delta: float) -> tuple[Tensor, Tensor]:
    """Return the positive term from each sample's similarity to its own class (B, 1), and its slopes (B, 1).

    Every sample computes its class's soft maximum, so a class of n samples counts n times with weight 1/n. A product
    with the (B, B) table of equal labels sums within classes, in the same order on every run.
    """
    same = labels[:, None] == labels[None, :]
    logits = alpha * (delta - own)
    top = torch.where(same, logits.T, 0).amax(dim=1, keepdim=True).clamp_min_(0)
    weights = (logits - top).exp()
    table = same.to(own.dtype)
    total = table @ weights + (-top).exp()
    share = 1 / table.sum(dim=1, keepdim=True)
    classes = share.sum().round()
    return ((top + total.log()) * share).sum() / classes, weights / total * (-alpha / classes)
