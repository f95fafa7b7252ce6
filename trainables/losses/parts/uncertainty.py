"""Uncertainty sets: the weights that an adversary may put on pair losses, max over p in U of sum p_ij l_ij.

A set solves its maximisation in closed form. The gradient of the robust value is sum p*_ij grad l_ij (Danskin), with
p* held constant. docs/specification.md, section 5.2.

Losses are (G, N): G groups of N candidate pairs, with a mask of those that take part. A new set implements
`worst_case`. ConstantWeights and SampledWeights wrap another set.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trainables.losses.parts.random_stream import RandomStream


class WorstCase(NamedTuple):
    """Solution of the maximisation for each group."""

    value: Tensor  # (G,): robust value; 0 for a group without pairs
    p: Tensor  # (G, N): worst-case weights p*, the derivative of the value; 0 outside the mask


class UncertaintySet(ABC):
    """A set of weights that an adversary may put on pair losses."""

    @abstractmethod
    def worst_case(self, losses: Tensor, mask: Tensor) -> WorstCase:
        """Solve max over p in U for finite losses (G, N) and a mask (G, N). Called without autograd."""


class Mean(UncertaintySet):
    """U = {uniform}: the plain average."""

    def worst_case(self, losses: Tensor, mask: Tensor) -> WorstCase:
        p = mask / mask.sum(dim=1, keepdim=True).clamp_min(1).to(losses.dtype)
        return WorstCase((p * losses).sum(dim=1), p)


@dataclass(frozen=True)
class TopK(UncertaintySet):
    """U = {p in the simplex, p <= 1/K}: the average of the K largest losses, or of all if there are fewer.

    The first of equal losses is chosen. With `drop_zeros`, losses of 0 among the K are left out of the average.
    """

    k: int
    drop_zeros: bool = False

    def worst_case(self, losses: Tensor, mask: Tensor) -> WorstCase:
        counts = mask.sum(dim=1, keepdim=True).clamp_max(self.k)
        selected = _largest(losses, mask, counts, limit=self.k)
        if self.drop_zeros:
            selected &= losses != 0
            counts = selected.sum(dim=1, keepdim=True)
        p = selected / counts.clamp_min(1).to(losses.dtype)
        return WorstCase((p * losses).sum(dim=1), p)


@dataclass(frozen=True)
class BalancedTopK(UncertaintySet):
    """The average of the K/2 largest losses of group 0 (positives) and the K/2 largest of group 1 (negatives).

    k_0 = min(K/2, n_0); k_1 = min(K/2, n_1), or min(k_0, n_1) if 0 < k_0 < K/2: too few positives also limit the
    negatives. The values of the two groups add up to the robust value.
    """

    k: int

    def worst_case(self, losses: Tensor, mask: Tensor) -> WorstCase:
        """Solve for losses and mask (2, N)."""
        half = self.k // 2
        positives, negatives = mask.sum(dim=1, keepdim=True).clamp_max(half).unbind()
        short = (positives > 0) & (positives < half)
        counts = torch.stack((positives, torch.where(short, torch.minimum(positives, negatives), negatives)))
        p = _largest(losses, mask, counts, limit=half) / counts.sum().clamp_min(1).to(losses.dtype)
        return WorstCase((p * losses).sum(dim=1), p)


def _largest(losses: Tensor, mask: Tensor, counts: Tensor, *, limit: int) -> Tensor:
    """Return the mask (G, N) of each group's `counts` (G, 1) largest losses, at most `limit`; ties go to the first."""
    candidates = losses.masked_fill(~mask, -torch.inf)
    top = candidates.topk(min(limit, candidates.shape[1]), dim=1).values
    smallest = top.gather(1, (counts - 1).clamp_min(0))
    above = candidates > smallest
    ties = candidates == smallest
    ties_to_take = counts - above.sum(dim=1, keepdim=True)
    return above | (ties & (ties.cumsum(dim=1) <= ties_to_take))


