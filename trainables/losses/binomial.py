"""The loss `binomial`."""

from trainables.losses.parts.pair_terms import BetaNegative, BetaPositive, Binomial, Threshold
from trainables.losses.parts.robust import PooledLoss
from trainables.losses.parts.uncertainty import Mean


class BinomialLoss(PooledLoss):
    """L = mean over all pairs, pooled, of (2/b) softplus(b z (threshold - S)), b = beta_pos or beta_neg by sign."""

    name = "binomial"
    citation = (
        "Yi et al., Deep Metric Learning for Person Re-Identification, ICPR 2014; constants of Qi et al., ECCV 2020"
    )
    section = "5.1"
    pair_term = "binomial"

    def __init__(self, *, threshold: Threshold = 0.5, beta_pos: BetaPositive = 2.0, beta_neg: BetaNegative = 40.0):
        super().__init__(Binomial(threshold, beta_pos, beta_neg), Mean())
