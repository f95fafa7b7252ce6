"""Permutation test of a searched knob's effect, over the configurations of a search.

No two configurations of a search agree in all other knobs, so its values cannot be compared directly. But if the knob had no
effect, its values would be exchangeable among the configurations. The test removes from the configurations' means what a
smooth function of the other knobs explains. Its statistic is the largest difference between the configurations inside and
outside a range of the knob (for names: one name and the others). Permuting the knob's values gives its distribution.

This is exact where the knob's values were drawn independently of the results (random search). An adaptive search places later
configurations where earlier ones did well; docs/verdicts.md has the error rates by search method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tune_dml.stats.intervals import Array

_LEAST_CELLS = 8
_PERMUTATIONS = 4999
_MOST_ENDS = 24
"""Maximum number of ends of the compared ranges."""
_SCALES = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0)
"""Length scales of the function of the other knobs, whose ranges have length 1."""
_RIDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Noise of that function as a share of its variance."""


@dataclass(frozen=True)
class SearchEffect:
    """The test of a knob's effect over the configurations of a search."""

    p_value: float
    inside: tuple[bool, ...]
    """Configurations in the range of the knob that differs most from the others."""
    difference: float
    """Mean inside minus mean outside, without what the other knobs explain."""


def judge_search_effect(places: Array, others: Array, means: Array, seed: int = 0) -> SearchEffect | None:
    """Test whether a knob moves the means of searched configurations; None with fewer than 8 of them, or one value.

    Args:
        places: (cells, columns), positions of the knob from 0 to 1: one column for numbers, one per name for names.
        others: (cells, columns), positions of the other knobs; no column without others.
        means: (cells,), means over seeds, all finite.
        seed: Seed of the permutations.
    """
    if len(means) < _LEAST_CELLS:
        return None
    inside = _ranges(places)
    if not len(inside):
        return None
    residuals = _residuals(others, means)
    count, total = inside.sum(1, keepdims=True), len(means)
    contrasts = np.where(inside, 1 / count, -1 / (total - count))
    scaled = contrasts * np.sqrt(count * (total - count) / total)
    rng = np.random.default_rng(seed)
    orders = rng.permuted(np.tile(np.arange(total), (_PERMUTATIONS, 1)), axis=1)
    observed = np.abs(scaled @ residuals)
    permuted = np.abs(scaled @ residuals[orders].T).max(0)
    most = int(observed.argmax())
    as_large = permuted >= observed[most] * (1 - 1e-9)
    p_value = float((1 + as_large.sum()) / (1 + _PERMUTATIONS))
    return SearchEffect(p_value, tuple(inside[most].tolist()), float(contrasts[most] @ residuals))


def _ranges(places: Array) -> Array:
    """Return which cells lie in each range of the knob, or have each name; with at least 2 cells inside and outside."""
    if places.shape[1] > 1:
        inside = places.T > 0.5
    else:
        ends = np.unique(places[:, 0])
        if len(ends) > _MOST_ENDS:
            ends = np.quantile(ends, np.linspace(0, 1, _MOST_ENDS))
        first, last = np.triu_indices(len(ends))
        inside = (places[:, 0] >= ends[first, None]) & (places[:, 0] <= ends[last, None])
    count = inside.sum(1)
    return np.asarray(inside[(count >= 2) & (count <= len(places) - 2)])


def _residuals(others: Array, values: Array) -> Array:
    """Return the cells' means without what a smooth function of the other knobs explains.

    Of the listed scales and ridges, the function has those with the largest restricted likelihood.
    """
    cells = len(values)
    centre = np.eye(cells) - 1 / cells
    left: Array = values - values.mean()
    if not others.shape[1]:
        return left
    distance = np.sqrt(((others[:, None] - others[None]) ** 2).sum(-1))
    basis = np.linalg.svd(centre)[0][:, : cells - 1]
    best = -math.inf
    for scale in _SCALES:
        near = math.sqrt(3) * distance / scale
        roots, vectors = np.linalg.eigh(basis.T @ ((1 + near) * np.exp(-near)) @ basis)
        turned = basis @ vectors
        for ridge in _RIDGES:
            spread = np.maximum(roots, 0) + ridge
            parts = turned.T @ values
            size = (parts**2 / spread).mean()
            likelihood = -((cells - 1) * math.log(max(size, 1e-300)) + np.log(spread).sum())
            if likelihood > best:
                best, left = likelihood, turned @ (parts * ridge / spread)
    return left
