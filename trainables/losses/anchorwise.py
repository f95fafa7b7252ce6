"""Losses that weigh each anchor's positives and each anchor's negatives: multi-similarity, lifted structure, HAP2S.

All three are linear pair losses under one entropic uncertainty set per anchor and sign (docs/specification.md, section 5.7).
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.pair_terms import Linear, Threshold
from trainables.losses.parts.pairs import Pairs
from trainables.losses.parts.robust import AnchorwiseLoss, Reduction
from trainables.losses.parts.uncertainty import ConstantWeights, Entropic


class MultiSimilarityLoss(AnchorwiseLoss):
    """L = (1/B) sum_i { (1/alpha) lse0_p(-alpha (S_ip - base)) + (1/beta) lse0_n(beta (S_in - base)) }.

    Only informative pairs take part: negatives with S_in + epsilon > min over positives, and positives with
    S_ip - epsilon < max over negatives. An anchor without a positive, a negative or a mined pair contributes 0. The
    mean is over all B anchors. As a robust loss its sets have gamma = 1/alpha and 1/beta and a null pair.
    """

    name = "multi_similarity"
    citation = (
        "Wang et al., Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning, CVPR 2019; "
        "constants of Zhang et al., NeurIPS 2020"
    )
    section = "2.4"

    def __init__(
        self,
        *,
        alpha: Annotated[float, Field(gt=0, description="scale of positive pairs")] = 2.0,
        beta: Annotated[float, Field(gt=0, description="scale of negative pairs")] = 40.0,
        base: Annotated[float, Field(ge=-1, le=1, description="similarity threshold lambda")] = 0.5,
        epsilon: Annotated[float, Field(ge=0, description="slack of the pair mining, in cosine")] = 0.1,
    ):
        super().__init__(
            Linear(base), Entropic(1 / alpha, counting=True, null=True), Entropic(1 / beta, counting=True, null=True)
        )
        self.epsilon = epsilon

    def candidates(self, pairs: Pairs, losses: Tensor) -> tuple[Tensor, Tensor]:
        similarity = pairs.similarity
        closest_negative = torch.where(pairs.negative, similarity, -torch.inf).amax(dim=1, keepdim=True)
        farthest_positive = torch.where(pairs.positive, similarity, torch.inf).amin(dim=1, keepdim=True)
        upper, lower = closest_negative + self.epsilon, farthest_positive - self.epsilon
        # Both sets of an anchor are empty together but for rounding; one decision per anchor keeps it so.
        apart = (upper <= farthest_positive) | (closest_negative <= lower)
        positive = pairs.positive & (similarity < upper.masked_fill_(apart, -torch.inf))
        negative = pairs.negative & (similarity > lower.masked_fill_(apart, torch.inf))
        return positive, negative


class LiftedStructureLoss(AnchorwiseLoss):
    """L = sum_i [ lse_{P_i}(threshold - S) + lse_{N_i}(S - threshold) + margin ]_+; the lse of an empty set counts as 0.

    As printed (margin 0) the threshold cancels for every anchor that has both signs; `margin` restores a margin. As a
    robust loss its sets have gamma = 1. "sum" over anchors is the paper's equation; "mean" makes it independent of the
    batch size.
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
        hinge = (values + self.margin).clamp_min_(0)
        return hinge, hinge.sign()


class HAP2SLoss(AnchorwiseLoss):
    """L = (1/B) sum_i [ sum_{N_i} w-_ij S_ij - sum_{P_i} w+_ij S_ij + margin ]_+, w+- = softmax(-+S / gamma), held constant.

    Hard-aware point-to-set loss with exponential weights. Anchors without a positive or without a negative contribute 0.
    While the hinges are active its gradient is that of DRO-KL-G with every pair loss positive. That paper states neither
    margin nor gamma; gamma = 0.5 is the sigma of the HAP2S paper.
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
        both = pairs.positive.any(dim=1) & pairs.negative.any(dim=1)
        hinge = (values + self.margin).clamp_min_(0).mul_(both)
        return hinge, hinge.sign()
