"""Precision@k and R-precision: the share of positives among the first k, or the first R_q."""

from __future__ import annotations

from torch import Tensor

from trainables.metrics.ranking import Ranking


def precision_at_k(ranking: Ranking, k: int) -> Tensor:
    """#{positives among the first k} / k, (B,) float64. Below 1 for every query with R_q < k."""
    return (ranking.first(k) <= k).sum(dim=1).double() / k


def r_precision(ranking: Ranking) -> Tensor:
    """#{positives among the first R_q} / R_q, (B,) float64. Needs all positives in the ranking."""
    return (ranking.positions <= ranking.relevant[:, None]).sum(dim=1).double() / ranking.relevant
