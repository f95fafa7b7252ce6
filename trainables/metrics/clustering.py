"""How well k-means on the embeddings finds the classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainables.metrics.inputs import Array, labelled_vectors
from trainables.metrics.kmeans import KMeansBackend, kmeans
from trainables.metrics.nmi import nmi
from trainables.metrics.pairwise_f1 import pairwise_f1


@dataclass(frozen=True)
class ClusteringMetrics:
    """Agreement of clusters and classes, in percent."""

    nmi: float
    f1: float
    backend: str
    """What clustered; values from different backends must not be compared."""


def clustering_metrics(
    embeddings: Array, labels: Array, *, backend: KMeansBackend = "sklearn", seed: int = 0
) -> ClusteringMetrics:
    """NMI and pairwise F1 of k-means, with as many clusters as classes, on normalised embeddings (N, D), labels (N,).

    See `kmeans` for the backends and their cost. Raises ConfigError for bad embeddings, labels or backend.
    """
    points = labelled_vectors(embeddings, labels)
    found = kmeans(points.vectors, len(torch.unique(points.labels)), backend=backend, seed=seed)
    return ClusteringMetrics(
        nmi(found.assignment, points.labels), pairwise_f1(found.assignment, points.labels), found.backend
    )
