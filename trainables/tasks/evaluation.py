"""Define the results of an evaluation, which all tasks share: figures and evidence."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainables.data.base import Indices, Pictures
from trainables.evidence.from_embeddings import histogram_of, neighbour_rows, queries_of
from trainables.evidence.record import Evidence, Sheet
from trainables.evidence.stored import Hits, StoredEmbeddings
from trainables.losses.base import normalise
from trainables.tasks.splits import Split

Figures = dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """Result of evaluating the validation pictures, or the test pictures."""

    figures: Figures  # named `val/...`, among them `val/mean_cosine` and `val/norm_mean`; or `test/...`
    evidence: Evidence | None = None  # histogram and sheet; None for test pictures, and if an embedding is not finite
    hits: Hits | None = None  # which queries have a nearest neighbour of their class; None without retrieval
    stored: StoredEmbeddings | None = None
    """All embeddings, from which further metrics can be computed later; None without retrieval."""


def with_part(part: str, figures: Figures) -> Figures:
    """Return figures with their part in front of each name: `val/...`, `test/...`."""
    return {f"{part}/{name}": value for name, value in figures.items()}


def embedding_statistics(embeddings: Tensor) -> Figures:
    """Return mean pairwise cosine and norm statistics of raw embeddings (N, D); NaN if one of them is not finite."""
    norms = torch.linalg.vector_norm(embeddings, dim=1)
    figures = {
        "mean_cosine": mean_cosine(embeddings),
        "norm_mean": float(norms.mean()),
        "norm_variance": float(norms.var(correction=0)),
    }
    return figures if all(map(math.isfinite, figures.values())) else dict.fromkeys(figures, math.nan)


def mean_cosine(embeddings: Tensor) -> float:
    """Return the mean cosine over all pairs i != j, from the sum of unit vectors: (|sum fh|^2 - N) / (N (N - 1))."""
    n = len(embeddings)
    total = normalise(embeddings.double()).sum(dim=0).square().sum()
    return float((total - n) / max(n * (n - 1), 1))


def evidence_of(split: Split, embeddings: Tensor, sheet: Sheet | None) -> Evidence | None:
    """Return the evidence of raw embeddings (N, D) of the validation pictures."""
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
    """Return the sheet of `count` of the pictures `indices` (N,) with their nearest by embedding (N, D); None if empty.

    `query_and_gallery`: rows of the queries and of the gallery, if a protocol separates them.
    """
    if not count or pictures.are_features or not bool(torch.isfinite(embeddings).all()):
        return None
    queries, gallery = query_and_gallery or (np.arange(len(indices)), None)
    gallery_rows = np.arange(len(indices)) if gallery is None else gallery
    numbers = None if gallery is None else indices[gallery]
    query_rows = queries[queries_of(indices[queries], numbers, pictures.labels, count, seed=seed)]
    if not len(query_rows):
        return None

    def select(part: Indices) -> tuple[Tensor, Indices]:
        return embeddings[torch.from_numpy(part).to(embeddings.device)], indices[part]

    rows = neighbour_rows(select(query_rows), select(gallery_rows), pictures)
    return Sheet(((0, "query"), (1, "nearest pictures")), rows, pictures)
