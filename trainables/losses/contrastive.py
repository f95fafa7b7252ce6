"""The loss `contrastive`."""

from trainables.losses.parts.pair_terms import Margin, MarginKnobs, MarginWidth, Threshold
from trainables.losses.parts.robust import PooledLoss
from trainables.losses.parts.uncertainty import Mean


class ContrastiveLoss(MarginKnobs, PooledLoss):
    """L = mean over positives of [threshold + m - S]_+  +  mean over negatives of [S - (threshold - m)]_+.

    Unlike in margin_all, positives and negatives count alike, however few positives the batch has.
    """

    name = "contrastive"
    citation = "Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006; on cosines"
    section = "5.1"
    by_sign = True

    def __init__(self, *, margin: MarginWidth = 0.2, threshold: Threshold = 0.5):
        super().__init__(Margin(margin, threshold), Mean())
