"""Half-widths of many differences whose noise is unequal, from the distribution of the noise over all of them.

A pair's own variance s^2, on nu degrees of freedom, says little about its true variance v if seeds are few. How v is
distributed over all pairs says more. That distribution is estimated as a mixture over a grid (maximum likelihood, Robbins
1950), with one pseudo-observation that is spread over the whole grid. A difference d is then as far from 0 as

    P(|d| | s^2) = sum over v of P(v | s^2) 2 (1 - Phi(|d| sqrt(shared) / sqrt(v)))

so a noisy pair is recognised if other noisy pairs are, even where its own spread is small by chance (Ignatiadis and Sen
2025, empirical partially Bayes tests). On average over all pairs, the error is the stated one.
"""

import numpy as np

from tune_dml.stats.distributions import normal_sf
from tune_dml.stats.intervals import Array

_POINTS = 50
_BELOW, _ABOVE = 0.25, 8.0  # ends of the grid, as multiples of the smallest and the largest variance
_ITERATIONS = 100  # of expectation and maximisation; the half-widths then change by less than 1 %
_HALVINGS = 50
_SMALLEST = 1e-9  # share of the largest variance to which smaller ones are raised


def compound_half_widths(variances: Array, df: Array, shared: Array, alpha: float) -> Array:
    """Return the half-width of each difference; `alpha` is the two-sided error of one of them.

    Args:
        variances: (pairs,), each pair's own variance.
        df: (pairs,), its degrees of freedom, at least 1.
        shared: (pairs,), the number of seeds over which the difference is averaged.
        alpha: the error of one difference, on average over all of them.
    """
    largest = variances.max(initial=0.0)
    if largest == 0:
        return np.zeros_like(variances)
    floored = np.maximum(variances, _SMALLEST * largest)
    grid = np.geomspace(_BELOW * floored.min(), _ABOVE * largest, _POINTS)
    logs = -df[:, None] / 2 * (np.log(grid) + floored[:, None] / grid)  # chi-squared, up to a factor of the pair
    likelihood = np.exp(logs - logs.max(1, keepdims=True))
    spread = _posterior(likelihood)
    errors = np.sqrt(grid / shared[:, None])
    low, high = np.zeros(len(variances)), errors[:, -1] * 40
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_short = (spread * 2 * normal_sf(middle[:, None] / errors)).sum(1) > alpha
        low, high = np.where(is_short, middle, low), np.where(is_short, high, middle)
    return np.asarray(high)


def _posterior(likelihood: Array) -> Array:
    """Return the chance of each true variance given a pair's own, (pairs, points)."""
    pairs, points = likelihood.shape
    weights = np.full(points, 1 / points)
    for _ in range(_ITERATIONS):
        joint = likelihood * weights
        chances = joint / joint.sum(1, keepdims=True)
        weights = (chances.sum(0) + 1 / points) / (pairs + 1)
    return np.asarray(chances)
