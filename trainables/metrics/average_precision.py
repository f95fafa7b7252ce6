"""MAP@R and MAP@k: precision averaged over the positions of the positives."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.metrics.ranking import Ranking


def map_at_r(ranking: Ranking) -> Tensor:
    """AP@R = (1 / R_q) Σ_{i <= R_q} P(i) rel(i), (B,) float64. Needs all positives in the ranking.

    P(i) is the precision among the first i (Musgrave et al., A Metric Learning Reality Check, ECCV 2020, section 3.2).
    """
    relevant = ranking.relevant
    return _precision_sum(ranking.positions, relevant[:, None]) / relevant


def map_at_k(ranking: Ranking, k: int) -> Tensor:
    """AP@k = (1 / k) Σ_{i <= k} P(i) rel(i), (B,) float64.

    Divided by k, not by min(k, R_q): the definition that gives the multi-proxy anchor paper's table 3.
    """
    return _precision_sum(ranking.first(k), k) / k


def _precision_sum(positions: Tensor, limit: Tensor | int) -> Tensor:
    """Σ P(i) rel(i) over positions i <= limit: the j-th positive, at position p_j, contributes j / p_j."""
    hits = torch.arange(1, positions.shape[1] + 1, device=positions.device)
    return (hits / positions.double()).masked_fill_(positions > limit, 0).sum(dim=1)