@dataclass(frozen=True)
class Entropic(UncertaintySet):
    """The whole simplex with a penalty: max_p sum p l - gamma KL(p || q), p* = softmax(l / gamma).

    With uniform q the value is gamma (lse(l/gamma) - log n), between mean and maximum. With q the counting measure
    (`counting=True`) it is gamma lse(l/gamma). `null=True` adds a pair of loss 0 (lse0); p then sums to less than one.
    """

    gamma: float
    counting: bool = False
    null: bool = False

    def worst_case(self, losses: Tensor, mask: Tensor) -> WorstCase:
        """Compute the log-sum-exp relative to the maximum: finite for any finite l / gamma."""
        # Above 1, gamma multiplies the rounding of a logarithm near 0: at 1e6 float32 would lose every digit,
        # at 1e12 float64 the fourth.
        exact = losses.double() if self.gamma > 1 else losses
        scaled = torch.where(mask, exact / self.gamma, -torch.inf)
        top = scaled.amax(dim=1, keepdim=True)
        # A group without pairs has no maximum; with 0 its weights are 0.
        top = top.clamp_min_(0) if self.null else top.masked_fill_(top == -torch.inf, 0)
        scaled = scaled.sub_(top)
        flat = self._log_mean(scaled, mask, top) if self.gamma > 1 and not self.counting else None
        p = scaled.exp_()
        total = p.sum(dim=1, keepdim=True)
        # A total is at least exp(0) in every group that has pairs.
        total = total.add_(torch.exp(-top)) if self.null else total.clamp_min_(1)
        value = total.log().add_(top)
        if not self.counting:
            count = mask.sum(dim=1, keepdim=True) + int(self.null)
            value = value - count.clamp_min(1).to(value.dtype).log() if flat is None else flat.add_(top)
        return WorstCase((value.squeeze(1) * self.gamma).to(losses.dtype), p.div_(total).to(losses.dtype))

    def _log_mean(self, shifted: Tensor, mask: Tensor, top: Tensor) -> Tensor:
        """Return the log of the mean of e^x: by e^x - 1, which keeps its digits near x = 0."""
        excess = shifted.expm1().masked_fill_(~mask, 0).sum(dim=1, keepdim=True)
        count = mask.sum(dim=1, keepdim=True) + int(self.null)
        return (excess + torch.expm1(-top) * int(self.null)).div_(count.clamp_min(1)).log1p_()


@dataclass(frozen=True)
class ExpMinusOne(UncertaintySet):
    """Weights p proportional to exp(l / gamma) - 1: pairs without loss get no weight (the DRO authors' code).

    p solves no maximisation: the value is sum p l with p held constant. Losses must not be negative.
    """

    gamma: float

    def worst_case(self, losses: Tensor, mask: Tensor) -> WorstCase:
        """Use exp(x) - 1 = exp(top) [exp(x - top) (1 - exp(-x))], which avoids overflow and cancellation."""
        scaled = (losses / self.gamma).masked_fill_(~mask, 0)
        top = scaled.amax(dim=1, keepdim=True)
        weights = torch.exp(scaled - top).mul_(scaled.neg_().expm1_().neg_())
        total = weights.sum(dim=1, keepdim=True)
        p = weights.div_(total.masked_fill_(total == 0, 1))
        return WorstCase((p * losses).sum(dim=1), p)


