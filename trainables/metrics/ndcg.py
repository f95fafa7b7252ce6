"""nDCG@k with binary gains."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.metrics.ranking import Ranking


def ndcg_at_k(ranking: Ranking, k: int) -> Tensor:
    """DCG / IDCG, (B,) float64 (multi-proxy anchor paper, equations 19 and 20).

    DCG = Σ_{i <= k} rel_i / log2(i + 1);  IDCG = Σ_{i <= min(k, R_q)} 1 / log2(i + 1).
    """
    positions = ranking.first(k)
    gains = (positions.double() + 1).log2_().reciprocal_()
    dcg = gains.masked_fill_(positions > k, 0).sum(dim=1)
    limit = ranking.relevant.clamp_max(k)
    ranks = torch.arange(1, int(limit.max()) + 1, device=limit.device, dtype=torch.float64)
    ideal = (ranks + 1).log2_().reciprocal_().cumsum(dim=0)
    return dcg / ideal[limit - 1]
