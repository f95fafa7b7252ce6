"""Implement earlier methods, compared by benchmarks/verdicts.py: pooled noise, Tukey, Dunnett, draws of cell means."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import multivariate_t, studentized_range
from scipy.stats import t as student

from tune_dml.stats.intervals.noise import fit_pairs

Array = NDArray[np.float64]


@cache
def tukey_multiple(cells: int, df: int, level: float) -> float:
    """Return the upper quantile of the studentized range, in standard errors of a difference."""
    return float(studentized_range.ppf(level, cells, df)) / math.sqrt(2)


@cache
def dunnett_multiple(comparisons: int, df: int, level: float) -> float:
    """Return Dunnett's two-sided critical value for equal numbers of seeds."""
    shape = np.full((comparisons, comparisons), 0.5) + 0.5 * np.eye(comparisons)
    draws = multivariate_t(np.zeros(comparisons), shape, df=df, seed=0).rvs(200_000)
    return float(np.quantile(np.abs(draws).max(-1), level))


def pooled_noise(values: Array) -> tuple[float, int]:
    """Return the pooled noise of a table without seed effects, and its degrees of freedom."""
    m, n = values.shape
    residual = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    df = (m - 1) * (n - 1)
    return math.sqrt(float((residual**2).sum()) / df), df


def draw_cell_means(values: Array, count: int) -> Array:
    """Draw cell means from pooled t noise, for optima and Kendall's tau."""
    sd, df = pooled_noise(values)
    random = np.random.default_rng(0)
    scale = np.sqrt(random.chisquare(df, count) / df)
    noise = random.standard_normal((count, len(values))) / scale[:, None]
    return np.asarray(values.mean(1) + sd / math.sqrt(values.shape[1]) * noise)


def earlier_interior(values: Array) -> bool:
    """Return whether an outermost cell is the best in at most 5 % of the draws."""
    best = draw_cell_means(values, 2000).argmax(1)
    return bool(np.isin(best, (0, len(values) - 1)).mean() <= 0.05)


def earlier_matches(values: Array, printed: Array) -> bool:
    """Return whether the prediction interval of every gap contains 0 if the paper's noise equals ours."""
    (m, n), (sd, df) = values.shape, pooled_noise(values)
    between = max(float(values.mean(0).var(ddof=1)) - sd**2 / m, 0.0)
    variance = between + sd**2
    bottom = (between**2 / (n - 1) if between else 0.0) + sd**4 / df
    reach = student.isf(0.025 / m, max(1.0, variance**2 / bottom)) * math.sqrt(variance * (1 / n + 1))
    return bool((np.abs(values.mean(1) - printed) <= reach).all())


def earlier_tau(values: Array, printed: Array) -> tuple[float, float]:
    """Return the 2.5 and 97.5 % quantiles of Kendall's tau over the draws."""
    i, k = np.triu_indices(len(printed), 1)
    drawn = draw_cell_means(values, 2000)
    taus = (np.sign(drawn[:, i] - drawn[:, k]) * np.sign(printed[i] - printed[k])).mean(1)
    low, high = np.quantile(taus, [0.025, 0.975])
    return float(low), float(high)


def earlier_claims(values: Array, alpha: float = 0.05, baseline: int | None = None) -> NDArray[np.bool_]:
    """Return whether Tukey's (or, with a baseline, Dunnett's) intervals claim any difference; for complete tables."""
    _, m, n = values.shape
    means = values.mean(-1)
    residual = values - means[..., None]
    residual = residual - residual.mean(1, keepdims=True)
    df = (m - 1) * (n - 1)
    typical = (residual**2).sum((1, 2)) / df
    own = np.repeat(typical[:, None], m, 1)
    if m > 2:
        own = np.maximum(m / (m - 2) * ((residual**2).sum(2) / (n - 1) - typical[:, None] / m), 0)
    error = np.sqrt(2 / n * np.maximum(typical[:, None, None], (own[:, :, None] + own[:, None, :]) / 2))
    gaps = np.abs(means[:, :, None] - means[:, None, :])
    if baseline is None:
        return np.asarray((gaps > tukey_multiple(m, df, 1 - alpha) * error).any((1, 2)))
    return np.asarray((gaps > dunnett_multiple(m - 1, df, 1 - alpha) * error)[:, baseline].any(1))


def earlier_advice(
    values: Array, margin: float, level: Callable[[int], float], resolution: float = 0.0
) -> tuple[int, float] | None:
    """Return the advised seeds and their forecast chance, from the deciding pair under a flat prior.

    Advise at most 60 seeds; return None if no such number would decide.
    """
    noise, seeds = fit_pairs(values, resolution), values.shape[1]
    pairs = np.triu(noise.testable)
    size, sd = np.abs(noise.estimate[pairs]), np.sqrt(noise.variance[pairs])
    sensitive = bool((size > margin).any())
    room = (size - margin if sensitive else margin - size) / sd
    gap = float(room.max() if sensitive else room.min())
    cells, epsilon = len(values), float(np.nan_to_num(noise.epsilon))
    for planned in range(seeds + 1, 61):
        own = planned - 1
        multiple = student.isf(level(planned), own)
        if sensitive:
            borrowed = max(epsilon * (cells - 1) - 1, 0) * max(own - 1, 0)
            family = student.isf(level(planned) / (cells * (cells - 1)), borrowed + own)
            multiple = max(family, student.isf(level(planned) / 3, own))
        if multiple / np.sqrt(planned) < gap:
            spread = np.sqrt(1 / seeds - 1 / planned)
            return planned, float(student.sf((multiple / np.sqrt(planned) - gap) / spread, seeds - 1))
    return None
