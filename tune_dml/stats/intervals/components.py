"""Variance components: the spread over seeds in sweeps whose seeds change one source of randomness, or all sources.

With m cells and n shared seeds, a trial's variance has two parts. The seed effect common to all cells has n - 1 degrees
of freedom, the rest has more:

    var = MS_seed / m + (m - 1) / m MS_rest
    MS_seed = m var_j(mean_i y_ij) on n - 1,   MS_rest on epsilon (m - 1)(n - 1)

Intervals of such sums, and of the sum of several sources, are Graybill and Wang's (Journal of the American Statistical
Association 1980): the distances of each part's chi-squared limits from the estimate are added in squares. They are
exact for one part. Satterthwaite's intervals, and chi-squared with Box's epsilon for the sum, covered 81 to 93 %
instead of 95 % (docs/log.md).

The more heavily tailed the noise, the less its variance is known: with excess kurtosis k and N values,

    Var MS_rest / (true variance)^2 = 2 / df + k / N,    so df falls to 2 / (2 / df + k / N)

Few seeds hardly show k, so the kurtosis of Student's t with 7 degrees of freedom, 2, is added to the one they show.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tune_dml.stats.distributions import chi2_isf
from tune_dml.stats.intervals import Array
from tune_dml.stats.intervals.contrasts import fill_holes
from tune_dml.stats.intervals.noise import fit_pairs, typical_noise

_KURTOSIS = 2.0  # excess kurtosis that is assumed in addition to the one shown


@dataclass(frozen=True)
class Spread:
    """Standard deviation with its 95 % interval; all NaN without an estimate."""

    sd: float = math.nan
    low: float = math.nan
    high: float = math.nan
    parts: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    """(variance, degrees of freedom) of each part; the variances add up to the square of `sd`."""

    @property
    def is_known(self) -> bool:
        """Whether there is an estimate."""
        return bool(self.parts)


def _spread_of(parts: Sequence[tuple[float, float]]) -> Spread:
    """Return the spread whose square is a sum of independent variances, each with its degrees of freedom."""
    if not parts:
        return Spread()
    variances, df = (np.array(column, dtype=np.float64) for column in zip(*parts, strict=True))
    total = float(variances.sum())
    below = variances * (1 - df / chi2_isf(0.025, df))
    above = variances * (df / chi2_isf(0.975, df) - 1)
    low, high = total - math.hypot(*below), total + math.hypot(*above)
    return Spread(math.sqrt(total), math.sqrt(max(low, 0.0)), math.sqrt(high), tuple(parts))


def trial_spread(values: Array) -> Spread:
    """Return the spread of one trial, from the seeds that every cell has; values (m, n), NaN for holes."""
    complete = values[:, np.isfinite(values).all(0)]
    m, n = complete.shape
    if n < 2 or not m:
        return Spread()
    parts = [(float(complete.mean(0).var(ddof=1)), n - 1.0)]
    if noise := typical_noise(fit_pairs(complete)) if m > 1 else None:
        parts.append(((m - 1) / m * noise[0] ** 2, _df_with_tails(complete, noise[1])))
    return _spread_of(parts)


def difference_spread(values: Array) -> Spread:
    """Return the typical spread of a difference of two cells under one seed; values (m, n), NaN for holes."""
    noise = typical_noise(fit_pairs(values)) if len(values) > 1 else None
    return Spread() if noise is None else _spread_of([(2 * noise[0] ** 2, _df_with_tails(values, noise[1]))])


def _df_with_tails(values: Array, df: int) -> float:
    """Return the degrees of freedom of the noise's variance, reduced for heavy tails; at least 1."""
    filled, present = fill_holes(values)
    residuals = filled - filled.mean(0) - filled.mean(1, keepdims=True) + filled.mean()
    squares = residuals[present > 0] ** 2
    if not squares.any():
        return float(df)
    free = (len(values) - 1) * (values.shape[1] - 1) / values.size  # residuals look more normal than the noise
    excess = max(float((squares**2).mean() / squares.mean() ** 2) - 3, 0.0) / free
    return max(float(2 / (2 / df + (excess + _KURTOSIS) / len(squares))), 1.0)


def sum_of_spreads(sources: Sequence[Spread]) -> Spread:
    """Return the spread of a sum of independent sources; unknown unless all are known."""
    all_known = all(source.is_known for source in sources)
    return _spread_of([part for source in sources for part in source.parts] if all_known else ())
