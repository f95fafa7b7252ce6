"""Retrieval metrics of a set of embeddings, in percent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import get_args

from torch import Tensor

from trainables.errors import Problem, nearest, raise_if_any
from trainables.metrics.arithmetic import exact_arithmetic
from trainables.metrics.average_precision import map_at_k, map_at_r
from trainables.metrics.inputs import Array, LabelledVectors, labelled_vectors
from trainables.metrics.ndcg import ndcg_at_k
from trainables.metrics.precision import precision_at_k, r_precision
from trainables.metrics.ranking import Ranking, Scope, Ties, rankings
from trainables.metrics.recall import recall_at_k

AT_K: dict[str, Callable[[Ranking, int], Tensor]] = {
    "recall": recall_at_k,
    "precision": precision_at_k,
    "map": map_at_k,
    "ndcg": ndcg_at_k,
}
AT_R: dict[str, Callable[[Ranking], Tensor]] = {"map_at_r": map_at_r, "r_precision": r_precision}

RETRIEVAL_METRICS = (*AT_K, *AT_R)
"""What `metrics=` may name."""


def retrieval_metrics(
    embeddings: Array,
    labels: Array,
    ks: int | Sequence[int] = (1, 2, 4, 8),
    *,
    gallery: tuple[Array, Array] | None = None,
    metrics: str | Iterable[str] = RETRIEVAL_METRICS,
    ties: Ties = "pessimistic",
) -> dict[str, float]:
    """How well each query retrieves its own class by cosine similarity; mean over queries, in percent.

    Embeddings are L2-normalised here, always. Exact: every pair is compared, in float32 (float64 when given float64), on
    the embeddings' own device. Queries without a positive are dropped and counted. Two similarities that differ by
    rounding alone tie, and `ties` decides for all metrics alike whether tied negatives rank before the positives
    ("pessimistic": a collapsed embedding has recall 0) or after them ("optimistic": it has 100, as several published
    evaluation codes would say).

    Args:
        embeddings: (N, D) floats, tensor or numpy array.
        labels: (N,) integers.
        ks: the lengths k of the result lists, each at least 1. A k beyond the gallery means the whole gallery
            (precision and MAP still divide by k).
        gallery: (embeddings, labels) to search in, a set apart from the queries. Without it the queries are searched,
            each leaving out itself by index.
        metrics: which of RETRIEVAL_METRICS to compute. Positives beyond what these need are not looked for: recall
            needs only the best one, "map_at_r" and "r_precision" need them all.
        ties: "pessimistic" or "optimistic".

    Returns:
        `recall_at_{k}`, `precision_at_{k}`, `map_at_{k}`, `ndcg_at_{k}`, `map_at_r`, `r_precision` in percent;
        `queries` (the number averaged over), `queries_without_match` (dropped), and `tie_fraction` (in [0, 1]: the
        share of queries whose best positive ties with a negative).

    Raises:
        ConfigError: wrong shapes, types or lengths, NaN, an unknown metric, k < 1, or no query with a positive.
    """
    chosen = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    lengths = _checked_options(ks, chosen, ties)
    queries = labelled_vectors(embeddings, labels)
    references = None if gallery is None else labelled_vectors(*gallery, place="gallery ")
    _check_sets(queries, references)
    functions = _functions(chosen, lengths)
    sums = dict.fromkeys([*functions, "tied"], 0.0)
    matched = 0
    with exact_arithmetic(queries.vectors.device):
        for ranking in rankings(queries, references, scope=_scope(chosen, lengths), ties=ties):
            matched += len(ranking)
            sums["tied"] += float(ranking.tied.sum())
            for name, function in functions.items():
                sums[name] += float(function(ranking).sum())
    rule = f"at least one query must share its label with a reference, but none of {len(queries)} does"
    raise_if_any([] if matched else [Problem("labels", rule)])
    result = {name: 100 * sums[name] / matched for name in functions}
    counts = {"queries": float(matched), "queries_without_match": float(len(queries) - matched)}
    return {**result, **counts, "tie_fraction": sums["tied"] / matched}


def _functions(chosen: Sequence[str], ks: Sequence[int]) -> dict[str, Callable[[Ranking], Tensor]]:
    """Result key -> metric of a ranking, in the order of RETRIEVAL_METRICS and ks."""
    found: dict[str, Callable[[Ranking], Tensor]] = {}
    for name, metric in AT_K.items():
        if name in chosen:
            found |= {f"{name}_at_{k}": lambda ranking, m=metric, k=k: m(ranking, k) for k in ks}  # type: ignore[misc]
    return found | {name: metric for name, metric in AT_R.items() if name in chosen}


def _scope(chosen: Sequence[str], ks: Sequence[int]) -> Scope:
    """What the chosen metrics look at."""
    longest = max(ks, default=0) if set(chosen) & set(AT_K) else 0
    return Scope(longest, to_r=bool(set(chosen) & set(AT_R)), only_best=set(chosen) <= {"recall"})


def _checked_options(ks: int | Sequence[int], metrics: Sequence[str], ties: str) -> tuple[int, ...]:
    problems = []
    lengths = tuple(ks) if isinstance(ks, Iterable) else (ks,)
    for k in lengths:
        if isinstance(k, bool) or not hasattr(k, "__index__") or k < 1:
            problems.append(Problem("ks", "every k must be an integer of at least 1", k))
    for name in metrics:
        if name not in RETRIEVAL_METRICS:
            remedy = nearest(str(name), RETRIEVAL_METRICS, what="metric")
            problems.append(Problem("metrics", "unknown metric", name, remedy))
    if ties not in get_args(Ties):
        problems.append(Problem("ties", f"must be one of {', '.join(get_args(Ties))}", ties))
    if not metrics:
        problems.append(Problem("metrics", "must name at least one metric", metrics))
    elif not lengths and set(metrics) & set(AT_K):
        problems.append(Problem("ks", "must name at least one k", lengths))
    raise_if_any(problems)
    return tuple(dict.fromkeys(int(k) for k in lengths))


def _check_sets(queries: LabelledVectors, gallery: LabelledVectors | None) -> None:
    if gallery is None:
        return
    ours, theirs = queries.vectors, gallery.vectors
    problems = []
    for name, here, there in (
        ("dimension", ours.shape[1], theirs.shape[1]),
        ("type", str(ours.dtype), str(theirs.dtype)),
        ("device", str(ours.device), str(theirs.device)),
    ):
        if here != there:
            problems.append(Problem("gallery embeddings", f"must have the queries' {name} {here}", there))
    raise_if_any(problems)
