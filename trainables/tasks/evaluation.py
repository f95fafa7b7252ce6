"""What an evaluation gives: figures, and something to look at. Shared by all tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainables.data.base import Indices, Pictures
from trainables.evidence.from_embeddings import NEIGHBOURS, histogram_of, neighbour_rows, queries_of
from trainables.evidence.kept import Hits, KeptEmbeddings
from trainables.evidence.record import Evidence, Sheet
from trainables.losses.base import normalise
from trainables.tasks.splits import Split

Figures = dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """One look at the validation pictures, or at the test pictures."""

    figures: Figures
    """Named `val/...`, among them `val/mean_cosine` and `val/norm_mean`; or `test/...`."""
    evidence: Evidence | None = None
    """What it leaves to look at; None where an embedding was not finite, and of the test pictures always."""
    hits: Hits | None = None
    """Which queries found their class first; None where nothing is retrieved."""
    embedded: KeptEmbeddings | None = None
    """All embeddings, where further metrics can be computed of them."""


def named(part: str, figures: Figures) -> Figures:
    """Figures under the name of the part they are of: `val/...`, `test/...`."""
    return {f"{part}/{name}": value for name, value in figures.items()}


def embedding_statistics(embeddings: Tensor) -> Figures:
    """Mean pairwise cosine and statistics of the norms of raw embeddings (N, D); NaN where one is not finite."""
    # Not metrics.norm_statistics, whose norms are float64: the last digits of figures stored by earlier trials would change.
    if not bool(torch.isfinite(embeddings).all()):
        return {"mean_cosine": float("nan"), "norm_mean": float("nan")}
    norms = torch.linalg.vector_norm(embeddings, dim=1)
    return {
        "mean_cosine": mean_cosine(embeddings),
        "norm_mean": float(norms.mean()),
        "norm_variance": float(norms.var(correction=0)),
    }


def mean_cosine(embeddings: Tensor) -> float:
    """Mean cosine over all pairs i != j, from the sum of unit vectors: (|sum fh|^2 - N) / (N (N - 1))."""
    n = len(embeddings)
    total = normalise(embeddings.double()).sum(dim=0).square().sum()
    return float((total - n) / max(n * (n - 1), 1))


def evidence_of(split: Split, embeddings: Tensor, sheet: Sheet | None) -> Evidence | None:
    """What raw embeddings (N, D) of the validation pictures leave to look at."""
    norms = histogram_of(torch.linalg.vector_norm(embeddings, dim=1))
    selected = split.protocol == "paper_test_selection"
    part = "test pictures, which validate under paper_test_selection" if selected else "validation pictures"
    return None if norms is None else Evidence(part, norms, sheet)


def neighbour_sheet(
    embeddings: Tensor,
    indices: Indices,
    pictures: Pictures,
    *,
    count: int,
    seed: int,
    query_and_gallery: tuple[Indices, Indices] | None = None,
) -> Sheet | None:
    """`count` of the pictures numbered `indices` (N,) with their nearest by embedding (N, D); None where none can be shown.

    `query_and_gallery`: rows of the queries and of the gallery, where a protocol keeps these apart.
    """
    if not count or not bool(torch.isfinite(embeddings).all()):
        return None
    queries, gallery = query_and_gallery or (np.arange(len(indices)), None)
    searched = np.arange(len(indices)) if gallery is None else gallery
    numbers = None if gallery is None else indices[gallery]
    asked = queries[queries_of(indices[queries], numbers, pictures.labels, count, seed=seed)]
    if not len(asked):
        return None

    def rows_of(part: Indices) -> tuple[Tensor, Indices]:
        return embeddings[torch.from_numpy(part).to(embeddings.device)], indices[part]

    rows = neighbour_rows(rows_of(asked), rows_of(searched), pictures, top=NEIGHBOURS)
    return Sheet(((0, "query"), (1, "nearest pictures")), rows, pictures)
