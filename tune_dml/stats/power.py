"""What a number of seeds can show before any has run: the smallest detectable difference, for equal noise.

The critical value of a difference is that of `simultaneous`: the larger of the family's and the pair's own. What further seeds
of a sweep will show is in `forecast`.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import nct
from scipy.stats import t as student

from tune_dml.stats.resolution import least_variance
from tune_dml.stats.simultaneous import GUARD_SHARE

MOST_SEEDS = 1000


def half_width(*, seeds: int, sd: float, cells: int = 2, alpha: float = 0.05, comparisons: int | None = None) -> float:
    """Half the simultaneous interval of a difference, for equal noise; infinite with one seed: it tells nothing of noise.

    `sd` is the noise of one trial after removing the seed effect. `comparisons` share the error: all pairs unless given.
    """
    return _critical(seeds, cells, alpha, comparisons)[0] * sd * math.sqrt(2 / max(seeds, 1))


def tuned_half_width(*, seeds: int, sd: float, levels: int, settings: int, alpha: float = 0.05) -> float:
    """Return `half_width` of levels that are tuned over so many settings each (`tuned`), all of which may be a level's best.

    That is the widest it can be: a setting that is certainly not the best takes no share of the error.
    """
    if settings < 2 or levels < 2 or seeds < 2:
        return half_width(seeds=seeds, sd=sd, cells=levels, alpha=alpha)
    own = seeds - 1
    df = own + max(levels * settings - 2, 0) * (own - 1)
    tail = alpha / (levels * (levels - 1) * settings)
    multiple = max(float(student.isf(tail, df)), float(student.isf(GUARD_SHARE * alpha / 2, own)))
    return multiple * sd * math.sqrt(2 / seeds)


def detectable_difference(
    *,
    seeds: int,
    sd: float,
    cells: int = 2,
    power: float = 0.8,
    alpha: float = 0.05,
    comparisons: int | None = None,
) -> float:
    """The smallest true difference of one pair whose interval excludes 0 with probability `power`, for equal noise.

    Solves P(|t'| > critical value) = power, t' noncentral t with its degrees of freedom and centre d / (sd sqrt(2/seeds)).
    """
    if seeds < 2 or cells < 2:
        return math.inf
    if sd == 0:
        return 0.0
    bound, df = _critical(seeds, cells, alpha, comparisons)

    def shortfall(centre: float) -> float:
        far = float(np.nan_to_num(nct.cdf(-bound, df, centre)))  # scipy gives NaN where the far tail underflows
        return float(np.nan_to_num(nct.sf(bound, df, centre), nan=1.0)) + far - power

    top = 2 * bound + 10
    while shortfall(top) < 0:
        top *= 2
    return float(brentq(shortfall, 1e-6, top, xtol=1e-8)) * sd * math.sqrt(2 / seeds)


def least_seeds(*, resolution: float, margin: float, alpha: float = 0.05) -> int | None:
    """The fewest seeds that show a difference to be below the margin, all of them equal; None beyond 1000."""
    sd = math.sqrt(2 * least_variance(resolution))
    return next((n for n in range(2, MOST_SEEDS + 1) if student.isf(alpha, n - 1) * sd < margin * math.sqrt(n)), None)


def _critical(seeds: int, cells: int, alpha: float, comparisons: int | None = None) -> tuple[float, float]:
    """The multiple of a difference's standard error that an interval reaches, and its degrees of freedom."""
    if seeds < 2 or cells < 2:
        return math.inf, 0.0
    own = seeds - 1
    comparisons = comparisons or cells * (cells - 1) // 2
    borrowed = (cells - 2) * max(own - 1, 0)
    share = GUARD_SHARE if comparisons > 1 else 1.0
    family = (float(student.isf(alpha / (2 * comparisons), borrowed + own)), borrowed + own)
    return max(family, (float(student.isf(share * alpha / 2, own)), float(own)))
