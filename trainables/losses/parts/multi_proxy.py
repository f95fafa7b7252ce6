"""What the losses of the proxy-anchor family share: their knobs, and the two terms that run over classes."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.proxies import ProxyLoss, Solution
from trainables.losses.parts.soft_maximum import log_sum_exp

Alpha = Annotated[float, Field(gt=0, description="scale alpha of the similarities")]
Delta = Annotated[float, Field(ge=0, description="margin delta")]
ProxiesPerClass = Annotated[int, Field(ge=1, description="proxies per class K")]
GammaProxy = Annotated[float, Field(ge=1e-4, description="temperature gamma of the softmax over a class's proxies")]
Tau = Annotated[float, Field(ge=0, description="weight tau of the proxy regularizer R")]


class MultiProxyLoss(ProxyLoss):
    """An MPA loss: K proxies a class, scale alpha, margin delta."""

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        proxies_per_class: ProxiesPerClass = 10,
        alpha: Alpha = 32.0,
        delta: Delta = 0.1,
        gamma: GammaProxy = 0.1,
        tau: Tau = 0.2,
    ):
        super().__init__(num_classes, embedding_dim, proxies_per_class=proxies_per_class, gamma=gamma, tau=tau)
        self.alpha = alpha
        self.delta = delta


def class_wise(
    similarity: Tensor, labels: Tensor, alpha: float, delta: float, negative_classes: Tensor | int
) -> Solution:
    """The two class-wise terms of ProxyAnchor and MPA; the negative one is divided by `negative_classes`."""
    own = labels[:, None]
    pull, pull_slopes = _pull(similarity.gather(1, own), labels, alpha, delta)
    logits = similarity.mul(alpha).add_(alpha * delta).scatter_(1, own, -torch.inf)
    push, slopes = log_sum_exp(logits, dim=0, one=True)
    slopes.mul_(alpha / negative_classes).scatter_(1, own, pull_slopes)
    return Solution(pull + push.sum() / negative_classes, slopes)


def _pull(own: Tensor, labels: Tensor, alpha: float, delta: float) -> tuple[Tensor, Tensor]:
    """The positive term from each sample's similarity to its own class (B, 1), and its slopes (B, 1).

    Every sample computes its class's soft maximum; a class of n samples is then counted n times with weight 1/n. One
    product with the (B, B) table of equal labels sums within classes, in the same order on every run.
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
