"""A metric of another package: the reciprocal rank."""

from torch import Tensor

from trainables.metrics.families import Ranking, family


@family("reciprocal_rank", "MRR", positives="best")
def reciprocal_rank(ranking: Ranking) -> Tensor:
    """Return 1 / the position of the best positive."""
    return ranking.positions[:, 0].double().reciprocal()
