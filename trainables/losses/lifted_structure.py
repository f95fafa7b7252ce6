"""The loss `lifted_structure`."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from trainables.losses.parts.pair_terms import Linear, Threshold
from trainables.losses.parts.pairs import Pairs
from trainables.losses.parts.robust import AnchorwiseLoss, Reduction
from trainables.losses.parts.uncertainty import Entropic


class LiftedStructureLoss(AnchorwiseLoss):
    """L = sum_i [ lse_{P_i}(threshold - S) + lse_{N_i}(S - threshold) + margin ]_+; an empty set's lse counts as 0.

    An anchor without any pair contributes 0. As printed (margin 0) the threshold cancels for every anchor that has both
    signs; `margin` restores a margin. As a robust loss its sets have gamma = 1. "sum" over anchors is the paper's
    equation; "mean" makes it independent of the batch size.
    """

    name = "lifted_structure"
    citation = (
        "Hermans et al., In Defense of the Triplet Loss for Person Re-Identification, 2017, generalising Oh Song et "
        "al., CVPR 2016; as in Qi et al., ECCV 2020, equation 3"
    )
    section = "5.7"

    def __init__(
        self,
        *,
        threshold: Threshold = 0.5,
        margin: Annotated[float, Field(description="added inside each anchor's bracket")] = 0.0,
        reduction: Reduction = "sum",
    ):
        uncertainty = Entropic(1, counting=True)
        super().__init__(Linear(threshold), uncertainty, uncertainty, reduction=reduction)
        self.margin = margin

    def combine(self, pairs: Pairs, values: Tensor) -> tuple[Tensor, Tensor | None]:
        has_pair = (pairs.positive | pairs.negative).any(dim=1)
        hinge = (values + self.margin).clamp_min_(0).mul_(has_pair)
        return hinge, hinge.sign()
