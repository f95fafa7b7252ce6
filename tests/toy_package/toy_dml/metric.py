"""A metric of one's own: how soon a query finds its class."""

from torch import Tensor

from trainables.metrics.families import Ranking, family


@family("reciprocal_rank", "MRR", positives="best")
def reciprocal_rank(ranking: Ranking) -> Tensor:
    """1 / the position of the best positive."""
    return ranking.positions[:, 0].double().reciprocal()
