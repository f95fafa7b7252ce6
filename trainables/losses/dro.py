"""DRO: pair losses under the worst distribution over pairs that an uncertainty set allows.

All of Qi et al., A Simple and Effective Framework for Pairwise Deep Metric Learning, ECCV 2020. A class chooses the set
(parts/uncertainty.py); `base` chooses the pair loss l (parts/pair_terms.py). docs/specification.md, sections 5.2 to 5.9.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.pair_terms import (
    BaseName,
    BetaNegative,
    BetaPositive,
    Margin,
    MarginKnobs,
    MarginWidth,
    Threshold,
    pair_term,
)
from trainables.losses.parts.pairs import Pairs
from trainables.losses.parts.random_stream import RandomStream, SamplingSeed
from trainables.losses.parts.robust import AnchorwiseLoss, DropZeros, PooledLoss, Reduction
from trainables.losses.parts.uncertainty import (
    BalancedTopK,
    ChiSquared,
    Entropic,
    ExpMinusOne,
    Sampled,
    TopK,
    UncertaintySet,
)

_PAPER = "Qi et al., A Simple and Effective Framework for Pairwise Deep Metric Learning, ECCV 2020"


class DroTopKLoss(MarginKnobs, PooledLoss):
    """F = max over {p in simplex, p <= 1/K} of sum p_ij l_ij = mean of the K largest l.

    Positive and negative pairs compete in one pool. K counts UNORDERED pairs (the authors' code counts ordered ones in
    units of four: K = 2 K_code). With fewer than K pairs the mean is over all of them.
    """

    name = "dro_topk"
    citation = _PAPER
    section = "5.3"
    example = MappingProxyType({"k": 8})

    def __init__(
        self,
        *,
        k: Annotated[int, Field(ge=1, description="number K of selected unordered pairs")],
        base: BaseName = "margin",
        margin: MarginWidth = 0.2,
        threshold: Threshold = 0.5,
        beta_pos: BetaPositive = 2.0,
        beta_neg: BetaNegative = 40.0,
        denominator: Annotated[
            Literal["k", "nonzero"], Field(description="average over all K, or over those with a loss")
        ] = "k",
    ):
        term = pair_term(base, margin=margin, threshold=threshold, beta_pos=beta_pos, beta_neg=beta_neg)
        super().__init__(term, TopK(k, drop_zeros=denominator == "nonzero"))


class DroTopKPNLoss(MarginKnobs, PooledLoss):
    """F = mean of the K/2 largest losses among positive pairs and the K/2 largest among negative pairs.

    K counts UNORDERED pairs and must be even. With fewer than K/2 positives, all of them and equally many negatives are
    taken. If one sign is missing, K/2 of the other are taken. The mean is always over the pairs taken.
    """

    name = "dro_topk_pn"
    citation = _PAPER
    section = "5.4"
    example = MappingProxyType({"k": 8})

    def __init__(
        self,
        *,
        k: Annotated[int, Field(ge=2, multiple_of=2, description="number K of selected unordered pairs, even")],
        base: BaseName = "margin",
        margin: MarginWidth = 0.2,
        threshold: Threshold = 0.5,
        beta_pos: BetaPositive = 2.0,
        beta_neg: BetaNegative = 40.0,
    ):
        term = pair_term(base, margin=margin, threshold=threshold, beta_pos=beta_pos, beta_neg=beta_neg)
        super().__init__(term, BalancedTopK(k))

    def candidates(self, pairs: Pairs) -> Tensor:
        """Return one group per sign."""
        return torch.stack(pairs.unordered())


class DroKLLoss(MarginKnobs, PooledLoss):
    """F = max_p sum p l - gamma KL(p || uniform) = gamma (lse(l / gamma) - log n) over all n pairs; p* = softmax(l / gamma).

    The value lies between the mean (gamma to infinity) and the maximum (gamma to 0). With `samples` the loss is the plain
    mean of that many pairs drawn from p* with replacement (unbiased gradient); state_dict carries the random stream.
    `weights="expm1"` uses the weights of the authors' code instead of p*: proportional to exp(l / gamma) - 1, held constant.
    """

    name = "dro_kl"
    citation = _PAPER
    section = "5.5"
    example = MappingProxyType({"gamma": 0.5})

    def __init__(
        self,
        *,
        gamma: Annotated[float, Field(gt=0, description="price of the divergence; small is close to the maximum")],
        base: BaseName = "margin",
        margin: MarginWidth = 0.2,
        threshold: Threshold = 0.5,
        beta_pos: BetaPositive = 2.0,
        beta_neg: BetaNegative = 40.0,
        samples: Annotated[int | None, Field(ge=1, description="pairs drawn from p*; none: closed form")] = None,
        weights: Annotated[
            Literal["softmax", "expm1"], Field(description="p* of the paper, or of its code")
        ] = "softmax",
        drop_zeros: DropZeros = False,
        sampling_seed: SamplingSeed = 0,
    ):
        term = pair_term(base, margin=margin, threshold=threshold, beta_pos=beta_pos, beta_neg=beta_neg)
        uncertainty: UncertaintySet = Entropic(gamma) if weights == "softmax" else ExpMinusOne(gamma)
        stream = RandomStream(sampling_seed) if samples else None
        chosen = Sampled(uncertainty, samples, stream) if samples and stream else uncertainty
        super().__init__(term, chosen, drop_zeros=drop_zeros)
        self.stream = stream


class DroKLGroupedLoss(MarginKnobs, AnchorwiseLoss):
    """F = sum_i gamma { lse_{P_i}(l / gamma) - log P_i + lse_{N_i}(l / gamma) - log N_i }, l the margin loss.

    One adversary per anchor and sign; an empty group contributes 0. "mean" divides by B, so that the learning rate does
    not depend on the batch size; "sum" is the paper's equation 7. gamma = 1 has the gradient of lifted structure. A null
    pair with a linear pair loss gives multi-similarity (docs/specification.md, section 5.7).
    """

    name = "dro_kl_grouped"
    citation = _PAPER
    section = "5.6"
    example = MappingProxyType({"gamma": 0.1})

    def __init__(
        self,
        *,
        gamma: Annotated[float, Field(gt=0, description="price of the divergence; small is batch-hard")],
        margin: MarginWidth = 0.2,
        threshold: Threshold = 0.5,
        drop_zeros: Annotated[bool, Field(description="leave pairs without loss out of their group")] = True,
        reduction: Reduction = "mean",
    ):
        uncertainty = Entropic(gamma)
        super().__init__(Margin(margin, threshold), uncertainty, uncertainty, reduction=reduction)
        self.drop_zeros = drop_zeros

    def candidates(self, pairs: Pairs, losses: Tensor) -> tuple[Tensor, Tensor]:
        """Return every pair of the anchor, or every one with a loss."""
        if not self.drop_zeros:
            return pairs.positive, pairs.negative
        nonzero = losses > 0
        return pairs.positive & nonzero, pairs.negative & nonzero


class DroChi2Loss(MarginKnobs, PooledLoss):
    """F = max of sum p l over {p in the simplex, (1/2n) sum (n p - 1)^2 <= radius}, over all n unordered pairs.

    The paper's set with phi(t) = (t - 1)^2 / 2 and its rho / B^2 as `radius`, solved exactly: F = mean + sqrt(2 radius Var)
    while no pair's weight is 0, and less beyond (docs/specification.md, section 5.9). Radius 0 is the mean of all pairs.
    The paper names the set and trains nothing with it.
    """

    name = "dro_chi2"
    citation = f"{_PAPER}, section 3.1, after Namkoong and Duchi, NIPS 2017"
    section = "5.9"
    example = MappingProxyType({"radius": 0.5})

    def __init__(
        self,
        *,
        radius: Annotated[float, Field(ge=0, description="size of the set; 0 is the mean, large the maximum")],
        base: BaseName = "margin",
        margin: MarginWidth = 0.2,
        threshold: Threshold = 0.5,
        beta_pos: BetaPositive = 2.0,
        beta_neg: BetaNegative = 40.0,
        drop_zeros: DropZeros = False,
    ):
        term = pair_term(base, margin=margin, threshold=threshold, beta_pos=beta_pos, beta_neg=beta_neg)
        super().__init__(term, ChiSquared(radius), drop_zeros=drop_zeros)
