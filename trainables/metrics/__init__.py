"""Metrics: pure functions of embeddings and labels.

    families            definitions of recall, precision, MAP, nDCG ...; a new retrieval metric goes there
    retrieval           those metrics of a set of embeddings; search is its engine
    clustering          k-means, NMI and pairwise F1
    faces               verification of pairs, identification among distractors
    linear_evaluation   linear classifiers on frozen features

`retrieval_metrics` is loaded on first use, so that `trainables.metrics.families` needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainables.metrics.retrieval import retrieval_metrics

__all__ = ["retrieval_metrics"]


def __getattr__(name: str) -> Any:
    if name != "retrieval_metrics":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainables.metrics import retrieval

    return retrieval.retrieval_metrics
