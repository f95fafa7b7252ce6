"""The loss `mpa_ap`."""

from torch import Tensor

from trainables.losses.mpa import MultiProxyLoss
from trainables.losses.parts.proxies import ClassSolution
from trainables.losses.parts.soft_maximum import log_sum_exp


class MPAAllPairsLoss(MultiProxyLoss):
    """L = (1/B) Σ_i log(1 + Σ_c e^{alpha S'_ic}) + tau R.

    S'_ic = delta - S_ic for c = y_i and S_ic + delta otherwise. Positive and negative similarities compete in
    one soft maximum, over all C classes.
    """

    name = "mpa_ap"
    citation = "Saeki et al., Multi Proxy Anchor Family Loss for Several Types of Gradients, 2023 (MPA-AP)"
    section = "6.6"

    def solve(self, similarity: Tensor, labels: Tensor, norms: Tensor) -> ClassSolution:
        own = labels[:, None]
        pull = self.alpha * (self.delta - similarity.gather(1, own))
        logits = similarity.mul(self.alpha).add_(self.alpha * self.delta).scatter_(1, own, pull)
        terms, slopes = log_sum_exp(logits, dim=1, add_one=True)
        slopes.scatter_(1, own, -slopes.gather(1, own)).mul_(self.alpha / len(labels))
        return ClassSolution(terms.mean(), slopes)
