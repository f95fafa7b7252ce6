"""Posterior probability that each cell is the best, shown beside the verdict.

The prior is flat, and the noise of differences is that of `noise` (unequal, correlated, moderated). The posterior of
the cells' means, up to a common shift, is then

    theta ~ t_df(mean, S),    S = -1/2 J V J,    V_ik = moderated variance of y_i - y_k / shared seeds

J removes the common shift (Gower). df is that of the typical pair. A cell's probability is the share of draws in which
it is the largest; equal cells share a draw. A flat prior ignores how similar cells are, so large probabilities are
slightly too large if cells are nearly equal (docs/log.md has the calibration).
"""

import numpy as np

from tune_dml.stats.intervals import ROUNDING, Array, Mask
from tune_dml.stats.intervals.noise import PairNoise, fit_pairs

_DRAWS = 4000  # number of draws; a probability is then accurate to about one point
_MAX_EIGEN_CELLS = 200  # maximum number of cells for which eigenvectors are computed


def p_best(values: Array, draws: int = _DRAWS, *, resolution: float = 0.0, noise: PairNoise | None = None) -> Array:
    """Return the probability that each row of a table (m, n) is the best; larger is better.

    Rows without values get 0. All probabilities are NaN if no two rows share two seeds. `noise` is the noise of the
    table, if known already. Repeated calls give the same result, because the random draws are fixed.
    """
    rows = np.flatnonzero(np.isfinite(values).any(1))
    chances = np.zeros(len(values))
    if len(rows) == 1:
        chances[rows] = 1.0
        return chances
    if not len(rows):
        return np.full(len(values), np.nan)
    if noise is None or len(rows) < len(values):
        noise = fit_pairs(values[rows], resolution)
    if not noise.testable.any():
        return np.full(len(values), np.nan)
    chances[rows] = _largest(noise.estimate, _variances(noise.variance, noise.shared, noise.testable), noise.df, draws)
    return chances


def _variances(variance: Array, shared: Array, testable: Mask) -> Array:
    """Return the variance of each mean difference; untestable pairs get the largest known one."""
    squared = np.divide(variance, shared, out=np.full_like(variance, np.nan), where=testable)
    filled = np.where(testable, squared, np.nanmax(squared))
    return np.asarray(np.where(np.eye(len(variance), dtype=bool), 0.0, filled))


def _largest(estimate: Array, variances: Array, df: Array, draws: int) -> Array:
    """Return the share of draws from the posterior in which each cell is the largest."""
    m = len(estimate)
    root = _root(variances) if m <= _MAX_EIGEN_CELLS else _fast_root(variances)
    diagonal = np.eye(m, dtype=bool)
    typical_df = float(np.median(df[~diagonal]))
    rng = np.random.default_rng(0)
    scale = np.sqrt(typical_df / rng.chisquare(max(typical_df, 1.0), size=(draws, 1)))
    means = np.nanmean(np.where(diagonal, 0.0, estimate), axis=1)
    drawn = means + scale * (rng.standard_normal((draws, m)) @ root.T)
    equal = 2e-7 * scale * np.sqrt(variances.max()) + ROUNDING * np.abs(means).max()  # the root has an error of 1e-8
    largest = drawn >= drawn.max(1, keepdims=True) - equal
    return np.asarray((largest / largest.sum(1, keepdims=True)).mean(0))


def _root(variances: Array) -> Array:
    """Return R with R R' = S; negative eigenvalues of S count as 0.

    R is symmetric, so that draws do not depend on the signs of eigenvectors, which differ between processors.
    """
    centre = np.eye(len(variances)) - 1 / len(variances)
    size, directions = np.linalg.eigh(-centre @ variances @ centre / 2)
    return np.asarray((directions * np.sqrt(np.maximum(size, 0.0))) @ directions.T)


def _fast_root(variances: Array) -> Array:
    """Return R with R R' = S plus a common shift, which changes no rank; Cholesky's method is ten times faster."""
    means = variances.mean(0)
    spread = (means[:, None] + means - means.mean() - variances) / 2
    try:
        return np.linalg.cholesky(spread + spread.trace() / len(spread))
    except np.linalg.LinAlgError:
        return _root(variances)
