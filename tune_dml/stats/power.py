"""What a number of seeds can show: the smallest detectable difference, and the seeds that a margin needs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import nct

from tune_dml.stats.critical import studentized_range

MOST_SEEDS = 1000


def half_width(*, seeds: int, sd: float, cells: int = 2, confidence: float = 0.95) -> float:
    """Half the simultaneous interval of a difference: q(cells, df) sd / sqrt(seeds), df = (cells-1)(seeds-1).

    `sd` is the noise of one trial after removing the seed effect. Infinite with one seed: it gives no noise estimate.
    """
    if seeds < 2 or cells < 2:
        return math.inf
    df = (cells - 1) * (seeds - 1)
    return studentized_range(cells, df, confidence) * sd / math.sqrt(seeds)


def detectable_difference(
    *, seeds: int, sd: float, cells: int = 2, power: float = 0.8, confidence: float = 0.95
) -> float:
    """The smallest true difference of one pair whose interval excludes 0 with probability `power`.

    Solves P(|t'| > q / sqrt 2) = power, t' noncentral t with df = (cells-1)(seeds-1) and centre d / (sd sqrt(2/seeds)).
    """
    if seeds < 2 or cells < 2:
        return math.inf
    if sd == 0:
        return 0.0
    df = (cells - 1) * (seeds - 1)
    bound = studentized_range(cells, df, confidence) / math.sqrt(2)

    def shortfall(centre: float) -> float:
        far = float(np.nan_to_num(nct.cdf(-bound, df, centre)))  # scipy gives NaN where the far tail underflows
        return float(nct.sf(bound, df, centre)) + far - power

    top = 2 * bound + 10
    while shortfall(top) < 0:
        top *= 2
    return float(brentq(shortfall, 1e-6, top, xtol=1e-8)) * sd * math.sqrt(2 / seeds)


def seeds_needed(
    *, margin: float, sd: float, cells: int = 2, difference: float = 0.0, confidence: float = 0.95
) -> int | None:
    """The seeds after which the verdict falls, if the largest difference and the noise stay as given.

    A `difference` below the margin aims at "insensitive" (|d| + half width < margin), above it at "sensitive"
    (|d| - half width > margin). None when more than 1000 would be needed: the difference sits on the margin.
    """
    gaps = np.array([abs(abs(difference) - margin)])
    return seeds_to_decide(gaps, np.array([sd]), cells=cells, confidence=confidence, every=True)


def seeds_to_decide(
    gaps: NDArray[np.float64],
    noise: NDArray[np.float64],
    *,
    cells: int,
    confidence: float = 0.95,
    every: bool,
    start: int = 2,
) -> int | None:
    """The fewest seeds at which q noise / sqrt(seeds) < gap holds for every pair, or (`every=False`) for some pair.

    Bisection: the half width falls monotonically with the number of seeds.
    """
    # One pair decides: the half width per unit of noise must fall below its gap, the narrowest or the widest of all.
    without_noise = np.where(gaps > 0, np.inf, -np.inf)
    room = np.divide(gaps, noise, out=without_noise, where=noise > 0)
    limit = float(room.min() if every else room.max())

    def enough(seeds: int) -> bool:
        return half_width(seeds=seeds, sd=1.0, cells=cells, confidence=confidence) < limit

    low, high = max(2, start), MOST_SEEDS
    if enough(low):
        return low
    if not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
