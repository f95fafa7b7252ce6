"""Base class of losses with proxies or class weights: class similarities, their gradient, the proxy regularizer.

Such a loss implements `solve`: from the similarities S (B, C) of samples and classes to the loss value *and* dL/dS,
both without autograd. `ProxyLoss` computes S from raw embeddings and raw proxies and carries dL/dS back to both. A step
costs three products of size B x d x CK and a few passes over B x CK floats. Passes over the (often much larger) proxies
are few:

- Proxies are never normalised in memory: a column of cosines is scaled by 1/||w|| instead. The radial part of a proxy's
  gradient is Σ_i G_i s_i, which does not need the proxy.
- The regularizer needs only their Gram matrices (C, K, K); its gradient is a K x K mix of a class's own proxies.

Shapes: B batch, D embedding dimension, C classes, K proxies per class. For K > 1 cosines are stored as (C, K, B), so
that pooling over the proxies of a class adds rows of samples.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from trainables.arithmetic import full_precision
from trainables.errors import Problem, raise_if_any
from trainables.losses.base import EPSILON, Loss

ProxiesPerClass = Annotated[int, Field(ge=1, description="proxies per class K")]
GammaProxy = Annotated[float, Field(ge=1e-4, description="temperature gamma of the softmax over a class's proxies")]
Tau = Annotated[float, Field(ge=0, description="weight tau of the proxy regularizer R")]

_SPREAD_EPSILON = 1e-5  # under the root of eq. (3), as in SoftTriple's code: coincident proxies keep a finite slope
_USAGE_MEMORY = 0.1  # weight of a batch in a class's running proxy usage
_DEAD_SHARE = 0.01  # a proxy whose usage is below this share of 1/K counts as dead


class ClassSolution(NamedTuple):
    """Result of `ProxyLoss.solve`."""

    value: Tensor  # the loss, 0-d
    slopes: Tensor  # dL/dS, (B, C); the caller may overwrite it
    norm_slopes: Tensor | None = None
    """dL/dn, (B,), for a loss that also depends on the norms n_i of the raw embeddings."""


def _inverse_norms(proxies: Tensor, *, want_gram: bool) -> tuple[Tensor, Tensor | None]:
    """Return 1/||w|| (C, K), 0 for a zero proxy, and the Gram matrices (C, K, K) if wanted and K > 1."""
    gram = None
    if want_gram and proxies.shape[1] > 1:
        gram = torch.bmm(proxies, proxies.transpose(1, 2))
        norms = gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
    else:
        norms = torch.linalg.vector_norm(proxies, dim=2)
    return torch.where(norms > EPSILON, 1 / norms, 0), gram


def _spread(inverse: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return R = Σ_c Σ_{t<s} sqrt(2 - 2 w_cs.w_ct + 1e-5) / (C K (K-1)), and M (C, K, K) with dR/dw_ct = Σ_s M_ts w_cs."""
    classes, K, _ = gram.shape
    scale = inverse[:, :, None] * inverse[:, None, :]
    cosine = gram * scale
    distance = (2 - 2 * cosine).clamp_min(0).add_(_SPREAD_EPSILON).sqrt_()
    distance.diagonal(dim1=1, dim2=2).fill_(torch.inf)  # a proxy and itself: no term, no slope
    pairs = classes * K * (K - 1)
    slope = distance.reciprocal() / -pairs  # dR/dcos of each unordered pair, seen from both its ends
    mix = slope * scale
    radial = (slope * cosine).sum(dim=2) * inverse.square()
    mix.diagonal(dim1=1, dim2=2).copy_(-radial)
    return distance.masked_fill_(distance.isinf(), 0).sum() / (2 * pairs), mix


