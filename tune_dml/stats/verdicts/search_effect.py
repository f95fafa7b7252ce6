"""Permutation test of a searched knob's effect, over the configurations of a search.

No two configurations of a search agree in all other knobs, so a knob's values cannot be compared directly. But if the
knob had no effect, its values would be exchangeable among the configurations. The test first subtracts from the
configurations' means a smooth function of the other knobs. Its statistic is the largest difference between the
configurations inside and outside a range of the knob, or with and without one of its names. The distribution of the
statistic comes from permutations of the knob's values.

The test is exact if the knob's values were drawn independently of the results (random search). An adaptive search
positions later configurations where earlier results were good; docs/verdicts.md has the error rates by search method.
"""

import math
from dataclasses import dataclass

import numpy as np

from tune_dml.stats.intervals import Array, without_rounding

_MIN_CELLS, _MAX_CELLS = 8, 1000  # of more configurations a random sample is tested; the time grows with their cube
_PERMUTATIONS = 4999
_MAX_ENDS = 24  # maximum number of ends of the compared ranges
_SCALES = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0)
"""Length scales of the function of the other knobs, whose ranges have length 1."""
_RIDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Noise of that function as a share of its variance."""


@dataclass(frozen=True)
class SearchEffect:
    """The test of a knob's effect over the configurations of a search."""

    p_value: float
    inside: tuple[bool, ...]  # tested configurations in the range of the knob that differs most from the others
    difference: float
    """Mean inside minus mean outside the range, after subtracting the function of the other knobs."""


def judge_search_effect(positions: Array, others: Array, means: Array) -> SearchEffect | None:
    """Test whether a knob changes the means of searched configurations; None if there are fewer than 8, or one value.

    Args:
        positions: (cells, columns), positions of the knob from 0 to 1: one column for numbers, one per name for names.
        others: (cells, columns), positions of the other knobs; without other knobs there are no columns.
        means: (cells,), means over seeds, all finite.
    """
    if len(means) < _MIN_CELLS:
        return None
    sample = np.random.default_rng(0).permutation(len(means)) < _MAX_CELLS
    positions, others, means = positions[sample], others[sample], means[sample]
    inside = _ranges(positions)
    if not len(inside):
        return None
    residuals = _residuals(others, means)
    count, total = inside.sum(1, keepdims=True), len(means)
    contrasts = np.where(inside, 1 / count, -1 / (total - count))
    scaled = contrasts * np.sqrt(count * (total - count) / total)
    rng = np.random.default_rng(0)
    orders = rng.permuted(np.tile(np.arange(total), (_PERMUTATIONS, 1)), axis=1)
    # a range and the rest of the knob differ equally; the first of them is named on every processor
    observed = without_rounding(np.abs(scaled @ residuals), 1e3 * np.abs(means).max())
    permuted = np.abs(scaled @ residuals[orders].T).max(0)
    largest = int(observed.argmax())
    as_large = permuted >= observed[largest] * (1 - 1e-9)
    p_value = float((1 + as_large.sum()) / (1 + _PERMUTATIONS))
    sample[sample] = inside[largest]
    return SearchEffect(p_value, tuple(sample.tolist()), float(contrasts[largest] @ residuals))


def _ranges(positions: Array) -> Array:
    """Return (ranges, cells): the cells in each range of the knob, or with each name.

    Each range has at least two cells inside and two outside.
    """
    if positions.shape[1] > 1:
        inside = positions.T > 0.5
    else:
        ends = np.unique(positions[:, 0])
        if len(ends) > _MAX_ENDS:
            ends = np.quantile(ends, np.linspace(0, 1, _MAX_ENDS))
        first, last = np.triu_indices(len(ends))
        inside = (positions[:, 0] >= ends[first, None]) & (positions[:, 0] <= ends[last, None])
    count = inside.sum(1)
    return np.asarray(inside[(count >= 2) & (count <= len(positions) - 2)])


def _residuals(others: Array, values: Array) -> Array:
    """Return the cells' means minus a smooth function of the other knobs.

    The function has the scale and ridge with the largest restricted likelihood.
    """
    cells = len(values)
    centre = np.eye(cells) - 1 / cells
    residuals: Array = values - values.mean()
    if not others.shape[1]:
        return residuals
    distance = np.sqrt(((others[:, None] - others[None]) ** 2).sum(-1))
    basis = np.linalg.svd(centre)[0][:, : cells - 1]
    best = -math.inf
    for scale in _SCALES:
        scaled = math.sqrt(3) * distance / scale
        roots, vectors = np.linalg.eigh(basis.T @ ((1 + scaled) * np.exp(-scaled)) @ basis)
        rotated = basis @ vectors
        for ridge in _RIDGES:
            spread = np.maximum(roots, 0) + ridge
            parts = rotated.T @ values
            size = (parts**2 / spread).mean()
            likelihood = -((cells - 1) * math.log(max(size, 1e-300)) + np.log(spread).sum())
            if likelihood > best:
                best, residuals = likelihood, rotated @ (parts * ridge / spread)
    return residuals
