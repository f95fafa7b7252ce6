"""How embeddings are judged: one metric family per file, all of them pure functions of embeddings and labels."""

from __future__ import annotations

from trainables.metrics.retrieval import RETRIEVAL_METRICS, retrieval_metrics

__all__ = ["RETRIEVAL_METRICS", "retrieval_metrics"]
