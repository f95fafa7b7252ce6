"""Retrieval metrics of a set of embeddings, in percent.

Rankings are not sorted in full, and nearest neighbours are not searched. Let s_1 >= s_2 >= ... be a query's
similarities to its positives, and c_i the number of negatives at least as similar as s_i. The i-th best positive
stands at position

    i + c_i,                                                                                    i = 1..R_q

and every metric on binary relevance is a function of these positions (families.py). The c_i are counts, so the
similarity matrix can be visited in any order, tile by tile. In self-retrieval S is symmetric, so each tile serves the
queries of its rows and columns: half the work of a nearest-neighbour search.

Ties: two pairs tie if rounding may explain the difference of their similarities (`tie_width`). Duplicates therefore tie
on every device and in every tile. Pessimistic ranks put each tied negative before the positive, optimistic ones after.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from trainables.errors import Problem, raise_if_any
from trainables.metrics.families import ABSENT, FAMILIES, Family, Positives, Ranking
from trainables.metrics.inputs import Array, LabelledVectors, exact_arithmetic, labelled_vectors
from trainables.metrics.search import (
    ENTRIES,
    SimilaritySearch,
    bands,
    count_negatives,
    group_by_class,
    positive_similarities,
    tie_width,
)

Ties = Literal["pessimistic", "optimistic"]

_ROUNDING = 1e-6  # by which a mean of shares may leave 0 to 1


def retrieval_metrics(
    embeddings: Array,
    labels: Array,
    ks: int | Sequence[int] = (1, 2, 4, 8),
    *,
    gallery: tuple[Array, Array] | None = None,
    metrics: str | Iterable[str] | None = None,
    ties: Ties = "pessimistic",
    callback: Callable[[Ranking], object] | None = None,
) -> dict[str, float]:
    """Compute how well each query retrieves its own class by cosine similarity: means over queries, in percent.

    Embeddings are always L2-normalised here. The result is exact: every pair is compared, in float32 (float64 for
    float64 input), on the embeddings' device. Queries without a positive are dropped and counted.

    Args:
        embeddings: (N, D) floats, tensor or numpy array.
        labels: (N,) integers.
        ks: lengths k >= 1 of the result lists. Beyond the gallery, precision and MAP still divide by k.
        gallery: (embeddings, labels) to search in. Without it each query searches all other queries.
        metrics: names from `families.FAMILIES`, all by default; fewer are faster, recall alone fastest.
        ties: whether negatives that differ from a positive only by rounding rank before it ("pessimistic": a collapsed
            embedding has recall 0) or after it ("optimistic": it has 100, as in several published codes).
        callback: called with every block of rankings, to derive more than means over queries.

    Returns:
        `recall_at_{k}`, `precision_at_{k}`, `map_at_{k}`, `ndcg_at_{k}`, `map_at_r`, `r_precision` in percent;
        `queries` (the number averaged over), `queries_without_match` (dropped), and `tie_fraction` (in [0, 1]: the
        share of queries whose best positive ties with a negative).

    Raises:
        ConfigError: wrong shapes, types or lengths, NaN, an unknown metric, k < 1, or no query with a positive.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1], [0.0, 1.0]])
        >>> found = retrieval_metrics(embeddings, torch.tensor([0, 0, 1, 1]), ks=(1, 2), metrics="recall")
        >>> {key: found[key] for key in ("recall_at_1", "recall_at_2", "queries")}
        {'recall_at_1': 0.0, 'recall_at_2': 75.0, 'queries': 4.0}
    """
    chosen = (metrics,) if isinstance(metrics, str) else tuple(FAMILIES if metrics is None else metrics)
    lengths = _require_options(ks, chosen, ties)
    queries = labelled_vectors(embeddings, labels)
    references = None if gallery is None else labelled_vectors(*gallery, prefix="gallery ")
    _require_equal_types(queries, references)
    families = [family for name, family in FAMILIES.items() if name in chosen]
    sums = {key: 0.0 for family in families for key in family.keys(lengths)}
    matched, tied = 0, 0
    with exact_arithmetic(queries.vectors.device):
        for ranking in _rankings(queries, references, scope=_Scope.of(families, lengths), ties=ties):
            matched, tied = matched + len(ranking), tied + int(ranking.tied.sum())
            if callback is not None:
                callback(ranking)
            for family in families:
                for key, values in family.of(ranking, lengths).items():
                    sums[key] += float(values.sum(dtype=torch.float64))
    rule = f"at least one query must share its label with a reference, but none of {len(queries)} does"
    raise_if_any([] if matched else [Problem("labels", rule)])
    percent = {key for family in families if family.percent for key in family.keys(lengths)}
    means = _means({key: total / matched for key, total in sums.items()}, percent)
    counts = {"queries": float(matched), "queries_without_match": float(len(queries) - matched)}
    return {**means, **counts, "tie_fraction": tied / matched}


def _means(means: Mapping[str, float], percent: Set[str]) -> dict[str, float]:
    """Return the means with shares in `percent`. Raise ConfigError for one that is not finite, or no share."""
    infinite = [key for key, mean in means.items() if not math.isfinite(mean)]
    raise_if_any(Problem(f"metric {key}", "must be finite for every query") for key in infinite)
    no_share = [key for key, mean in means.items() if key in percent and not -_ROUNDING <= mean <= 1 + _ROUNDING]
    rule, remedy = "must be between 0 and 1 for every query", "Declare it with percent=False if it is no share."
    raise_if_any(Problem(f"metric {key}", rule, f"{means[key]:.4g} on average", remedy) for key in no_share)
    return {key: (100 if key in percent else 1) * mean for key, mean in means.items()}


def _require_options(ks: int | Sequence[int], metrics: Sequence[str], ties: str) -> tuple[int, ...]:
    problems = []
    lengths = tuple(ks) if isinstance(ks, Iterable) else (ks,)
    for k in lengths:
        if isinstance(k, bool) or not hasattr(k, "__index__") or k < 1:
            problems.append(Problem("ks", "every k must be an integer of at least 1", k))
    for name in metrics:
        if name not in FAMILIES:
            problems.append(Problem("metrics", "unknown metric", name, known=FAMILIES, kind="metric"))
    if ties not in get_args(Ties):
        problems.append(Problem("ties", f"must be one of {', '.join(get_args(Ties))}", ties))
    if not metrics:
        problems.append(Problem("metrics", "must name at least one metric", metrics))
    elif not lengths and any(name in FAMILIES and FAMILIES[name].takes_k for name in metrics):
        problems.append(Problem("ks", "must name at least one k", lengths))
    raise_if_any(problems)
    return tuple(dict.fromkeys(int(k) for k in lengths))


def _require_equal_types(queries: LabelledVectors, gallery: LabelledVectors | None) -> None:
    if gallery is None:
        return
    ours, theirs = queries.vectors, gallery.vectors
    kinds = {
        "dimension": (ours.shape[1], theirs.shape[1]),
        "type": (str(ours.dtype), str(theirs.dtype)),
        "device": (str(ours.device), str(theirs.device)),
    }
    raise_if_any(
        Problem("gallery embeddings", f"must have the queries' {name} {expected}", value)
        for name, (expected, value) in kinds.items()
        if value != expected
    )


@dataclass(frozen=True)
class _Scope:
    """Positives and positions that the chosen metrics read; no others are computed."""

    needed: frozenset[Positives]
    k: int  # the longest result list of fixed length, 0 for none

    @classmethod
    def of(cls, families: Sequence[Family], ks: Sequence[int]) -> Self:
        longest = max(ks, default=0) if any(family.takes_k for family in families) else 0
        return cls(frozenset(family.positives for family in families), longest)

    def positives(self, relevant: Tensor) -> Tensor:
        """Return how many positives to locate for queries with R_q `relevant`, (N,)."""
        if self.needed & {"first_r", "all"}:
            return relevant
        return relevant.clamp_max(1 if self.needed <= {"best"} else self.k)

    def last_position(self, relevant: Tensor) -> Tensor:
        """Return the last position that any metric reads, except for the best positive, (N,)."""
        if "all" in self.needed:
            return torch.full_like(relevant, ABSENT)
        return relevant.clamp_min(self.k) if "first_r" in self.needed else torch.full_like(relevant, self.k)


def _rankings(
    queries: LabelledVectors, gallery: LabelledVectors | None, *, scope: _Scope, ties: Ties
) -> Iterator[Ranking]:
    """Yield the rankings of all queries with a positive, in blocks and in no particular order."""
    search = group_by_class(queries, gallery)
    relevant = search.relevant()
    counts, limits = scope.positives(relevant), scope.last_position(relevant)
    tile = _tile_length(search.rows.vectors, int(counts.max()))
    for band in bands(counts, tile):
        rows = slice(*band)
        if counts[rows].any():
            positions, tied = _positions(search, band, counts[rows], limits[rows], tile, ties)
            matched = counts[rows] > 0
            yield Ranking(
                positions[matched], relevant[rows][matched], tied[matched], search.rows.sources[rows][matched]
            )


def _positions(  # noqa: PLR0917
    search: SimilaritySearch, band: tuple[int, int], counts: Tensor, limits: Tensor, tile: int, ties: Ties
) -> tuple[Tensor, Tensor]:
    """Return positions (B, P) of each query's first positives, and whether the best ties with a negative (B,)."""
    positives = positive_similarities(search, band, int(counts.max()))
    width = tie_width(search.rows.vectors)
    slack = -width if ties == "pessimistic" else width
    # The best positive is ranked by the other rule too: the counts differ when a negative ties with it.
    order = torch.arange(1, positives.shape[1] + 1, device=positives.device)
    absent = order > counts[:, None]
    positives.masked_fill_(absent, torch.inf)
    thresholds = torch.cat([positives[:, :1] - slack, positives + slack], dim=1)
    ahead = count_negatives(search, band, thresholds, limits, tile)
    positions = (ahead[:, 1:] + order).to(torch.int64)
    # Counts beyond the limit are lower bounds. Hide them, so that no metric reads them as positions.
    beyond = positions > limits[:, None]
    beyond[:, 0] = False
    return positions.masked_fill_(absent.logical_or_(beyond), ABSENT), ahead[:, 0] != ahead[:, 1]


def _tile_length(vectors: Tensor, count: int) -> int:
    """Return the side of a tile: two tiles fill a CPU's caches, or occupy a GPU; smaller for many thresholds."""
    longest = 1024 if vectors.device.type == "cpu" else 8192
    return max(64, min(longest, ENTRIES // (count + 1)))
