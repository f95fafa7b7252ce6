"""The loss `margin_all`."""

from typing import Annotated, Literal

from pydantic import Field

from trainables.losses.parts.pair_terms import Margin, MarginKnobs, MarginWidth, Threshold
from trainables.losses.parts.robust import PooledLoss
from trainables.losses.parts.uncertainty import Mean


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
