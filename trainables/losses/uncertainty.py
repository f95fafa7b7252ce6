"""Uncertainty sets: how an adversary may weigh the pair losses, max over p in U of sum p_ij l_ij.

A robust pair loss is a pair loss plus a set U; the name of the set is the name of the method:

    U                                   robust value
    {uniform}                 Mean      plain average
    p <= 1/K                  TopK      average of the K largest losses (K = 1: the maximum)
    simplex, - gamma KL(p|q)  Entropic  gamma log-sum-exp(l / gamma)

A set solves its maximisation in closed form. The gradient of the robust value is sum p*_ij grad l_ij (Danskin), with
p* held constant. Method specification, section 5.2.

Losses come as (G, N): G groups of N candidate pairs, with a mask telling which candidates take part. A new set is one
`worst_case`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Entropic", "Mean", "UncertaintySet", "WorstCase"]


class WorstCase(NamedTuple):
    """The adversary's answer for each group."""

    value: Tensor
    """(G,): the robust value; 0 for a group without pairs."""
    p: Tensor
    """(G, N): the worst-case weights p*, the derivative of the value; 0 outside the mask."""


class UncertaintySet(ABC):
    """The weights an adversary may put on pair losses."""

    @abstractmethod
    def worst_case(self, losses: Tensor, mask: Tensor) -> WorstCase:
        """Solve max over p in U; losses (G, N) finite, mask (G, N) bool. Called without autograd."""


class Mean(UncertaintySet):
    """U = {uniform}: the plain average."""

    def worst_case(self, losses: Tensor, mask: Tensor) -> WorstCase:
        """Give p = 1/n to each of a group's n pairs."""
        p = mask / mask.sum(dim=1, keepdim=True).clamp_min(1).to(losses.dtype)
        return WorstCase((p * losses).sum(dim=1), p)


class Entropic(UncertaintySet):
    """The whole simplex, at a price: max_p sum p l - gamma KL(p || q), p* = softmax(l / gamma).

    With q the uniform distribution the value is gamma (lse(l/gamma) - log n), between mean and maximum; with q the
    counting measure (`counting=True`) it is gamma lse(l/gamma). `null=True` lets the adversary also bet on an extra pair
    of loss 0, lse0: p then sums to less than one.
    """

    def __init__(self, gamma: float, *, counting: bool = False, null: bool = False):
        self.gamma = gamma
        self.counting = counting
        self.null = null

    def worst_case(self, losses: Tensor, mask: Tensor) -> WorstCase:
        """Log-sum-exp with the maximum taken out; finite for any finite l / gamma."""
        scaled = (losses / self.gamma).masked_fill_(~mask, -torch.inf)
        top = scaled.amax(dim=1, keepdim=True)
        # A group without pairs has no maximum; 0 leaves it weightless.
        top = top.clamp_min_(0) if self.null else top.masked_fill_(top == -torch.inf, 0)
        p = scaled.sub_(top).exp_()
        total = p.sum(dim=1, keepdim=True)
        if self.null:
            total += torch.exp(-top)
        total.clamp_min_(1)  # at least exp(0) in every group that has pairs
        value = total.log().add_(top)
        if not self.counting:
            count = mask.sum(dim=1, keepdim=True) + int(self.null)
            value -= count.clamp_min(1).to(value.dtype).log()
        return WorstCase(value.squeeze(1) * self.gamma, p.div_(total))
