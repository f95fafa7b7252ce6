"""What a number of seeds can show: the smallest detectable difference, and the seeds that a verdict needs.

The critical value of a difference is that of `simultaneous` for noise whose departure from equality is `epsilon`: the larger
of the family's and the pair's own. That of "no difference is as large as the margin" is the pair's own, on one side.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.stats import nct
from scipy.stats import t as student

from tune_dml.stats.noise import PairNoise
from tune_dml.stats.simultaneous import GUARD_SHARE

MOST_SEEDS = 1000


def half_width(*, seeds: int, sd: float, cells: int = 2, alpha: float = 0.05) -> float:
    """Half the simultaneous interval of a difference, for equal noise; infinite with one seed: it tells nothing of noise.

    `sd` is the noise of one trial after removing the seed effect.
    """
    return _critical(seeds, cells, alpha, 1.0)[0] * sd * math.sqrt(2 / max(seeds, 1))


def detectable_difference(*, seeds: int, sd: float, cells: int = 2, power: float = 0.8, alpha: float = 0.05) -> float:
    """The smallest true difference of one pair whose interval excludes 0 with probability `power`, for equal noise.

    Solves P(|t'| > critical value) = power, t' noncentral t with its degrees of freedom and centre d / (sd sqrt(2/seeds)).
    """
    if seeds < 2 or cells < 2:
        return math.inf
    if sd == 0:
        return 0.0
    bound, df = _critical(seeds, cells, alpha, 1.0)

    def shortfall(centre: float) -> float:
        far = float(np.nan_to_num(nct.cdf(-bound, df, centre)))  # scipy gives NaN where the far tail underflows
        return float(np.nan_to_num(nct.sf(bound, df, centre), nan=1.0)) + far - power

    top = 2 * bound + 10
    while shortfall(top) < 0:
        top *= 2
    return float(brentq(shortfall, 1e-6, top, xtol=1e-8)) * sd * math.sqrt(2 / seeds)


def seeds_to_decide(noise: PairNoise, margin: float, start: int, level: Callable[[int], float]) -> int | None:
    """The fewest seeds, `start` or more, at which today's estimates and noise would give a verdict; None beyond 1000.

    `level` is the error that a look at so many seeds may spend. Bisection: half-widths fall with the number of seeds.
    """
    pairs = np.triu(noise.testable)
    size, sd = np.abs(noise.estimate[pairs]), np.sqrt(noise.variance[pairs])
    sensitive = bool((size > margin).any())
    gaps = size - margin if sensitive else margin - size
    room = np.divide(gaps, sd, out=np.where(gaps > 0, np.inf, -np.inf), where=sd > 0)
    limit = float(room.max() if sensitive else room.min())
    cells, epsilon = len(noise.shared), float(np.nan_to_num(noise.epsilon))

    def enough(seeds: int) -> bool:
        alone = float(student.isf(level(seeds), seeds - 1))
        critical = _critical(seeds, cells, level(seeds), epsilon)[0] if sensitive else alone
        return critical / math.sqrt(seeds) < limit

    low, high = max(2, start), MOST_SEEDS
    if enough(low):
        return low
    if not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _critical(seeds: int, cells: int, alpha: float, epsilon: float) -> tuple[float, float]:
    """The multiple of a difference's standard error that an interval reaches, and its degrees of freedom."""
    if seeds < 2 or cells < 2:
        return math.inf, 0.0
    own = seeds - 1
    comparisons = cells * (cells - 1) // 2
    borrowed = max(epsilon * (cells - 1) - 1, 0) * max(own - 1, 0)
    share = GUARD_SHARE if comparisons > 1 else 1.0
    family = (float(student.isf(alpha / (2 * comparisons), borrowed + own)), borrowed + own)
    return max(family, (float(student.isf(share * alpha / 2, own)), float(own)))