@dataclass(frozen=True)
class ChiSquared(UncertaintySet):
    """U = {p in the simplex, (1/2n) Σ (n p_i - 1)² <= radius}: chi-squared distance from uniform.

    p* = (l - eta)_+ / Σ (l - eta)_+, eta such that the constraint is tight. While no weight is 0 the value is
    mean + sqrt(2 radius Var), Var the biased variance of the losses. Radius 0 gives the mean, (n - 1) / 2 the maximum.
    """

    radius: float

    def worst_case(self, losses: Tensor, mask: Tensor) -> WorstCase:
        """Compute eta = m_k - d, d² = n v_k / (k (1 + 2 radius) - n), from mean m_k and variance v_k of the k largest losses.

        k is the smallest number whose eta is not below the next loss. Variances from sums of squares need float64.
        """
        if not self.radius:
            return Mean().worst_case(losses, mask)
        exact = losses.double()
        n = mask.sum(dim=1, keepdim=True).double()
        ranked = exact.masked_fill(~mask, -torch.inf).sort(dim=1, descending=True).values
        top = ranked[:, :1].masked_fill(n == 0, 0)
        depth = (ranked - top).masked_fill_(ranked == -torch.inf, 0)
        k = torch.arange(1, depth.shape[1] + 1, dtype=depth.dtype, device=depth.device)
        mean = depth.cumsum(dim=1).div_(k)
        variance = depth.square().cumsum(dim=1).div_(k).sub_(mean.square()).clamp_min_(0)
        room = k * (1 + 2 * self.radius) - n
        eta = mean.sub_((n * variance).div_(room.clamp_min(torch.finfo(room.dtype).tiny)).sqrt_()).add_(top)
        following = torch.cat((ranked[:, 1:], torch.full_like(ranked[:, :1], -torch.inf)), dim=1)
        right = (room > 0) & (eta >= following)
        eta = eta.gather(1, right.to(torch.uint8).argmax(dim=1, keepdim=True))
        p = (exact - eta).clamp_min_(0).masked_fill_(~mask, 0)
        # If the set allows all weight on the largest losses, eta is their value.
        p = torch.where(p.sum(dim=1, keepdim=True) > 0, p, ((exact >= top) & mask).double())
        p = (p / p.sum(dim=1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)).to(losses.dtype)
        return WorstCase((p * losses).sum(dim=1), p)


@dataclass(frozen=True)
class ConstantWeights(UncertaintySet):
    """Another set's p* as constant weights: the value is sum p* l."""

    inner: UncertaintySet

    def worst_case(self, losses: Tensor, mask: Tensor) -> WorstCase:
        p = self.inner.worst_case(losses, mask).p
        return WorstCase((p * losses).sum(dim=1), p)


@dataclass(frozen=True)
class SampledWeights(UncertaintySet):
    """Monte-Carlo estimate: the mean loss of `samples` pairs drawn with replacement from another set's p*.

    Its gradient is an unbiased estimate of sum p* grad l. A group without pairs draws none.
    """

    inner: UncertaintySet
    samples: int
    stream: RandomStream

    def worst_case(self, losses: Tensor, mask: Tensor) -> WorstCase:
        """Draw by inverse transform sampling; p is the share of draws of each pair."""
        cumulative = self.inner.worst_case(losses, mask).p.cumsum(dim=1)
        uniform = self.stream.uniform((len(losses), self.samples), like=losses)
        drawn = sample_in_proportion(cumulative, uniform)
        share = (cumulative[:, -1:] > 0).to(losses.dtype).div_(self.samples).expand_as(uniform)
        p = torch.zeros_like(losses, memory_format=torch.contiguous_format).scatter_add_(1, drawn, share)
        return WorstCase((p * losses).sum(dim=1), p)


def sample_in_proportion(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """Return indices (G, n) drawn in proportion to increments of `cumulative` (G, N); `uniform` (G, n) is in [0, 1).

    An increment of 0 is never drawn, unless all are 0.
    """
    total = cumulative[:, -1:].contiguous()
    index = torch.searchsorted(cumulative, uniform * total, right=True)
    # uniform * total may round up to total: the last increment that is not 0 is the bound.
    return torch.minimum(index, torch.searchsorted(cumulative, total))


def entropy(p: Tensor) -> Tensor:
    """Return the mean of -sum p log p over groups with pairs, in nats; p (G, N) is first scaled to sum to one."""
    mass = p.sum(dim=1, keepdim=True)
    p = p / mass.masked_fill(mass == 0, 1)
    return -torch.xlogy(p, p).sum() / (mass > 0).sum().clamp_min(1)
