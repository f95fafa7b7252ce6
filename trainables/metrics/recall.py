"""Recall@k: does a query find anything?"""

from __future__ import annotations

from torch import Tensor

from trainables.metrics.ranking import Ranking


def recall_at_k(ranking: Ranking, k: int) -> Tensor:
    """1 where a query has a positive among its first k, else 0; (B,) float64 (method specification, section 7)."""
    return (ranking.positions[:, 0] <= k).double()
