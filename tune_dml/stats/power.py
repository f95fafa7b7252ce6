"""Power analysis: the differences that a planned number of seeds can detect, for equal noise.

The critical value of a difference is that of `simultaneous`: the larger of the family's and the pair's own. `forecast`
instead predicts the verdicts of further seeds of a running sweep.

The noise estimated from a stored sweep is uncertain: with f degrees of freedom the true value lies between

    sd sqrt(f / chi2(1 - a / 2; f))   and   sd sqrt(f / chi2(a / 2; f))

with confidence 1 - a. Seeds planned for the upper end suffice with assurance 1 - a / 2 (O'Hagan, Stevens, Campbell,
Assurance in clinical trial design, Pharmaceutical Statistics 2005).
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from tune_dml.stats.distributions import chi2_isf, noncentral_t_cdf, root, student_isf
from tune_dml.stats.intervals.resolution import variance_floor
from tune_dml.stats.intervals.simultaneous import GUARD_SHARE
from tune_dml.stats.intervals.tuned import TunedLevels

MAX_SEEDS = 1000
_POWER = 0.8


def half_width(
    *, seeds: int, sd: float, cells: int = 2, alpha: float = 0.05, comparisons: int | None = None, settings: int = 1
) -> float:
    """Return half the simultaneous interval of a difference, for equal noise; infinite with one seed.

    `sd` is the noise of one trial after removing the seed effect. `comparisons` is the number of comparisons that share
    the error; the default is that of all pairs. With several `settings`, each cell is a level that is tuned over them
    (`tuned`). The width is then the largest possible one: a setting that is significantly beaten does not share the
    error.
    """
    return _critical(seeds, cells, alpha, comparisons, settings)[0] * sd * math.sqrt(2 / max(seeds, 1))


def detectable_difference(
    *, seeds: int, sd: float, cells: int = 2, alpha: float = 0.05, comparisons: int | None = None
) -> float:
    """Return the smallest true difference whose interval excludes 0 with probability 0.8, for equal noise.

    Solves P(|t'| > critical value) = 0.8 for d, where t' is non-central t with centre d / (sd sqrt(2 / seeds)).
    """
    if seeds < 2 or cells < 2:
        return math.inf
    bound, df = _critical(seeds, cells, alpha, comparisons)

    def shortfall(centre: float) -> float:
        return 1 - noncentral_t_cdf(bound, df, centre) + noncentral_t_cdf(-bound, df, centre) - _POWER

    top = 2 * bound + 10
    while shortfall(top) < 0:
        top *= 2
    return root(shortfall, 1e-6, top, 1e-8) * sd * math.sqrt(2 / seeds)


def fewest_seeds(*, resolution: float, margin: float, alpha: float = 0.05) -> int | None:
    """Return the fewest seeds that show a difference of 0 to be below the margin; None if more than 1000 are needed."""
    sd = math.sqrt(2 * variance_floor(resolution))
    return next((n for n in range(2, MAX_SEEDS + 1) if student_isf(alpha, n - 1) * sd < margin * math.sqrt(n)), None)


def _critical(
    seeds: int, cells: int, alpha: float, comparisons: int | None = None, settings: int = 1
) -> tuple[float, float]:
    """Return the critical value of a difference, and its degrees of freedom."""
    if seeds < 2 or cells < 2:
        return math.inf, 0.0
    own = seeds - 1
    comparisons = (comparisons or cells * (cells - 1) // 2) * settings
    borrowed = (cells * settings - 2) * max(own - 1, 0)
    share = GUARD_SHARE if comparisons > 1 else 1.0
    family = (float(student_isf(alpha / (2 * comparisons), borrowed + own)), borrowed + own)
    return max(family, (float(student_isf(share * alpha / 2, own)), float(own)))


_RUNS = 400  # simulated sweeps per scenario; a probability is then accurate to 0.025
_MAX_CELLS, _MAX_SETTINGS = 60, 3
"""Maximum numbers of simulated settings of all levels, and of those of a level if there are many levels."""
_CONFIDENCE = 0.6  # confidence of the range of the noise; its upper end gives an assurance of 0.8


@dataclass(frozen=True)
class VerdictChances:
    """Probability of each verdict if one level differs from all others by `difference`."""

    difference: float
    matters: float
    does_not_matter: float

    @property
    def undecided(self) -> float:
        """Probability of neither verdict."""
        return max(0.0, 1 - self.matters - self.does_not_matter)


def verdict_chances(
    *,
    levels: int,
    seeds: int,
    sd: float,
    margin: float,
    difference: float,
    alpha: float = 0.05,
    settings: int = 1,
    runs: int = _RUNS,
) -> VerdictChances:
    """Simulate sweeps of normal noise `sd` (seed effect removed) and judge each as `verdicts.sensitivity` does.

    With several `settings` each level is tuned over them. All of them are equally good, which is the hardest case. Of
    more than 60 settings of all levels only 60 are simulated, which makes a verdict too probable.
    """
    levels = min(levels, _MAX_CELLS // max(1, min(settings, _MAX_SETTINGS)))
    settings = max(1, min(settings, _MAX_CELLS // levels)) if levels else 1
    if seeds < 2 or levels < 2:
        return VerdictChances(difference, 0.0, 0.0)
    values = sd * np.random.default_rng(0).standard_normal((runs, levels * settings, seeds))
    values[:, :settings] += difference
    tuned = TunedLevels(values, tuple(np.repeat(range(levels), settings).tolist()))
    bounds = tuned.pairs(alpha)
    first, second = np.triu_indices(levels, 1)
    low, high = bounds.low[:, first, second], bounds.high[:, first, second]
    matters = ((low > margin) | (high < -margin)).any(axis=1)
    equal = (tuned.at_most(alpha) < margin).all(axis=(1, 2))
    return VerdictChances(difference, float(matters.mean()), float(equal.mean()))


def _noise_range(sd: float, df: int) -> tuple[float, float]:
    """Return a confidence interval of the true noise, estimated as `sd` with `df` degrees of freedom."""
    tails = (1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2
    low, high = (sd * math.sqrt(df / float(chi2_isf(tail, df))) for tail in tails)
    return low, high


def seeds_range(
    *, margin: float, sd: float, df: int, levels: int, alpha: float = 0.05, settings: int = 1
) -> tuple[int | None, int | None]:
    """Return the numbers of seeds that distinguish equal levels from levels that differ by twice the margin.

    The two numbers are for the lower and the upper end of the noise range; None if more than 1000 seeds are needed. The
    second number suffices with assurance 0.8. Levels may be tuned over several `settings`.
    """

    def needed(noise: float) -> int | None:
        def enough(seeds: int) -> bool:
            return half_width(seeds=seeds, sd=noise, cells=max(levels, 2), alpha=alpha, settings=settings) <= margin

        count = 2 + bisect_left(range(2, MAX_SEEDS + 1), True, key=enough)
        return count if count <= MAX_SEEDS else None

    low, high = (needed(noise) for noise in _noise_range(sd, df))
    return low, high
