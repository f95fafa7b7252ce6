"""Pair losses averaged over all pairs of the batch: the plain baselines."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.pair_terms import (
    BetaNegative,
    BetaPositive,
    Binomial,
    Margin,
    MarginKnobs,
    MarginWidth,
    Threshold,
)
from trainables.losses.parts.pairs import Pairs
from trainables.losses.parts.robust import PooledLoss
from trainables.losses.parts.uncertainty import Mean


class ContrastiveLoss(MarginKnobs, PooledLoss):
    """L = mean over positives of [threshold + m - S]_+  +  mean over negatives of [S - (threshold - m)]_+.

    Unlike in margin_all, positives and negatives count alike, however few positives the batch has.
    """

    name = "contrastive"
    citation = "Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006; on cosines"
    section = "5.1"

    def __init__(self, *, margin: MarginWidth = 0.2, threshold: Threshold = 0.5):
        super().__init__(Margin(margin, threshold), Mean())

    def candidates(self, pairs: Pairs) -> Tensor:
        """Return one group per sign."""
        return torch.stack(pairs.unordered())


class MarginAllLoss(MarginKnobs, PooledLoss):
    """L = mean over all pairs, positive and negative pooled, of [m + z (threshold - S)]_+, z = +1 / -1.

    With `denominator="nonzero"` the mean is over the pairs that have a loss. DRO-KL with `drop_zeros` approaches this
    value as its gamma grows.
    """

    name = "margin_all"
    citation = "Qi et al., A Simple and Effective Framework for Pairwise Deep Metric Learning, ECCV 2020"
    section = "5.1"

    def __init__(
        self,
        *,
        margin: MarginWidth = 0.2,
        threshold: Threshold = 0.5,
        denominator: Annotated[
            Literal["all", "nonzero"], Field(description="average over all pairs, or over those with a loss")
        ] = "all",
    ):
        super().__init__(Margin(margin, threshold), Mean(), drop_zeros=denominator == "nonzero")


class BinomialLoss(PooledLoss):
    """L = mean over all pairs, pooled, of (2/b) softplus(b z (threshold - S)), b = beta_pos or beta_neg by sign."""

    name = "binomial"
    citation = (
        "Yi et al., Deep Metric Learning for Person Re-Identification, ICPR 2014; constants of Qi et al., ECCV 2020"
    )
    section = "5.1"
    pair_term = "binomial"

    def __init__(self, *, threshold: Threshold = 0.5, beta_pos: BetaPositive = 2.0, beta_neg: BetaNegative = 40.0):
        super().__init__(Binomial(threshold, beta_pos, beta_neg), Mean())
