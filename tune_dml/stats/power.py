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
from tune_dml.stats.resolution import least_variance
from tune_dml.stats.simultaneous import GUARD_SHARE

MOST_SEEDS = 1000
_EIGHTY = 1.2816
"""Standard errors on each side of an 80% interval."""


def half_width(*, seeds: int, sd: float, cells: int = 2, alpha: float = 0.05, comparisons: int | None = None) -> float:
    """Half the simultaneous interval of a difference, for equal noise; infinite with one seed: it tells nothing of noise.

    `sd` is the noise of one trial after removing the seed effect. `comparisons` share the error: all pairs unless given.
    """
    return _critical(seeds, cells, alpha, 1.0, comparisons)[0] * sd * math.sqrt(2 / max(seeds, 1))


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
    bound, df = _critical(seeds, cells, alpha, 1.0, comparisons)

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


def seeds_to_decide(noise: PairNoise, margin: float, start: int, level: Callable[[int], float]) -> int | None:
    """The fewest seeds, `start` or more, at which today's estimates and noise would give a verdict; None beyond 1000.

    `level` is the error that a look at so many seeds may spend.
    """
    return _fewest(noise, *_room(noise, margin), start, level)


def range_to_decide(
    noise: PairNoise, margin: float, start: int, level: Callable[[int], float]
) -> tuple[int | None, int | None]:
    """`seeds_to_decide` at both ends of the 80% interval of the gap that decides, counted in standard deviations.

    With n seeds so far its standard error is sqrt(1/n + gap^2 / (2 (n - 1))), that of a standardised mean.
    """
    gap, sensitive = _room(noise, margin)
    seeds = max(2, start - 1)
    error = _EIGHTY * math.sqrt(1 / seeds + gap**2 / (2 * (seeds - 1))) if math.isfinite(gap) else 0.0
    low, high = (_fewest(noise, end, sensitive, start, level) for end in (gap + error, gap - error))
    return low, high


def chance_to_decide(noise: PairNoise, margin: float, seeds: int, planned: int, alpha: float) -> float:
    """The chance that a look at `planned` seeds gives a verdict that `seeds` leave open, by the pair that decides."""
    gap, sensitive = _room(noise, margin)
    return _predicted(gap, _multiple(noise, sensitive, planned, alpha), seeds, planned)


def chance_of_difference(noise: PairNoise, pair: tuple[int, int], seeds: int, planned: int, alpha: float) -> float:
    """The chance that the interval of a pair's difference, at `planned` seeds, excludes 0 on the side where it is now."""
    size, sd = abs(float(noise.estimate[pair])), math.sqrt(float(noise.variance[pair]))
    gap = size / sd if sd > 0 else math.inf
    return _predicted(gap, _multiple(noise, True, planned, alpha), seeds, planned)


def _predicted(gap: float, multiple: float, seeds: int, planned: int) -> float:
    """P(mean over `planned` seeds > multiple / sqrt(planned)), of differences with the mean `gap` over `seeds`; sd is 1.

    Predictive, under a flat prior: the mean over all planned seeds is gap + sqrt(1/seeds - 1/planned) t, t of seeds - 1
    degrees of freedom.
    """
    if seeds < 2 or planned <= seeds or not math.isfinite(gap):
        return math.nan
    spread = math.sqrt(1 / seeds - 1 / planned)
    return float(student.sf((multiple / math.sqrt(planned) - gap) / spread, seeds - 1))


def _room(noise: PairNoise, margin: float) -> tuple[float, bool]:
    """The gap to the margin that decides, in standard deviations, and whether it would decide for `sensitive`."""
    pairs = np.triu(noise.testable)
    size, sd = np.abs(noise.estimate[pairs]), np.sqrt(noise.variance[pairs])
    sensitive = bool((size > margin).any())
    gaps = size - margin if sensitive else margin - size
    room = np.divide(gaps, sd, out=np.where(gaps > 0, np.inf, -np.inf), where=sd > 0)
    return float(room.max() if sensitive else room.min()), sensitive


def _fewest(noise: PairNoise, gap: float, sensitive: bool, start: int, level: Callable[[int], float]) -> int | None:
    """The fewest seeds whose half-width is below `gap` standard deviations. Bisection: it falls with the number of seeds."""

    def enough(seeds: int) -> bool:
        return _multiple(noise, sensitive, seeds, level(seeds)) / math.sqrt(seeds) < gap

    low, high = max(2, start), MOST_SEEDS
    if enough(low):
        return low
    if not enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _multiple(noise: PairNoise, sensitive: bool, seeds: int, alpha: float) -> float:
    """Standard errors by which a difference must clear the margin: simultaneous, or of a pair alone on one side."""
    if not sensitive:
        return float(student.isf(alpha, seeds - 1))
    return _critical(seeds, len(noise.shared), alpha, float(np.nan_to_num(noise.epsilon)))[0]


def _critical(
    seeds: int, cells: int, alpha: float, epsilon: float, comparisons: int | None = None
) -> tuple[float, float]:
    """The multiple of a difference's standard error that an interval reaches, and its degrees of freedom."""
    if seeds < 2 or cells < 2:
        return math.inf, 0.0
    own = seeds - 1
    comparisons = comparisons or cells * (cells - 1) // 2
    borrowed = max(epsilon * (cells - 1) - 1, 0) * max(own - 1, 0)
    share = GUARD_SHARE if comparisons > 1 else 1.0
    family = (float(student.isf(alpha / (2 * comparisons), borrowed + own)), borrowed + own)
    return max(family, (float(student.isf(share * alpha / 2, own)), float(own)))
