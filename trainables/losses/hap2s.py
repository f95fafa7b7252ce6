"""The loss `hap2s`."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from trainables.losses.parts.pair_terms import Linear
from trainables.losses.parts.pairs import Pairs
from trainables.losses.parts.robust import AnchorwiseLoss
from trainables.losses.parts.uncertainty import ConstantWeights, Entropic


class HAP2SLoss(AnchorwiseLoss):
    """L = (1/B) sum_i [ sum_{N_i} w-_ij S_ij - sum_{P_i} w+_ij S_ij + margin ]_+, w+- = softmax(-+S / gamma), held constant.

    Hard-aware point-to-set loss with exponential weights. An anchor without a positive or a negative contributes 0.
    While the hinges are active its gradient is that of DRO-KL-G with every pair loss positive. The DRO paper states
    neither margin nor gamma; gamma = 0.5 is the sigma of the HAP2S paper.
    """

    name = "hap2s"
    citation = "Yu et al., Hard-Aware Point-to-Set Deep Metric for Person Re-identification, ECCV 2018"
    section = "5.7"
    surrogate_gradient = True

    def __init__(
        self,
        *,
        gamma: Annotated[float, Field(gt=0, description="temperature of the weights; small is the hardest pair")] = 0.5,
        margin: Annotated[float, Field(ge=0, description="margin between the two weighted cosines")] = 0.2,
    ):
        uncertainty = ConstantWeights(Entropic(gamma))
        super().__init__(Linear(0), uncertainty, uncertainty)
        self.margin = margin

    def combine(self, pairs: Pairs, values: Tensor) -> tuple[Tensor, Tensor | None]:
        has_both = pairs.positive.any(dim=1) & pairs.negative.any(dim=1)
        hinge = (values + self.margin).clamp_min_(0).mul_(has_both)
        return hinge, hinge.sign()
