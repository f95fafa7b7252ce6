"""The loss `dro_topk`."""

from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from trainables.losses.parts import pair_terms
from trainables.losses.parts.robust import PooledLoss
from trainables.losses.parts.uncertainty import TopK

PAPER = "Qi et al., A Simple and Effective Framework for Pairwise Deep Metric Learning, ECCV 2020"


class DroTopKLoss(pair_terms.MarginKnobs, PooledLoss):
    """F = max over {p in simplex, p <= 1/K} of sum p_ij l_ij = mean of the K largest l.

    Positive and negative pairs compete in one pool. K counts UNORDERED pairs (the authors' code counts ordered ones in
    units of four: K = 2 K_code). With fewer than K pairs the mean is over all of them.
    """

    name = "dro_topk"
    citation = PAPER
    section = "5.3"
    example = MappingProxyType({"k": 8})

    def __init__(
        self,
        *,
        k: Annotated[int, Field(ge=1, description="number K of selected unordered pairs")],
        base: pair_terms.BaseName = "margin",
        margin: pair_terms.MarginWidth = 0.2,
        threshold: pair_terms.Threshold = 0.5,
        beta_pos: pair_terms.BetaPositive = 2.0,
        beta_neg: pair_terms.BetaNegative = 40.0,
        denominator: Annotated[
            Literal["k", "nonzero"], Field(description="average over all K, or over those with a loss")
        ] = "k",
    ):
        term = pair_terms.pair_term(base, margin=margin, threshold=threshold, beta_pos=beta_pos, beta_neg=beta_neg)
        super().__init__(term, TopK(k, drop_zeros=denominator == "nonzero"))
