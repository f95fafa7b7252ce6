"""The loss `dro_kl_grouped`."""

from types import MappingProxyType
from typing import Annotated

from pydantic import Field
from torch import Tensor

from trainables.losses.dro_topk import PAPER
from trainables.losses.parts.pair_terms import Margin, MarginKnobs, MarginWidth, Threshold
from trainables.losses.parts.pairs import Pairs
from trainables.losses.parts.robust import AnchorwiseLoss, Reduction
from trainables.losses.parts.uncertainty import Entropic


class DroKLGroupedLoss(MarginKnobs, AnchorwiseLoss):
    """F = sum_i gamma { lse_{P_i}(l / gamma) - log P_i + lse_{N_i}(l / gamma) - log N_i }, l the margin loss.

    One adversary per anchor and sign; an empty group contributes 0. "mean" divides by B, so that the learning rate does
    not depend on the batch size; "sum" is the paper's equation 7. gamma = 1 has the gradient of lifted structure. A
    null pair with a linear pair loss gives multi-similarity (docs/specification.md, section 5.7).
    """

    name = "dro_kl_grouped"
    citation = PAPER
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
        if not self.drop_zeros:
            return pairs.positive, pairs.negative
        nonzero = losses > 0
        return pairs.positive & nonzero, pairs.negative & nonzero