class _Pool:
    """S = Σ_k p_k s_k with p = softmax(s / gamma), and its derivative; works in the memory of the products.

    The products of proxies and embeddings are (C K, B): pooling over the proxies of a class runs along a dimension
    between contiguous rows of samples, without a change of layout. S is returned as (B, C), transposed.
    """

    def __init__(self, products: Tensor, inverse: Tensor, gamma: float):
        self.inverse = inverse[..., None]  # 1/||w||, (C, K, 1)
        self.gamma = gamma
        self.logits = products.view(*inverse.shape, -1).mul_(self.inverse / gamma)  # s / gamma, (C, K, B)
        self.shares = torch.softmax(self.logits, 1)
        # One proxy at a time: a temporary of (C, K, B) would cost more in fresh memory than the arithmetic does.
        self.pooled = torch.zeros_like(self.logits[:, 0])  # S / gamma, (C, B)
        for share, logit in self._by_proxy():
            self.pooled.addcmul_(share, logit)
        self.similarity = (self.pooled * gamma).T

    def _by_proxy(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.shares.unbind(1), self.logits.unbind(1), strict=True)

    def backward(self, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """Return dL/ds / ||w|| as (C K, B) and Σ_i dL/ds s as (C, K) from G = dL/dS (B, C). Overwrite the tensors."""
        slopes, scratch = slopes.T, self.similarity.T
        constant = self.pooled.neg_().add_(1).mul_(slopes)
        for share, logit in self._by_proxy():
            share.mul_(torch.addcmul(constant, slopes, logit, out=scratch))  # G p (1 + (s - S) / gamma)
        radial = self.logits.mul_(self.shares).sum(dim=2).mul_(self.gamma)
        return self.shares.mul_(self.inverse).flatten(0, 1), radial


class _ProxyObjective(Function):
    """Loss of raw embeddings (B, D) and raw proxies (C, K, D), plus tau R, with the slopes of `loss.solve`."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, proxies: Tensor, labels: Tensor, loss: ProxyLoss) -> Tensor:
        norms = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
        unit = embeddings / norms.clamp_min(EPSILON)
        inverse, gram = _inverse_norms(proxies, want_gram=loss.tau > 0)
        weights = proxies.flatten(0, 1)  # (C K, D)
        if proxies.shape[1] == 1:
            cosines = (unit @ weights.T).mul_(inverse.T)
            solution = loss.solve(cosines, labels, norms[:, 0])
            radial = (solution.slopes * cosines).sum(dim=0)[:, None]
            slopes = solution.slopes.mul_(inverse.T).T
        else:
            pool = _Pool(weights @ unit.T, inverse, loss.gamma)
            loss.update_usage(pool.shares, labels)
            solution = loss.solve(pool.similarity, labels, norms[:, 0])
            slopes, radial = pool.backward(solution.slopes)
        value = solution.value
        radial = radial * inverse.square()  # (C, K)
        mix = -radial[..., None] if gram is None else torch.diag_embed(-radial)
        if gram is not None:
            spread, spread_mix = _spread(inverse, gram)
            value = value + loss.tau * spread
            mix.add_(spread_mix, alpha=loss.tau)
        # A sample without direction gets no gradient, as in base.normalise.
        inverse_norms = torch.where(norms > EPSILON, 1 / norms, 0)
        ctx.save_for_backward(unit, inverse_norms, proxies, slopes, mix, solution.norm_slopes)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        unit, inverse_norms, proxies, slopes, mix, norm_slopes = ctx.saved_tensors
        to_embeddings = to_proxies = None
        with full_precision(grad.device):
            if ctx.needs_input_grad[0]:
                pull = slopes.T @ proxies.flatten(0, 1)
                pull.addcmul_(unit, (pull * unit).sum(dim=1, keepdim=True), value=-1)
                to_embeddings = pull.mul_(inverse_norms)
                if norm_slopes is not None:
                    to_embeddings.addcmul_(unit, norm_slopes[:, None])
                to_embeddings.mul_(grad)
            if ctx.needs_input_grad[1]:
                to_proxies = (slopes @ (unit * grad)).view(proxies.shape)
                if mix.shape[2] == 1:
                    to_proxies.addcmul_(proxies, mix * grad)
                else:
                    to_proxies.baddbmm_(mix * grad, proxies)
        return to_embeddings, to_proxies, None, None


class ProxyLoss(Loss):
    """A loss of class similarities S(i, c) = Σ_k softmax_k(s_ick / gamma) s_ick (eq. 1 of MPA).

    s_ick is the cosine of embedding i and proxy k of class c; S is their soft maximum (K = 1: the cosine itself). The
    objective is L(S) + tau R, R half the mean distance between proxies of a class (eq. 3). `proxies` is an nn.Parameter
    (C, K, D) of which only the directions matter. Labels are class indices in [0, C); others raise ConfigError. On CUDA
    only the first batch is checked, so that later ones need not wait for the device. A subclass implements `solve`.
    """

    host_reads = 2  # the range of the labels

    proxies: nn.Parameter
    usage: Tensor

    def __init__(
        self, num_classes: int, embedding_dim: int, *, proxies_per_class: int = 1, gamma: float = 0.1, tau: float = 0.0
    ):
        super().__init__()
        sizes = {"num_classes": num_classes, "embedding_dim": embedding_dim, "proxies_per_class": proxies_per_class}
        raise_if_any(Problem(f"loss.{name}", "must be at least 1", n) for name, n in sizes.items() if n < 1)
        self.gamma = gamma
        self.tau = tau if proxies_per_class > 1 else 0.0
        self.proxies = nn.Parameter(torch.empty(num_classes, proxies_per_class, embedding_dim))
        if proxies_per_class > 1:
            self.register_buffer("usage", torch.full((num_classes, proxies_per_class), 1 / proxies_per_class))
        self._labels_checked = False
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the (C K, D) matrix from Kaiming's normal, fan_out, as in ProxyAnchor's code: variance 2 / (C K)."""
        with torch.no_grad():
            self.proxies.normal_(std=math.sqrt(2 / (self.proxies.shape[0] * self.proxies.shape[1])))

    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of raw embeddings (B, D), a scalar on the graph of embeddings and proxies."""
        self._check(embeddings, labels)
        proxies = self.proxies.to(embeddings.dtype)
        value: Tensor = _ProxyObjective.apply(embeddings, proxies, labels.long(), self)  # type: ignore[no-untyped-call]
        return value

    @abstractmethod
    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        """Return loss value and slopes from S (B, C), labels (B,) and the raw embeddings' norms (B,); modifies none."""

    def _check(self, embeddings: Tensor, labels: Tensor) -> None:
        classes, _, dimension = self.proxies.shape
        problems = []
        if embeddings.shape[1] != dimension:
            rule = f"must have the dimension of the proxies, {dimension}"
            problems.append(Problem("embeddings", rule, embeddings.shape[1], "Set embedding_dim."))
        if not (self._labels_checked and labels.is_cuda):
            low, high = (int(bound) for bound in labels.aminmax())
            if low < 0 or high >= classes:
                remedy = "Number the training classes from 0, or set num_classes."
                problems.append(Problem("labels", f"must lie in [0, {classes})", (low, high), remedy))
        raise_if_any(problems)
        self._labels_checked = True

    def update_usage(self, shares: Tensor, labels: Tensor) -> None:
        """Update the running usage of each class's proxies from shares p (C, K, B), in training mode only."""
        if not self.training:
            return
        rows = torch.arange(len(labels), device=labels.device)
        own = shares[labels, :, rows].to(self.usage.dtype)  # (B, K)
        totals = torch.zeros_like(self.usage).index_add_(0, labels, own)
        count = totals.sum(dim=1, keepdim=True)  # shares of a sample sum to 1
        mean = totals / count.clamp_min(EPSILON)
        self.usage.lerp_(mean, (count > 0).to(mean.dtype) * _USAGE_MEMORY)

    def diagnostics(self) -> dict[str, Tensor]:
        """Return, for K > 1, evenness of proxy usage, share of dead proxies and mean distance within a class.

        Usage is the running mean of softmax_k(s_iyk / gamma) over a class's own samples; it starts even. Evenness is
        the entropy of usage over log K, averaged over classes: 1 is even, 0 is one proxy only.
        """
        K = self.proxies.shape[1]
        with torch.no_grad():
            inverse, gram = _inverse_norms(self.proxies, want_gram=True)
            if gram is None:
                return {}
            entropy = torch.special.entr(self.usage).sum(dim=1).mean() / math.log(K)
            return {
                "proxy_usage_entropy": entropy,
                "dead_proxies": (self.usage < _DEAD_SHARE / K).to(self.usage.dtype).mean(),
                "proxy_spread": 2 * _spread(inverse, gram)[0],  # R is half the distance
            }
