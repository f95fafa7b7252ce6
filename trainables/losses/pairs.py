"""What every pair-based loss shares: one cosine matrix, its masks, and a gradient given by its weights dL/dS.

A pair loss is written as `solve`: from the cosine matrix to the loss value *and* its derivative with respect to every
cosine, both without autograd. `PairLoss` attaches the two to the graph, so that a step costs two B x B x D products
(one forward, one backward) and a few passes over B x B floats, and never more than O(B²) memory.

Shapes: B batch, D embedding dimension.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from trainables.losses.base import Loss, inverse_norms

__all__ = ["PairLoss", "Pairs", "Solution", "cosine_matrix"]


class _CosineMatrix(Function):
    """S = fh fh^T with fh = f / ||f||; backward is one product, (G + G^T) fh, projected off each fh_i."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        scales = inverse_norms(embeddings)
        unit = embeddings * scales
        ctx.save_for_backward(unit, scales)
        return unit @ unit.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        unit, scales = ctx.saved_tensors
        (grad,) = grads
        with torch.autocast(grad.device.type, enabled=False):
            slope = (grad + grad.T) @ unit
            radial = (slope * unit).sum(dim=1, keepdim=True)
            tangent: Tensor = torch.addcmul(slope, unit, radial, value=-1)
            return tangent.mul_(scales)


class _WithSlopes(Function):
    """The identity on `value`, whose derivative with respect to the similarity is declared to be `slopes`."""

    @staticmethod
    def forward(ctx: Any, similarity: Tensor, value: Tensor, slopes: Tensor) -> Tensor:
        ctx.save_for_backward(slopes)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return grads[0] * slopes, None, None


def cosine_matrix(embeddings: Tensor) -> Tensor:
    """Cosine similarities of raw embeddings (B, D) -> (B, B), attached to the graph; differentiable once."""
    matrix: Tensor = _CosineMatrix.apply(embeddings)  # type: ignore[no-untyped-call]
    return matrix


@dataclass(frozen=True)
class Pairs:
    """All ordered pairs of a batch; self pairs are in neither mask (excluded by index, never by value)."""

    similarity: Tensor
    """S (B, B): cosine similarity of every ordered pair."""
    positive: Tensor
    """(B, B) bool: same class, not the same sample."""
    negative: Tensor
    """(B, B) bool: different classes."""

    @classmethod
    def of(cls, embeddings: Tensor, labels: Tensor) -> Pairs:
        """The pairs of raw embeddings (B, D) and labels (B,)."""
        same = labels[:, None] == labels[None, :]
        negative = ~same
        same.fill_diagonal_(False)
        return cls(cosine_matrix(embeddings), same, negative)

    def unordered(self) -> tuple[Tensor, Tensor]:
        """The masks of positive and negative pairs with each pair once: i < j."""
        return self.positive.triu(1), self.negative.triu(1)

    def detached(self) -> Pairs:
        """The same pairs outside the graph."""
        return replace(self, similarity=self.similarity.detach())


class Solution(NamedTuple):
    """What `PairLoss.solve` finds."""

    value: Tensor
    """The loss, 0-d."""
    slopes: Tensor
    """dL/dS (B, B) for every ordered pair; need not be symmetric."""


class PairLoss(Loss):
    """A loss that is a function of the cosine matrix and the labels alone.

    A subclass implements `solve`; it runs under no_grad and gives value and slopes together.
    """

    _seen: tuple[Pairs, Tensor] | None = None

    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of raw embeddings (B, D), a scalar on the graph."""
        pairs = Pairs.of(embeddings, labels)
        detached = pairs.detached()
        with torch.no_grad():
            value, slopes = self.solve(detached)
        self._seen = detached, slopes
        attached: Tensor = _WithSlopes.apply(pairs.similarity, value, slopes)  # type: ignore[no-untyped-call]
        return attached

    @abstractmethod
    def solve(self, pairs: Pairs) -> Solution:
        """Loss value and dL/dS; pairs are detached. Must not modify them."""

    def diagnostics(self) -> dict[str, Tensor]:
        """Of the last batch: share of pairs with a gradient, mean cosine of positive and of negative pairs (else 0)."""
        if self._seen is None:
            return {}
        pairs, slopes = self._seen
        with torch.no_grad():
            active = (slopes != 0) | (slopes.T != 0)
            count = max(active.numel() - len(active), 1)
            return {
                "active_pairs": active.sum() / count,
                "positive_cosine": _mean(pairs.similarity, pairs.positive),
                "negative_cosine": _mean(pairs.similarity, pairs.negative),
            }


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return values.masked_fill(~mask, 0).sum() / mask.sum().clamp_min(1)
