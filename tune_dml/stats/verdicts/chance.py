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

from tune_dml.stats.intervals import Array, Mask
from tune_dml.stats.intervals.noise import PairNoise, fit_pairs

_DRAWS = 4000
"""A probability is then known to about one point."""
_FEW = 200
"""Up to so many cells eigenvectors cost nothing."""


def p_best(values: Array, draws: int = _DRAWS, *, resolution: float = 0.0, noise: PairNoise | None = None) -> Array:
    """The probability of being the best of each row of one table (m, n), larger better; the same table, the same numbers.

    `noise`: the table's, where it is known already.

    0 for a row without a number; all NaN where no two rows share two seeds, because nothing is known of the noise.
    """
    rows = np.flatnonzero(np.isfinite(values).any(1))
    chances = np.zeros(len(values))
    if len(rows) < 2:
        return np.full(len(values), np.nan) if not len(rows) else _sure(chances, rows)
    if noise is None or len(rows) < len(values):
        noise = fit_pairs(values[rows], resolution)
    if not noise.testable.any():
        return np.full(len(values), np.nan)
    chances[rows] = _largest(noise.estimate, _variances(noise.variance, noise.shared, noise.testable), noise.df, draws)
    return chances


def _sure(chances: Array, rows: NDArray[np.intp]) -> Array:
    chances[rows] = 1.0
    return chances


def _variances(variance: Array, shared: Array, testable: Mask) -> Array:
    """Of the mean difference of each pair; a pair that shares too few seeds takes the largest that is known."""
    squared = np.divide(variance, shared, out=np.full_like(variance, np.nan), where=testable)
    known = np.where(testable, squared, np.nan)
    filled = np.where(testable, squared, np.nanmax(known))
    return np.asarray(np.where(np.eye(len(variance), dtype=bool), 0.0, filled))


def _largest(estimate: Array, variances: Array, df: Array, draws: int) -> Array:
    m = len(estimate)
    root = _root(variances) if m <= _FEW else _root_of_many(variances)
    degrees = float(np.median(df[~np.eye(m, dtype=bool)]))
    random = np.random.default_rng(0)
    heavy = np.sqrt(degrees / random.chisquare(max(degrees, 1.0), size=(draws, 1)))
    drawn = np.nanmean(np.where(np.eye(m, dtype=bool), 0.0, estimate), axis=1) + heavy * (
        random.standard_normal((draws, m)) @ root.T
    )
    return np.bincount(drawn.argmax(1), minlength=m) / draws


def _root(variances: Array) -> Array:
    """R with R R' = S, what of S is negative left out."""
    centre = np.eye(len(variances)) - 1 / len(variances)
    size, directions = np.linalg.eigh(-centre @ variances @ centre / 2)
    return np.asarray(directions * np.sqrt(np.maximum(size, 0.0)))


def _root_of_many(variances: Array) -> Array:
    """The same but for a shift common to all cells, which changes no rank and makes S positive definite, as a rule.

    Cholesky's root is had in a tenth of the time that eigenvectors take.
    """
    means = variances.mean(0)
    spread = (means[:, None] + means - means.mean() - variances) / 2
    try:
        return np.linalg.cholesky(spread + spread.trace() / len(spread))
    except np.linalg.LinAlgError:
        return _root(variances)
