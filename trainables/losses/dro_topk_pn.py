"""The loss `dro_topk_pn`."""

from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from trainables.losses.dro_topk import PAPER
from trainables.losses.parts import pair_terms
from trainables.losses.parts.robust import PooledLoss
from trainables.losses.parts.uncertainty import BalancedTopK


class DroTopKPNLoss(pair_terms.MarginKnobs, PooledLoss):
    """F = mean of the K/2 largest losses among positive pairs and the K/2 largest among negative pairs.

    K counts UNORDERED pairs and must be even. With fewer than K/2 positives, all of them and equally many negatives are
    taken. If one sign is missing, K/2 of the other are taken. The mean is always over the pairs taken.
    """

    name = "dro_topk_pn"
    citation = PAPER
    section = "5.4"
    by_sign = True
    example = MappingProxyType({"k": 8})

    def __init__(
        self,
        *,
        k: Annotated[int, Field(ge=2, multiple_of=2, description="number K of selected unordered pairs, even")],
        base: pair_terms.BaseName = "margin",
        margin: pair_terms.MarginWidth = 0.2,
        threshold: pair_terms.Threshold = 0.5,
        beta_pos: pair_terms.BetaPositive = 2.0,
        beta_neg: pair_terms.BetaNegative = 40.0,
    ):
        term = pair_terms.pair_term(base, margin=margin, threshold=threshold, beta_pos=beta_pos, beta_neg=beta_neg)
        super().__init__(term, BalancedTopK(k))
