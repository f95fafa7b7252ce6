"""Posterior probability that each cell is the best, shown beside the verdict.

The posterior of the cells' means, up to what all of them share, under a flat prior and the noise of their differences as
`noise` has it (unequal, correlated, moderated):

    theta ~ t_df(mean, S),    S = -1/2 J V J,    V_ik = moderated variance of y_i - y_k / shared seeds

J removes the common shift (Gower). df is that of the typical pair. A cell's probability is the share of draws in which it is
the largest. A flat prior ignores how alike cells are, so large probabilities are a little too large if cells are nearly equal
(docs/log.md has the calibration).
"""

from __future__ import annotations

import numpy as np

from tune_dml.stats.intervals import Array, Mask
from tune_dml.stats.intervals.noise import PairNoise, fit_pairs

_DRAWS = 4000
"""Number of draws; a probability is then accurate to about one point."""
_FEW = 200
"""Maximum number of cells for which eigenvectors are computed."""


def p_best(values: Array, draws: int = _DRAWS, *, resolution: float = 0.0, noise: PairNoise | None = None) -> Array:
    """Return the probability that each row of a table (m, n) is the best; larger is better, and the random draws are fixed.

    Rows without values get 0. All are NaN if no two rows share two seeds. `noise` is the table's, if known already.
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
    """Return R with R R' = S; negative eigenvalues of S count as 0."""
    centre = np.eye(len(variances)) - 1 / len(variances)
    size, directions = np.linalg.eigh(-centre @ variances @ centre / 2)
    return np.asarray(directions * np.sqrt(np.maximum(size, 0.0)))


def _root_of_many(variances: Array) -> Array:
    """Return R with R R' = S + a common shift, which changes no rank; by Cholesky, ten times faster."""
    means = variances.mean(0)
    spread = (means[:, None] + means - means.mean() - variances) / 2
    try:
        return np.linalg.cholesky(spread + spread.trace() / len(spread))
    except np.linalg.LinAlgError:
        return _root(variances)
