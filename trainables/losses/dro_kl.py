"""The loss `dro_kl`."""

from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from trainables.losses.dro_topk import PAPER
from trainables.losses.parts import pair_terms
from trainables.losses.parts.random_stream import RandomStream, SamplingSeed
from trainables.losses.parts.robust import DropZeros, PooledLoss
from trainables.losses.parts.uncertainty import Entropic, ExpMinusOne, SampledWeights, UncertaintySet


class DroKLLoss(pair_terms.MarginKnobs, PooledLoss):
    """F = max_p sum p l - gamma KL(p || uniform) = gamma (lse(l / gamma) - log n) over all n pairs; p* = softmax(l / gamma).

    The value lies between the mean (gamma to infinity) and the maximum (gamma to 0). With `samples` the loss is the
    plain mean of that many pairs drawn from p* with replacement (unbiased gradient); state_dict carries the random
    stream. `weights="expm1"` uses the weights of the authors' code instead of p*: proportional to exp(l / gamma) - 1,
    held constant.
    """

    name = "dro_kl"
    citation = PAPER
    section = "5.5"
    example = MappingProxyType({"gamma": 0.5})

    def __init__(
        self,
        *,
        gamma: Annotated[float, Field(gt=0, description="price of the divergence; small is close to the maximum")],
        base: pair_terms.BaseName = "margin",
        margin: pair_terms.MarginWidth = 0.2,
        threshold: pair_terms.Threshold = 0.5,
        beta_pos: pair_terms.BetaPositive = 2.0,
        beta_neg: pair_terms.BetaNegative = 40.0,
        samples: Annotated[int | None, Field(ge=1, description="pairs drawn from p*; none: closed form")] = None,
        weights: Annotated[
            Literal["softmax", "expm1"], Field(description="p* of the paper, or of its code")
        ] = "softmax",
        drop_zeros: DropZeros = False,
        sampling_seed: SamplingSeed = 0,
    ):
        term = pair_terms.pair_term(base, margin=margin, threshold=threshold, beta_pos=beta_pos, beta_neg=beta_neg)
        uncertainty: UncertaintySet = Entropic(gamma) if weights == "softmax" else ExpMinusOne(gamma)
        stream = RandomStream(sampling_seed) if samples else None
        chosen = SampledWeights(uncertainty, samples, stream) if samples and stream else uncertainty
        super().__init__(term, chosen, drop_zeros=drop_zeros)
        self.stream = stream
