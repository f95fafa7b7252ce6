"""Statistics of the embeddings' norms, before any normalisation."""

from __future__ import annotations

import torch

from trainables.errors import raise_if_any
from trainables.metrics.inputs import Array, checked_vectors


def norm_statistics(embeddings: Array) -> dict[str, float]:
    """`norm_mean`, `norm_variance` (biased), `norm_min` and `norm_max` of raw embeddings (N, D), in float64.

    The quantities of the spherical embedding papers' tables (method specification, section 1.7). Raises ConfigError for
    wrong shapes or types, or non-finite values.
    """
    vectors, problems = checked_vectors(embeddings, "embeddings")
    raise_if_any(problems)
    norms = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64)
    return {
        "norm_mean": float(norms.mean()),
        "norm_variance": float(norms.var(correction=0)),
        "norm_min": float(norms.min()),
        "norm_max": float(norms.max()),
    }
