"""Retrieval metrics by explicit sorting and loops, from the docs/specification.md, section 7."""

import math
from collections.abc import Sequence

import numpy as np

FloatArray = np.ndarray


def relevance_lists(
    embeddings: FloatArray,
    labels: Sequence[int],
    gallery: tuple[FloatArray, Sequence[int]] | None = None,
    ties: str = "pessimistic",
) -> list[list[int]]:
    """For each query with a positive, the 0/1 relevance of its whole ranking (float64, ties to 12 decimals)."""
    references, reference_labels = (embeddings, labels) if gallery is None else gallery
    lists = []
    for i, (query, label) in enumerate(zip(embeddings, labels, strict=True)):
        found = []
        for j, (reference, other) in enumerate(zip(references, reference_labels, strict=True)):
            if gallery is None and i == j:
                continue
            similarity = round(_cosine(query, reference), 12)
            relevant = int(other == label)
            found.append((-similarity, relevant if ties == "pessimistic" else -relevant, relevant))
        ranking = [relevant for _, _, relevant in sorted(found)]
        if any(ranking):
            lists.append(ranking)
    return lists


def _cosine(a: FloatArray, b: FloatArray) -> float:
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    norms = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / norms if norms > 0 else 0.0


def recall(ranking: list[int], k: int) -> float:
    return float(any(ranking[:k]))


def precision(ranking: list[int], k: int) -> float:
    return sum(ranking[:k]) / k


def precision_sum(ranking: list[int], k: int) -> float:
    total = 0.0
    for i in range(min(k, len(ranking))):
        if ranking[i]:
            total += sum(ranking[: i + 1]) / (i + 1)
    return total


def ndcg(ranking: list[int], k: int) -> float:
    dcg = sum(1 / math.log2(i + 2) for i, relevant in enumerate(ranking[:k]) if relevant)
    return dcg / sum(1 / math.log2(i + 2) for i in range(min(k, sum(ranking))))


def metrics(lists: list[list[int]], ks: Sequence[int]) -> dict[str, float]:
    """The percentages that `retrieval_metrics` should give for these relevance lists."""
    rows = []
    for ranking in lists:
        relevant = sum(ranking)
        row = {"map_at_r": precision_sum(ranking, relevant) / relevant}
        row["r_precision"] = precision(ranking, relevant)
        for k in ks:
            row[f"recall_at_{k}"] = recall(ranking, k)
            row[f"precision_at_{k}"] = precision(ranking, k)
            row[f"map_at_{k}"] = precision_sum(ranking, k) / k
            row[f"ndcg_at_{k}"] = ndcg(ranking, k)
        rows.append(row)
    return {name: 100 * sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def relevance_lists_fast(embeddings: FloatArray, labels: FloatArray) -> list[list[int]]:
    """The same for larger sets without ties: one full sort of the float64 similarities of each query."""
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)
    order = np.argsort(-similarity, axis=1)[:, :-1]
    relevant = (labels[order] == labels[:, None]).astype(int)
    return [row.tolist() for row in relevant if row.any()]
