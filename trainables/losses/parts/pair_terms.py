"""Define losses of a single pair as functions of its cosine S, which robust losses average, select or reweight.

z = +1 for a positive and -1 for a negative pair (never 1/0: with 0 negatives would lose their gradient). Each term
returns l(S) and its derivative for the whole matrix at once. docs/specification.md, section 5.1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from trainables.errors import Problem
from trainables.losses.parts.pairs import Pairs

# The knobs of the pair losses, shared by every method built on them.
BaseName = Annotated[Literal["margin", "binomial"], Field(description="loss of a single pair")]
MarginWidth = Annotated[float, Field(ge=0, description="margin m around the threshold, in cosine")]
Threshold = Annotated[float, Field(description="cosine that separates positive from negative pairs, lambda")]
BetaPositive = Annotated[float, Field(gt=0, description="steepness of the binomial loss of positive pairs")]
BetaNegative = Annotated[float, Field(gt=0, description="steepness of the binomial loss of negative pairs")]


PairTerm = Callable[[Pairs], tuple[Tensor, Tensor]]
"""Maps all ordered pairs to their losses l and slopes dl/dS, both (B, B); the caller masks the diagonal."""


def _signs(pairs: Pairs) -> Tensor:
    """Return -z: +1 for negative pairs, -1 for all others."""
    return pairs.negative.to(pairs.similarity.dtype).mul_(2).sub_(1)


@dataclass(frozen=True)
class Linear:
    """l = z (threshold - S), without hinge: the pair loss of multi-similarity and lifted structure."""

    threshold: float

    def __call__(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        signs = _signs(pairs)
        return (pairs.similarity - self.threshold).mul_(signs), signs


@dataclass(frozen=True)
class Margin:
    """l = [margin + z (threshold - S)]_+."""

    margin: float
    threshold: float

    def __call__(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return the losses, and slopes -z where they are positive, else 0."""
        signs = _signs(pairs)
        losses = (pairs.similarity - self.threshold).mul_(signs).add_(self.margin).clamp_min_(0)
        return losses, signs.mul_(losses.sign())


@dataclass(frozen=True)
class Binomial:
    """l = (2/b) softplus(b z (threshold - S)), b = beta_pos for positive and beta_neg for negative pairs."""

    threshold: float
    beta_pos: float
    beta_neg: float

    def __call__(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return the losses and their slopes -2 z sigmoid(b z (threshold - S))."""
        signs = _signs(pairs)
        scale = torch.where(pairs.negative, self.beta_neg * signs, self.beta_pos * signs)  # b (-z)
        exponent = (pairs.similarity - self.threshold).mul_(scale)
        # softplus turns linear above its threshold; at 50 that is exact in double precision too.
        losses = nn.functional.softplus(exponent, threshold=50).mul_(signs).div_(scale).mul_(2)
        return losses, exponent.sigmoid_().mul_(signs).mul_(2)


def pair_term(
    base: Literal["margin", "binomial"], *, margin: float, threshold: float, beta_pos: float, beta_neg: float
) -> PairTerm:
    """Return the pair loss called `base`."""
    return Margin(margin, threshold) if base == "margin" else Binomial(threshold, beta_pos, beta_neg)


class MarginKnobs:
    """Mixin for the knobs `margin` and `threshold`: rejects values at which pairs of one sign never have a loss."""

    pair_term: ClassVar[str] = "margin"
    """Pair loss of a method without the knob `base`, so that reports compare methods with the same pair loss."""

    @classmethod
    def check_parameters(cls, *, margin: float, threshold: float, base: str = "margin", **_: object) -> list[Problem]:
        """Require a loss of 0 at the best cosine and above 0 at the worst; only `base="margin"` has such limits."""
        problems = []
        if base == "margin" and margin + threshold <= -1:
            rule = "margin + threshold must exceed -1, else no positive pair ever has a loss"
            problems.append(Problem("threshold", rule, margin + threshold, "Raise threshold."))
        if base == "margin" and threshold - margin >= 1:
            rule = "threshold - margin must be below 1, else no negative pair ever has a loss"
            problems.append(Problem("threshold", rule, threshold - margin, "Lower threshold."))
        return problems
