"""Base of pair losses: one cosine matrix, its masks, and a gradient given by its weights dL/dS.

A pair loss implements `solve`: from the cosine matrix to the loss value *and* its derivative with respect to every
cosine, both without autograd. `PairLoss` attaches the two to the graph. A step then costs two B x B x D products
(one forward, one backward), a few passes over B x B floats, and at most O(B²) memory.

Shapes: B batch, D embedding dimension.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from trainables.arithmetic import full_precision
from trainables.losses.base import Loss, inverse_norms


@dataclass(frozen=True)
class Pairs:
    """All ordered pairs of a batch (N = B), or the pairs of a batch with N stored samples.

    Self pairs of a batch are in neither mask. They are excluded by index, never by value.
    """

    similarity: Tensor  # S (B, N): cosine similarity of every pair
    positive: Tensor  # (B, N) bool: same class, not the same sample
    negative: Tensor  # (B, N) bool: different classes
    dimension: int  # embedding dimension D
    within: bool = True
    """Whether both samples of a pair come from the batch: each unordered pair occurs twice, beside B self pairs."""

    @classmethod
    def of(cls, unit: Tensor, labels: Tensor) -> Self:
        """Return the pairs of unit vectors (B, D) with labels (B,)."""
        positive = labels[:, None] == labels[None, :]
        negative = ~positive
        positive.fill_diagonal_(False)
        return cls(unit @ unit.T, positive, negative, unit.shape[1])

    @classmethod
    def between(cls, unit: Tensor, labels: Tensor, stored: Tensor, stored_labels: Tensor) -> Self:
        """Return the pairs of unit vectors (B, D), labels (B,), with stored unit vectors (N, D), labels (N,)."""
        positive = labels[:, None] == stored_labels[None, :]
        return cls(unit @ stored.T, positive, ~positive, unit.shape[1], within=False)

    def unordered(self) -> tuple[Tensor, Tensor]:
        """Return the masks of positive and negative pairs with each pair once: i < j within a batch."""
        if not self.within:
            return self.positive, self.negative
        return self.positive.triu(1), self.negative.triu(1)


class Solution(NamedTuple):
    """Result of `PairLoss.solve`."""

    value: Tensor  # the loss, 0-d
    slopes: Tensor  # dL/dS (B, N) for every pair; need not be symmetric


class _Objective(Function):
    """Attaches a loss with known G = dL/dS to the embeddings.

    The gradient is (G + G^T) fh, or G m for pairs with constant vectors m, projected orthogonally to each fh_i and
    divided by ||f_i||.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, value: Tensor, *saved: Tensor | None) -> Tensor:
        ctx.save_for_backward(*saved)
        return value.clone()

    @staticmethod
    @once_differentiable  # the slopes are constants here, so a second derivative would be wrong
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        unit, scales, similarity, slopes, stored = ctx.saved_tensors
        with full_precision(unit.device):
            if stored is not None:
                pull = slopes * (scales * grads[0])
                along = (pull * similarity).sum(dim=1, keepdim=True)
                return torch.mm(pull, stored).addcmul_(unit, along, value=-1), *(None,) * 6
            pull = (slopes + slopes.T).mul_(scales * grads[0])
            # Row i of `pull @ unit` less its part along fh_i, which is fh_i times sum_j pull_ij S_ij: a diagonal.
            pull.diagonal().sub_((pull * similarity).sum(dim=1))
            return torch.mm(pull, unit), *(None,) * 6


class PairLoss(Loss):
    """A loss that depends only on the cosine matrix and the labels. A subclass implements `solve`."""

    _last: tuple[Pairs, Tensor] | None = None

    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of raw embeddings (B, D), a scalar on the graph; differentiable once."""
        return self._attach(embeddings, labels)

    def against(self, embeddings: Tensor, labels: Tensor, stored: Tensor, stored_labels: Tensor) -> Tensor:
        """Return the loss of the pairs of raw embeddings (B, D) with constant unit vectors (N, D), a scalar."""
        return self._attach(embeddings, labels, stored, stored_labels)

    def _attach(self, embeddings: Tensor, labels: Tensor, *stored: Tensor) -> Tensor:
        with torch.no_grad():
            scales = inverse_norms(embeddings)
            unit = embeddings * scales
            pairs = Pairs.between(unit, labels, *stored) if stored else Pairs.of(unit, labels)
            value, slopes = self.solve(pairs)
        if not stored:
            self._last = pairs, slopes
        attached: Tensor = _Objective.apply(  # type: ignore[no-untyped-call]
            embeddings, value, unit, scales, pairs.similarity, slopes, next(iter(stored), None)
        )
        return attached

    @abstractmethod
    def solve(self, pairs: Pairs) -> Solution:
        """Return loss value and dL/dS, computed outside autograd. Must not modify the pairs."""

    def diagnostics(self) -> dict[str, Tensor]:
        """Return the last batch's shares of active and of positive pairs, and its mean cosines (0 without pairs)."""
        if self._last is None:
            return {}
        pairs, slopes = self._last
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
