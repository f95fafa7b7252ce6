"""What planned seeds will show: the chance of each verdict, and the seeds that decide as a range.

The noise that a stored sweep measured is itself uncertain: with f degrees of freedom the true one lies between

    sd sqrt(f / chi2(1 - a / 2; f))   and   sd sqrt(f / chi2(a / 2; f))

with confidence 1 - a. Seeds planned for the upper end suffice with assurance 1 - a / 2 (O'Hagan, Stevens, Campbell, Assurance in
clinical trial design, Pharmaceutical Statistics 2005).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from tune_dml.stats.power import MOST_SEEDS, tuned_half_width
from tune_dml.stats.tuned import TunedLevels

_RUNS = 400
"""Simulated sweeps a scenario: a chance is known to 0.025."""
_MOST_LEVELS = 20
"""More levels are simulated as so many: a verdict's chance hardly changes beyond."""
_MOST_CELLS = 60
"""More settings are simulated as if there were fewer of each level."""
_CONFIDENCE = 0.6
"""Of the range of the noise: its upper end gives an assurance of 0.8."""


@dataclass(frozen=True)
class VerdictChances:
    """How often each verdict falls when one level truly differs from all others by `difference`."""

    difference: float
    matters: float
    does_not_matter: float

    @property
    def undecided(self) -> float:
        """Neither."""
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
    """Simulate sweeps of normal noise `sd` (seed effect removed) and judge each as `matters` does.

    With several `settings` each level is tuned over them, all equally good: hard to judge, because each may be the best.
    """
    levels = min(levels, _MOST_LEVELS)
    settings = max(1, min(settings, _MOST_CELLS // levels)) if levels else 1
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


def _noise_range(sd: float, df: int, confidence: float = _CONFIDENCE) -> tuple[float, float]:
    """Where the true noise lies that was measured as `sd` with `df` degrees of freedom."""
    low, high = (
        sd * math.sqrt(df / float(chi2.ppf(tail, df))) for tail in ((1 + confidence) / 2, (1 - confidence) / 2)
    )
    return low, high


def seeds_range(
    *, margin: float, sd: float, df: int, levels: int, alpha: float = 0.05, settings: int = 1
) -> tuple[int | None, int | None]:
    """Seeds that tell equal levels from levels twice the margin apart, at both ends of `noise_range`.

    By the formula of `power.tuned_half_width`, where each level is tuned over several `settings`. None where more than 1000 would
    be needed. The second suffices with assurance 0.8.
    """

    def needed(noise: float) -> int | None:
        def enough(seeds: int) -> bool:
            reach = tuned_half_width(seeds=seeds, sd=noise, levels=max(levels, 2), settings=settings, alpha=alpha)
            return reach <= margin

        found = 2 + bisect_left(range(2, MOST_SEEDS + 1), True, key=enough)
        return found if found <= MOST_SEEDS else None

    low, high = (needed(noise) for noise in _noise_range(sd, df))
    return low, high
