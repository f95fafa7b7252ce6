"""Losses of the proxy-anchor family: Proxy-Anchor with one proxy a class, and the MPA losses with several."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from trainables.losses.parts.proxies import ClassSolution, GammaProxy, ProxiesPerClass, ProxyLoss, Tau
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
        return _class_wise(similarity, labels, self.alpha, self.delta, similarity.shape[1])


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


class MPALoss(MultiProxyLoss):
    """ProxyAnchor's two class-wise terms on multi-proxy similarities, plus tau R.

    The negative term is averaged over the classes with a negative sample in the batch: all C, or C - 1 when the batch
    holds one class only. The paper does not state alpha; 32 is ProxyAnchor's. K = 1 is ProxyAnchor.
    """

    name = "mpa"
    citation = "Saeki et al., Multi Proxy Anchor Family Loss for Several Types of Gradients, 2023 (MPA)"
    section = "6.4"

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        one_class = (labels == labels[0]).all().to(similarity.dtype)
        negative_classes = (similarity.shape[1] - one_class).clamp_min(1)
        return _class_wise(similarity, labels, self.alpha, self.delta, negative_classes)


class MPADataWiseLoss(MultiProxyLoss):
    """L = (1/B) Σ_i [ softplus(-alpha (S_iy - delta)) + log(1 + Σ_{c != y} e^{alpha (S_ic + delta)}) ] + tau R."""

    name = "mpa_dw"
    citation = "Saeki et al., Multi Proxy Anchor Family Loss for Several Types of Gradients, 2023 (MPA-DW)"
    section = "6.5"

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        own = labels[:, None]
        pull = self.alpha * (self.delta - similarity.gather(1, own))
        logits = similarity.mul(self.alpha).add_(self.alpha * self.delta).scatter_(1, own, -torch.inf)
        push, slopes = log_sum_exp(logits, dim=1, one=True)
        slopes.scatter_(1, own, -pull.sigmoid()).mul_(self.alpha / len(labels))
        return ClassSolution(push.mean() - nn.functional.logsigmoid(-pull).mean(), slopes)


class MPAAllPairsLoss(MultiProxyLoss):
    """L = (1/B) Σ_i log(1 + Σ_c e^{alpha S'_ic}) + tau R.

    S'_ic = delta - S_ic for c = y_i and S_ic + delta otherwise. Positive and negative similarities compete in
    one soft maximum, over all C classes.
    """

    name = "mpa_ap"
    citation = "Saeki et al., Multi Proxy Anchor Family Loss for Several Types of Gradients, 2023 (MPA-AP)"
    section = "6.6"

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        own = labels[:, None]
        pull = self.alpha * (self.delta - similarity.gather(1, own))
        logits = similarity.mul(self.alpha).add_(self.alpha * self.delta).scatter_(1, own, pull)
        terms, slopes = log_sum_exp(logits, dim=1, one=True)
        slopes.scatter_(1, own, -slopes.gather(1, own)).mul_(self.alpha / len(labels))
        return ClassSolution(terms.mean(), slopes)


def _class_wise(
    similarity: Tensor, labels: Tensor, alpha: float, delta: float, negative_classes: Tensor | int
) -> ClassSolution:
    """Return the sum of the two class-wise terms of ProxyAnchor and MPA; the negative one is divided by `negative_classes`."""
    own = labels[:, None]
    pull, pull_slopes = _pull(similarity.gather(1, own), labels, alpha, delta)
    logits = similarity.mul(alpha).add_(alpha * delta).scatter_(1, own, -torch.inf)
    push, slopes = log_sum_exp(logits, dim=0, one=True)
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
