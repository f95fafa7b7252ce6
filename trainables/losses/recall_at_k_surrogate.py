"""A smooth surrogate of Recall@k."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from trainables.losses.parts.pairs import PairLoss, Pairs, Solution


class RecallAtKSurrogate(PairLoss):
    """L = 1 - mean over queries q and over k of min(k, Σ_{x in P_q} σ((k - r_qx) / t_k)) / min(k, P_q).

    r_qx = 1 + Σ_{z not q, x} σ((S_qz - S_qx) / t_r) is the smooth rank of positive x among all others of the batch;
    t_r, t_k are the temperatures of ranks and of the cut at k. Queries without a positive are left out; without any
    query the loss is 0. The authors' code ranks the query itself too, which moves every rank by one; the paper's
    equations do not.

    The B x P x B comparisons are computed for a few queries at a time, so that memory stays at B².
    """

    name = "recall_at_k_surrogate"
    citation = "Patel et al., Recall@k Surrogate Loss with Large Batches and Similarity Mixup, CVPR 2022"
    section = "2.9"
    host_reads = 1  # the largest number of positives of a query

    def __init__(
        self,
        *,
        ks: Annotated[
            tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, description="lengths k of the result list")
        ] = (1, 2, 4, 8, 16),
        rank_temperature: Annotated[
            float, Field(ge=1e-4, description="temperature of the comparisons, in cosine")
        ] = 0.01,
        k_temperature: Annotated[float, Field(ge=1e-3, description="temperature of the cut at k, in ranks")] = 1.0,
    ):
        super().__init__()
        self.ks = ks
        self.rank_temperature = rank_temperature
        self.k_temperature = k_temperature

    def solve(self, pairs: Pairs) -> Solution:
        similarity, positives = pairs.similarity, pairs.positive.sum(dim=1)
        slopes = torch.zeros_like(similarity)
        max_positives = int(positives.max())
        queries = positives.count_nonzero().clamp_min(1).to(similarity.dtype)
        value = similarity.new_zeros(())
        step = max(1, len(similarity) // max(max_positives, 1))
        for start in range(0, len(similarity) if max_positives else 0, step):
            rows = slice(start, start + step)
            part = self._recalls(similarity[rows], pairs.positive[rows], pairs.negative[rows], max_positives)
            value += part.value
            slopes[rows] = part.slopes
        return Solution(value / queries, slopes.div_(queries))

    def _recalls(self, similarity: Tensor, positive: Tensor, negative: Tensor, max_positives: int) -> Solution:
        """Return the sum over R queries of 1 - recall, from at most `max_positives` of each, and its slopes."""
        order = positive.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :max_positives]  # (R, P)
        exists = positive.gather(1, order)
        sorted_similarity = similarity.gather(1, order)
        above = ((similarity[:, None] - sorted_similarity[..., None]) / self.rank_temperature).sigmoid_()  # (R, P, N)
        above.masked_fill_(~(positive | negative)[:, None], 0)
        above.scatter_(2, order[..., None], 0)
        ranks = 1 + above.sum(dim=2)
        count = exists.sum(dim=1)
        value, to_ranks = torch.zeros_like(ranks[:, 0]), torch.zeros_like(ranks)
        for k in self.ks:
            inside = ((k - ranks) / self.k_temperature).sigmoid_().masked_fill_(~exists, 0)
            recalled = inside.sum(dim=1)
            share = 1 / (len(self.ks) * count.clamp(1, k).to(value.dtype))
            value += recalled.clamp_max(k) * share
            counted = share * (recalled < k)
            to_ranks.addcmul_(inside * (1 - inside), counted[:, None] / self.k_temperature)
        pull = above.mul_(1 - above).mul_(to_ranks[..., None] / self.rank_temperature)
        # A rank grows with the similarity of other samples and falls with that of its positive.
        slopes = pull.sum(dim=1).scatter_add_(1, order, -pull.sum(dim=2))
        return Solution((count > 0).sum() - value.sum(), slopes)
