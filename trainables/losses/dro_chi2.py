"""The loss `dro_chi2`."""

from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from trainables.losses.dro_topk import PAPER
from trainables.losses.parts import pair_terms
from trainables.losses.parts.robust import DropZeros, PooledLoss
from trainables.losses.parts.uncertainty import ChiSquared


class DroChi2Loss(pair_terms.MarginKnobs, PooledLoss):
    """F = max of sum p l over {p in the simplex, (1/2n) sum (n p - 1)^2 <= radius}, over all n unordered pairs.

    The paper's set with phi(t) = (t - 1)^2 / 2 and its rho / B^2 as `radius`, solved exactly: F = mean + sqrt(2 radius
    Var) while no pair's weight is 0, and less beyond (docs/specification.md, section 5.9). Radius 0 is the mean of all
    pairs. The paper names the set and trains nothing with it.
    """

    name = "dro_chi2"
    citation = f"{PAPER}, section 3.1, after Namkoong and Duchi, NIPS 2017"
    section = "5.9"
    example = MappingProxyType({"radius": 0.5})

    def __init__(
        self,
        *,
        radius: Annotated[float, Field(ge=0, description="size of the set; 0 is the mean, large the maximum")],
        base: pair_terms.BaseName = "margin",
        margin: pair_terms.MarginWidth = 0.2,
        threshold: pair_terms.Threshold = 0.5,
        beta_pos: pair_terms.BetaPositive = 2.0,
        beta_neg: pair_terms.BetaNegative = 40.0,
        drop_zeros: DropZeros = False,
    ):
        term = pair_terms.pair_term(base, margin=margin, threshold=threshold, beta_pos=beta_pos, beta_neg=beta_neg)
        super().__init__(term, ChiSquared(radius), drop_zeros=drop_zeros)
