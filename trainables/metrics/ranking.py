"""Where each query's positives stand in its ranking: all that a retrieval metric needs to know.

No ranking is ever sorted in full and no nearest neighbours are searched. With s_1 >= s_2 >= ... a query's similarities to
its positives, and c_i the number of negatives at least as similar as s_i, the i-th best positive stands at position

    i + c_i,                                                                                    i = 1..R_q

and every metric on binary relevance is a function of these positions. The c_i are counts, so the similarity matrix may
be visited in any order, tile by tile, each tile dropped when counted; and in self-retrieval, where S is symmetric, each
tile serves both its rows' and its columns' queries, which halves the work of a nearest-neighbour search.

Ties. Two pairs tie when rounding alone may have made their similarities differ (`tie_width`), so duplicates tie whatever
kernel, tile or device computed them. Pessimistic ranks put every tied negative before the positive, optimistic ones
after it, in all metrics alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trainables.metrics.counting import count_negatives
from trainables.metrics.grouping import Search, group_by_class
from trainables.metrics.inputs import LabelledVectors
from trainables.metrics.positives import ENTRIES, bands, positive_similarities, tie_width

Ties = Literal["pessimistic", "optimistic"]

ABSENT = torch.iinfo(torch.int64).max
"""The position of a positive that a query does not have: later than any k."""


@dataclass(frozen=True)
class Ranking:
    """The positions of the positives of B queries, each of which has at least one."""

    positions: Tensor
    """(B, P), int64: 1-based positions of each query's best P positives, padded with ABSENT. Ascending and exact as far as
    the scope's metrics look; further ones are only known to lie further."""
    relevant: Tensor
    """(B,), int64: R_q, the number of positives in the whole gallery, at least 1."""
    tied: Tensor
    """(B,), bool: whether a negative ties with the query's best positive."""

    def __len__(self) -> int:
        return len(self.relevant)

    def first(self, k: int) -> Tensor:
        """(B, min(k, P)): the only positions that can be k or less, for the j-th positive stands at j or later."""
        return self.positions[:, :k]


@dataclass(frozen=True)
class Scope:
    """What the wanted metrics look at; what they do not is not computed."""

    k: int
    """The longest result list of fixed length, 0 for none."""
    to_r: bool
    """Whether lists of length R_q count too; then all positives are located."""
    only_best: bool = False
    """Whether the best positive alone matters; it does for recall."""

    def positives(self, relevant: Tensor) -> Tensor:
        """(N,) how many positives to locate for queries with R_q `relevant` (N,)."""
        return relevant if self.to_r else relevant.clamp_max(1 if self.only_best else self.k)

    def last_position(self, relevant: Tensor) -> Tensor:
        """(N,) the last position that matters."""
        return relevant.clamp_min(self.k) if self.to_r else torch.full_like(relevant, self.k)


def rankings(
    queries: LabelledVectors, gallery: LabelledVectors | None, *, scope: Scope, ties: Ties
) -> Iterator[Ranking]:
    """Rankings of all queries that have a positive, in blocks (in no particular order of queries).

    Without a gallery the queries rank one another, each leaving out itself (by index).
    """
    search = group_by_class(queries, gallery)
    relevant = search.relevant()
    wanted, limits = scope.positives(relevant), scope.last_position(relevant)
    tile = _tile_length(search.rows.vectors, int(wanted.max()))
    for band in bands(wanted, tile):
        here = slice(*band)
        if wanted[here].any():
            positions, tied = _positions(search, band, wanted[here], limits[here], tile, ties)
            kept = wanted[here] > 0
            yield Ranking(positions[kept], relevant[here][kept], tied[kept])


def _positions(  # noqa: PLR0917
    search: Search, band: tuple[int, int], wanted: Tensor, limits: Tensor, tile: int, ties: Ties
) -> tuple[Tensor, Tensor]:
    """Positions (B, P) of the wanted positives of a band's queries, and whether the best ties with a negative (B,)."""
    positives = positive_similarities(search, band, int(wanted.max()))
    width = tie_width(search.rows.vectors)
    slack = -width if ties == "pessimistic" else width
    # The best positive is judged by the other rule too: the counts differ when a negative ties with it.
    order = torch.arange(1, positives.shape[1] + 1, device=positives.device)
    absent = order > wanted[:, None]
    positives.masked_fill_(absent, torch.inf)
    thresholds = torch.cat([positives[:, :1] - slack, positives + slack], dim=1)
    ahead = count_negatives(search, band, thresholds, limits, tile)
    positions = (ahead[:, 1:] + order).to(torch.int64).masked_fill_(absent, ABSENT)
    return positions, ahead[:, 0] != ahead[:, 1]


def _tile_length(vectors: Tensor, count: int) -> int:
    """Rows and columns of a tile: two fill a CPU's caches, or keep a GPU busy; fewer when the thresholds are many."""
    longest = 1024 if vectors.device.type == "cpu" else 8192
    return max(64, min(longest, ENTRIES // (count + 1)))
