"""Base of pair losses: one cosine matrix, its masks, and a gradient given by its weights dL/dS.

A pair loss implements `solve`: from the cosine matrix to the loss value *and* its derivative with respect to every
cosine, both without autograd. `PairLoss` attaches the two to the graph. A step then costs two B x B x D products
(one forward, one backward), a few passes over B x B floats, and at most O(B²) memory.

Shapes: B batch, D embedding dimension.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from trainables.losses.base import Loss, inverse_norms
from trainables.precision import full_precision


@dataclass(frozen=True)
class Pairs:
    """All ordered pairs of a batch (N = B), or the pairs of a batch with N stored samples.

    Self pairs of a batch are in neither mask. They are excluded by index, never by value.
    """

    similarity: Tensor
    """S (B, N): cosine similarity of every pair."""
    positive: Tensor
    """(B, N) bool: same class, not the same sample."""
    negative: Tensor
    """(B, N) bool: different classes."""
    dimension: int
    """Embedding dimension D."""
    within: bool = True
    """Whether both samples of a pair come from the batch: every unordered pair then occurs twice, beside B self pairs."""

    @classmethod
    def of(cls, unit: Tensor, labels: Tensor) -> Pairs:
        """Return the pairs of unit vectors (B, D) with labels (B,)."""
        positive = labels[:, None] == labels[None, :]
        negative = ~positive
        positive.fill_diagonal_(False)
        return cls(unit @ unit.T, positive, negative, unit.shape[1])

    @classmethod
    def between(cls, unit: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor) -> Pairs:
        """Return the pairs of unit vectors (B, D), labels (B,) with other unit vectors (N, D), labels (N,)."""
        positive = labels[:, None] == other_labels[None, :]
        return cls(unit @ others.T, positive, ~positive, unit.shape[1], within=False)

    def unordered(self) -> tuple[Tensor, Tensor]:
        """Return the masks of positive and negative pairs with each pair once: i < j within a batch."""
        if not self.within:
            return self.positive, self.negative
        return self.positive.triu(1), self.negative.triu(1)


class Solution(NamedTuple):
    """Result of `PairLoss.solve`."""

    value: Tensor
    """The loss, 0-d."""
    slopes: Tensor
    """dL/dS (B, N) for every pair; need not be symmetric."""


class _Objective(Function):
    """Attach a loss with known G = dL/dS to the embeddings.

    The gradient is (G + G^T) fh, projected orthogonally to each fh_i and divided by ||f_i||.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, value: Tensor, *known: Tensor) -> Tensor:
        ctx.save_for_backward(*known)
        return value.clone()

    @staticmethod
    @once_differentiable  # the slopes are numbers here: a second derivative would silently be wrong
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        unit, scales, similarity, slopes = ctx.saved_tensors
        with full_precision(unit.device):
            pull = (slopes + slopes.T).mul_(scales * grads[0])
            # Row i of `pull @ unit` less its part along fh_i, which is fh_i times sum_j pull_ij S_ij: a diagonal.
            pull.diagonal().sub_((pull * similarity).sum(dim=1))
            return torch.mm(pull, unit), None, None, None, None, None


class _ObjectiveAgainst(Function):
    """The same for pairs with constant vectors m: the gradient is G m, projected and divided likewise."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, value: Tensor, *known: Tensor) -> Tensor:
        ctx.save_for_backward(*known)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        unit, scales, others, similarity, slopes = ctx.saved_tensors
        with full_precision(unit.device):
            pull = slopes * (scales * grads[0])
            along = (pull * similarity).sum(dim=1, keepdim=True)
            return torch.mm(pull, others).addcmul_(unit, along, value=-1), *(None,) * 6


class PairLoss(Loss):
    """A loss that is a function of the cosine matrix and the labels alone. A subclass implements `solve`."""

    _seen: tuple[Pairs, Tensor] | None = None

    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of raw embeddings (B, D), a scalar on the graph; differentiable once."""
        with torch.no_grad():
            scales = inverse_norms(embeddings)
            unit = embeddings * scales
            pairs = Pairs.of(unit, labels)
            value, slopes = self.solve(pairs)
        self._seen = pairs, slopes
        attached: Tensor = _Objective.apply(  # type: ignore[no-untyped-call]
            embeddings, value, unit, scales, pairs.similarity, slopes
        )
        return attached

    def against(self, embeddings: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor) -> Tensor:
        """Return the loss of the pairs of raw embeddings (B, D) with constant unit vectors (N, D), a scalar."""
        with torch.no_grad():
            scales = inverse_norms(embeddings)
            unit = embeddings * scales
            pairs = Pairs.between(unit, labels, others, other_labels)
            value, slopes = self.solve(pairs)
        attached: Tensor = _ObjectiveAgainst.apply(  # type: ignore[no-untyped-call]
            embeddings, value, unit, scales, others, pairs.similarity, slopes
        )
        return attached

    @abstractmethod
    def solve(self, pairs: Pairs) -> Solution:
        """Return loss value and dL/dS, computed outside autograd. Must not modify the pairs."""

    def diagnostics(self) -> dict[str, Tensor]:
        """Return the last batch's shares of pairs with a gradient and of positive pairs, and mean cosines (0: no pairs)."""
        if self._seen is None:
            return {}
        pairs, slopes = self._seen
        with torch.no_grad():
            active = (slopes != 0) | (slopes.T != 0)
            count = max(active.numel() - len(active), 1)
            return {
                "active_pairs": active.sum() / count,
                "positive_pairs": pairs.positive.sum() / count,
                "positive_cosine": _mean(pairs.similarity, pairs.positive),
                "negative_cosine": _mean(pairs.similarity, pairs.negative),
            }


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return values.masked_fill(~mask, 0).sum() / mask.sum().clamp_min(1)
