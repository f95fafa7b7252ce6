"""Variance components: spread over seeds of sweeps in which a seed changes one source of chance, or all.

Of m cells under the same n seeds, a trial's variance has two parts: what a seed does to all cells alike, known by n - 1 degrees
of freedom, and what it does to one of them, known by more:

    var = MS_seed / m + (m - 1) / m MS_rest,   MS_seed = m var_j(mean_i y_ij) on n - 1,   MS_rest on epsilon (m - 1)(n - 1)

Intervals of such sums, and of the sum of several sources, are Graybill and Wang's (Journal of the American Statistical
Association 1980): each part's chi-squared limits, their distances from the estimate added in squares. They are exact for one
part. Satterthwaite's, and chi-squared on Box's epsilon for the whole, covered 81 to 93 % where they should 95 (docs/log.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tune_dml.stats.distributions import chi2_isf
from tune_dml.stats.intervals import Array
from tune_dml.stats.intervals.noise import fit_pairs, typical_noise


@dataclass(frozen=True)
class Spread:
    """Standard deviation with its interval; all NaN without an estimate."""

    sd: float = math.nan
    low: float = math.nan
    high: float = math.nan
    parts: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    """(variance, degrees of freedom) of the parts that add up to the square."""

    @property
    def known(self) -> bool:
        """Whether there is an estimate."""
        return bool(self.parts)


def _spread_of(parts: Sequence[tuple[float, float]], *, alpha: float = 0.05) -> Spread:
    """Return the root of a sum of independent variances, each with its degrees of freedom."""
    if not parts:
        return Spread()
    variances, df = (np.array(column, dtype=np.float64) for column in zip(*parts, strict=True))
    total = float(variances.sum())
    below = variances * (1 - df / chi2_isf(alpha / 2, df))
    above = variances * (df / chi2_isf(1 - alpha / 2, df) - 1)
    low, high = total - math.hypot(*below), total + math.hypot(*above)
    return Spread(math.sqrt(total), math.sqrt(max(low, 0.0)), math.sqrt(high), tuple(parts))


def trial_spread(values: Array, *, alpha: float = 0.05) -> Spread:
    """Return the spread of one trial, over the seeds that every cell has; values (m, n), NaN for holes."""
    whole = values[:, np.isfinite(values).all(0)]
    m, n = whole.shape
    if n < 2 or not m:
        return Spread()
    parts = [(float(whole.mean(0).var(ddof=1)), n - 1.0)]
    if rest := typical_noise(fit_pairs(whole)) if m > 1 else None:
        parts.append(((m - 1) / m * rest[0] ** 2, float(rest[1])))
    return _spread_of(parts, alpha=alpha)


def difference_spread(values: Array, *, alpha: float = 0.05) -> Spread:
    """Return the typical spread of a difference of two cells under one seed; values (m, n), NaN for holes."""
    known = typical_noise(fit_pairs(values)) if len(values) > 1 else None
    return Spread() if known is None else _spread_of([(2 * known[0] ** 2, float(known[1]))], alpha=alpha)


def together(sources: Sequence[Spread], *, alpha: float = 0.05) -> Spread:
    """Return the spread of a sum of independent sources; unknown unless all are known."""
    known = all(source.known for source in sources)
    return _spread_of([part for source in sources for part in source.parts] if known else (), alpha=alpha)
