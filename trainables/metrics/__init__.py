"""Metrics: pure functions of embeddings and labels.

    families            definitions of recall, precision, MAP, nDCG ...; a new retrieval metric goes there
    retrieval           those metrics of a set of embeddings; search is its engine
    clustering          k-means, NMI and pairwise F1
    faces               verification of pairs, identification among distractors
    linear_evaluation   linear classifiers on frozen features

The names below are loaded on first use, so that `trainables.metrics.families` needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainables.metrics.clustering import ClusteringMetrics, clustering_metrics, kmeans, nmi, pairwise_f1
    from trainables.metrics.faces import VerificationMetrics, rank_1_with_distractors, verification_metrics
    from trainables.metrics.families import RETRIEVAL_METRICS
    from trainables.metrics.retrieval import retrieval_metrics

__all__ = [
    "RETRIEVAL_METRICS",
    "ClusteringMetrics",
    "VerificationMetrics",
    "clustering_metrics",
    "kmeans",
    "nmi",
    "pairwise_f1",
    "rank_1_with_distractors",
    "retrieval_metrics",
    "verification_metrics",
]

_MODULES = ("families", "retrieval", "clustering", "faces")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in (import_module(f"{__name__}.{home}") for home in _MODULES):
            if name in vars(module):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
