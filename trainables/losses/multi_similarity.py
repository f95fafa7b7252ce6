"""The loss `multi_similarity`."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.pair_terms import Linear
from trainables.losses.parts.pairs import Pairs
from trainables.losses.parts.robust import AnchorwiseLoss
from trainables.losses.parts.uncertainty import Entropic


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
        # Without rounding, both sets of an anchor are empty together. One decision per anchor ensures that.
        is_separated = (upper <= farthest_positive) | (closest_negative <= lower)
        positive = pairs.positive & (similarity < upper.masked_fill_(is_separated, -torch.inf))
        negative = pairs.negative & (similarity > lower.masked_fill_(is_separated, torch.inf))
        return positive, negative
