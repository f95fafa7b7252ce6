"""How embeddings are judged: one metric family per file, all of them pure functions of embeddings and labels."""

from __future__ import annotations

from trainables.metrics.clustering import ClusteringMetrics, clustering_metrics
from trainables.metrics.cosines import cosine_statistics
from trainables.metrics.identification import rank_1_with_distractors
from trainables.metrics.kmeans import Clustering, kmeans
from trainables.metrics.nmi import nmi
from trainables.metrics.norms import norm_statistics
from trainables.metrics.pairwise_f1 import pairwise_f1
from trainables.metrics.retrieval import RETRIEVAL_METRICS, retrieval_metrics
from trainables.metrics.verification import VerificationMetrics, verification_metrics

__all__ = [
    "RETRIEVAL_METRICS",
    "Clustering",
    "ClusteringMetrics",
    "VerificationMetrics",
    "clustering_metrics",
    "cosine_statistics",
    "kmeans",
    "nmi",
    "norm_statistics",
    "pairwise_f1",
    "rank_1_with_distractors",
    "retrieval_metrics",
    "verification_metrics",
]
