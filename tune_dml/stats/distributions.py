"""Quantiles and tails of the distributions that the verdicts use, and a root finder.

Only scipy.special is imported: importing scipy.stats and scipy.optimize takes a second.
"""

from collections.abc import Callable
from typing import cast

import numpy as np
from scipy.special import chdtri, nctdtr, ndtr, ndtri, stdtrit

from tune_dml.stats.intervals import Array

_MAX_HALVINGS = 200


def student_isf(tail: Array | float, df: Array | float) -> Array:
    """Return the value that Student's t exceeds with probability `tail`."""
    return np.where(np.asarray(tail) == 0, np.inf, -stdtrit(df, tail))


def normal_isf(tail: float) -> float:
    """Return the value that a standard normal exceeds with probability `tail`."""
    return -float(ndtri(tail))


def normal_sf(value: Array | float) -> Array:
    """Return the probability that a standard normal exceeds a value."""
    return cast(Array, ndtr(-np.asarray(value)))


def normal_pdf(value: Array | float) -> Array:
    """Return the density of the standard normal."""
    return cast(Array, np.exp(-np.square(value) / 2) / np.sqrt(2 * np.pi))


def chi2_isf(tail: Array | float, df: Array | float) -> Array:
    """Return the value that chi-squared exceeds with probability `tail`."""
    return cast(Array, chdtri(df, tail))


def noncentral_t_cdf(value: float, df: float, centre: float) -> float:
    """Return the distribution function of the non-central t, or 0 if its far tail underflows."""
    return float(np.nan_to_num(nctdtr(df, centre, value)))


def root(function: Callable[[float], float], low: float, high: float, tolerance: float = 1e-10) -> float:
    """Find by bisection where a continuous function changes sign between `low` and `high`.

    Raises:
        ValueError: if the function has the same sign at both ends.
    """
    at_low, at_high = function(low), function(high)
    if at_low * at_high > 0:
        raise ValueError(f"signs at {low} and {high} must differ, but got {at_low} and {at_high}")
    for _ in range(_MAX_HALVINGS):
        middle = (low + high) / 2
        at_middle = function(middle)
        if at_middle == 0 or high - low < tolerance:
            return middle
        if at_low * at_middle > 0:
            low, at_low = middle, at_middle
        else:
            high = middle
    return (low + high) / 2
