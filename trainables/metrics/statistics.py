"""Statistics of a set of embeddings: norms before normalisation, cosines after it."""

from __future__ import annotations

import torch

from trainables.errors import raise_if_any
from trainables.metrics.inputs import Array, checked_vectors, labelled_vectors


def norm_statistics(embeddings: Array) -> dict[str, float]:
    """Return `norm_mean`, `norm_variance` (biased), `norm_min` and `norm_max` of raw embeddings (N, D), in float64.

    These are the quantities of the spherical embedding papers' tables (docs/specification.md, section 1.7). Raises
    ConfigError for wrong shapes or types, or non-finite values.

    >>> norm_statistics(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    {'norm_mean': 3.0, 'norm_variance': 4.0, 'norm_min': 1.0, 'norm_max': 5.0}
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


def cosine_statistics(embeddings: Array, labels: Array) -> dict[str, float]:
    """Return mean cosines over pairs i != j of embeddings (N, D) with labels (N,), in float64.

    `mean_cosine` is over all pairs, `mean_positive_cosine` over pairs of one class, `mean_negative_cosine` over the others;
    a mean over no pairs is left out. With m_c the sum of the unit vectors of class c, the sums over ordered pairs are
    |Σ_c m_c|² - Σ_i |fh_i|² and Σ_c |m_c|² - Σ_i |fh_i|², so no pair is visited.
    Raises ConfigError for wrong shapes, types or lengths, or non-finite values.
    """
    points = labelled_vectors(embeddings, labels)
    vectors = points.vectors.double()
    known, number = torch.unique(points.labels, return_inverse=True)
    sums = vectors.new_zeros(len(known), vectors.shape[1]).index_add_(0, number, vectors)
    sizes = torch.bincount(number)
    own = float(vectors.square().sum())
    every, positive = float(sums.sum(dim=0).square().sum()) - own, float(sums.square().sum()) - own
    pairs, positives = len(points) * (len(points) - 1), int((sizes * (sizes - 1)).sum())
    means = {
        "mean_cosine": (every, pairs),
        "mean_positive_cosine": (positive, positives),
        "mean_negative_cosine": (every - positive, pairs - positives),
    }
    return {name: total / count for name, (total, count) in means.items() if count}
