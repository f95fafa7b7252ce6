"""How probable is it that each cell is the best? A degree of belief beside the verdict, which bounds an error instead.

The posterior of the cells' means, up to what all of them share, under a flat prior and the noise of their differences as
`noise` has it (unequal, correlated, moderated):

    theta ~ t_df(mean, S),    S = -1/2 J V J,    V_ik = moderated variance of y_i - y_k / shared seeds

J takes out the common shift (Gower). df is that of the typical pair. The share of draws in which a cell is the largest is its
probability. A flat prior knows nothing of how alike cells are, so large probabilities are a little too sure where cells are
nearly equal (docs/log.md has the calibration).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.noise import fit_pairs

Array = NDArray[np.float64]

_DRAWS = 4000
"""A probability is then known to about one point."""


def p_best(values: Array, draws: int = _DRAWS, *, resolution: float = 0.0) -> Array:
    """The probability of being the best of each row of one table (m, n), larger better; the same table, the same numbers.

    0 for a row without a number; all NaN where no two rows share two seeds, because nothing is known of the noise.
    """
    rows = np.flatnonzero(np.isfinite(values).any(1))
    chances = np.zeros(len(values))
    if len(rows) < 2:
        return np.full(len(values), np.nan) if not len(rows) else _sure(chances, rows)
    noise = fit_pairs(values[rows], resolution)
    if not noise.testable.any():
        return np.full(len(values), np.nan)
    chances[rows] = _largest(noise.estimate, _variances(noise.variance, noise.shared, noise.testable), noise.df, draws)
    return chances


def _sure(chances: Array, rows: NDArray[np.intp]) -> Array:
    chances[rows] = 1.0
    return chances


def _variances(variance: Array, shared: Array, testable: NDArray[np.bool_]) -> Array:
    """Of the mean difference of each pair; a pair that shares too few seeds takes the largest that is known."""
    squared = np.divide(variance, shared, out=np.full_like(variance, np.nan), where=testable)
    known = np.where(testable, squared, np.nan)
    filled = np.where(testable, squared, np.nanmax(known))
    return np.asarray(np.where(np.eye(len(variance), dtype=bool), 0.0, filled))


def _largest(estimate: Array, variances: Array, df: Array, draws: int) -> Array:
    m = len(estimate)
    centre = np.eye(m) - 1 / m
    size, directions = np.linalg.eigh(-centre @ variances @ centre / 2)
    root = directions * np.sqrt(np.maximum(size, 0.0))
    degrees = float(np.median(df[~np.eye(m, dtype=bool)]))
    random = np.random.default_rng(0)
    heavy = np.sqrt(degrees / random.chisquare(max(degrees, 1.0), size=(draws, 1)))
    drawn = np.nanmean(np.where(np.eye(m, dtype=bool), 0.0, estimate), axis=1) + heavy * (
        random.standard_normal((draws, m)) @ root.T
    )
    return np.bincount(drawn.argmax(1), minlength=m) / draws
