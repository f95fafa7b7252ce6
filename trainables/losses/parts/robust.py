"""Robust pair losses: max over p in U of sum p_ij l_ij, over the whole batch or per anchor and sign.

    PooledLoss      all pairs of the batch compete in one group (or in one group per sign)
    AnchorwiseLoss  each anchor's positives and each anchor's negatives are a separate group

A method chooses a pair loss (pair_terms.py) and an uncertainty set (uncertainty.py).
docs/specification.md, sections 5.2 to 5.7.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.pair_terms import PairTerm
from trainables.losses.parts.pairs import PairLoss, Pairs, Solution
from trainables.losses.parts.uncertainty import UncertaintySet, WorstCase, entropy

DropZeros = Annotated[bool, Field(description="leave pairs without loss out of n")]
Reduction = Annotated[Literal["mean", "sum"], Field(description="over the B anchors")]


class _RobustLoss(PairLoss):
    """Stores the last p* for the diagnostics."""

    _p: tuple[Tensor, ...] = ()

    def diagnostics(self) -> dict[str, Tensor]:
        """Add the entropy of p* in nats (mean over groups) and effective K = exp(entropy), 0 if all weights are 0."""
        if not self._p:
            return super().diagnostics()
        with torch.no_grad():
            weights = torch.cat(self._p)
            p_entropy = entropy(weights)
            effective = p_entropy.exp() * weights.any()
        return {**super().diagnostics(), "p_entropy": p_entropy, "effective_k": effective}


class PooledLoss(_RobustLoss):
    """F = sum over groups of max over p in U of sum p_ij l_ij, i < j; one group of all pairs, or one per sign.

    `drop_zeros` excludes pairs without a loss.
    """

    by_sign: ClassVar[bool] = False  # whether positive and negative pairs are separate groups, in this order

    def __init__(self, term: PairTerm, uncertainty: UncertaintySet, *, drop_zeros: bool = False):
        super().__init__()
        self.term = term
        self.uncertainty = uncertainty
        self.drop_zeros = drop_zeros

    def solve(self, pairs: Pairs) -> Solution:
        losses, slopes = self.term(pairs)
        positive, negative = pairs.unordered()
        mask = torch.stack((positive, negative)) if self.by_sign else (positive | negative)[None]  # (G, B, B)
        mask = (mask & (losses > 0) if self.drop_zeros else mask).flatten(start_dim=1)
        value, p = self.uncertainty.worst_case(losses.reshape(1, -1).expand(len(mask), -1), mask)
        self._p = (p.reshape(1, -1),)  # the groups of a pooled loss share a total weight of 1
        return Solution(value.sum(), slopes.mul_(p.sum(dim=0).view_as(slopes)))


class AnchorwiseLoss(_RobustLoss):
    """F = (1/B) sum_i h(v+_i + v-_i), v+-_i the robust value of anchor i's positive and negative pairs.

    `reduction` "mean" or "sum" over the B anchors; h is the identity unless `combine` is overridden.
    """

    def __init__(
        self,
        term: PairTerm,
        positive_set: UncertaintySet,
        negative_set: UncertaintySet,
        *,
        reduction: Reduction = "mean",
    ):
        super().__init__()
        self.term = term
        self.positive_set = positive_set
        self.negative_set = negative_set
        self.reduction = reduction

    def candidates(self, pairs: Pairs, losses: Tensor) -> tuple[Tensor, Tensor]:
        """Return the masks (B, B) of each anchor's eligible positive and negative pairs."""
        return pairs.positive, pairs.negative

    def combine(self, pairs: Pairs, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return h and its derivative (None: 1) at v+ + v-, both (B,)."""
        return values, None

    def solve(self, pairs: Pairs) -> Solution:
        losses, slopes = self.term(pairs)
        positive, negative = self.candidates(pairs, losses)
        pull: WorstCase = self.positive_set.worst_case(losses, positive)
        push: WorstCase = self.negative_set.worst_case(losses, negative)
        self._p = (pull.p, push.p)
        values, gates = self.combine(pairs, pull.value + push.value)
        slopes.mul_(pull.p + push.p)
        if gates is not None:
            slopes.mul_(gates[:, None])
        if self.reduction == "sum":
            return Solution(values.sum(), slopes)
        return Solution(values.mean(), slopes.div_(len(values)))
