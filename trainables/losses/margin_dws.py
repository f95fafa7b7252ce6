"""The loss `margin_dws`."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.margin_semihard import MinedMarginLoss
from trainables.losses.parts.pair_terms import MarginWidth, Threshold
from trainables.losses.parts.pairs import Pairs
from trainables.losses.parts.random_stream import SamplingSeed
from trainables.losses.parts.uncertainty import sample_in_proportion

_CLOSEST = 0.5  # shorter distances count as this, which bounds the weight of close pairs
_FARTHEST = 1.4  # pairs at least this far apart are not drawn


class MarginDWSLoss(MinedMarginLoss):
    """Margin loss on all positives and, per anchor, as many negatives drawn with probability ~ 1 / q(D).

    q is the density of distances on the unit sphere in d dimensions. The log weight is
    (2 - d) log D - (d - 3)/2 log(1 - D²/4) with D = sqrt(2 - 2S), at least 0.5. From 1.4 on the weight is 0. Draws are
    with replacement.

    Weights are scaled by the largest of each anchor ("row"). "global" scales by the largest of the batch, as the
    original code does: in high dimensions a single close pair then leaves almost every other anchor without negatives
    (weights underflow to 0).
    """

    name = "margin_dws"
    citation = (
        "Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017; with the pair loss of Qi et al., ECCV 2020"
    )
    section = "5.8"

    def __init__(
        self,
        *,
        margin: MarginWidth = 0.2,
        threshold: Threshold = 0.5,
        dws_normalise: Annotated[
            Literal["row", "global"], Field(description="scale weights per anchor, or per batch (as first published)")
        ] = "row",
        sampling_seed: SamplingSeed = 0,
    ):
        super().__init__(margin=margin, threshold=threshold, sampling_seed=sampling_seed)
        self.dws_normalise = dws_normalise

    def negatives(self, pairs: Pairs, uniform: Tensor) -> Tensor:
        """Draw one of the anchor's negatives for each of its positive pairs."""
        cumulative = _sampling_weights(pairs, self.dws_normalise).cumsum(dim=1)
        drawn = sample_in_proportion(cumulative, uniform)
        counted = (pairs.positive & (cumulative[:, -1:] > 0)).to(uniform.dtype)
        return torch.zeros_like(uniform).scatter_add_(1, drawn, counted)


def _sampling_weights(pairs: Pairs, normalise: str) -> Tensor:
    """Return weights (B, B) of negatives, 0 if not eligible. The largest of each row, or of the batch, is 1."""
    squared = (2 - 2 * pairs.similarity).clamp_(_CLOSEST**2, _FARTHEST**2)
    eligible = pairs.negative & (squared < _FARTHEST**2)
    log_weights = (1 - squared / 4).log_().mul_(-(pairs.dimension - 3) / 2)
    log_weights.add_(squared.log_(), alpha=(2 - pairs.dimension) / 2).masked_fill_(~eligible, -torch.inf)
    top = log_weights.amax(dim=1, keepdim=True)
    if normalise == "global":
        top = top.amax().expand_as(top).contiguous()
    return log_weights.sub_(top.masked_fill_(top == -torch.inf, 0)).exp_()
