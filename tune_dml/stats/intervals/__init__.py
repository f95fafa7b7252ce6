"""Estimates of differences between cells, their noise, and simultaneous intervals."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

ROUNDING = 1e-12  # relative error of sums and solutions, which differs between processors


def without_rounding(numbers: Array, size: Array | float) -> Array:
    """Make numbers (..., m) equal if they differ by rounding only, so that a tie goes to the first one everywhere.

    `size`, (..., m), is that of the values from which each number was computed. A number becomes the largest of those
    equal to it.
    """
    order = np.argsort(-numbers, axis=-1, kind="stable")
    ranked = np.take_along_axis(numbers, order, -1)
    sizes = np.take_along_axis(np.broadcast_to(size, numbers.shape), order, -1)
    limit = ROUNDING * np.maximum(sizes[..., :-1], sizes[..., 1:])
    with np.errstate(invalid="ignore"):  # two infinite numbers are equal
        is_lower = ranked[..., :-1] - ranked[..., 1:] > limit
    first = np.where(is_lower, np.arange(1, numbers.shape[-1]), 0)
    first = np.maximum.accumulate(np.concatenate([np.zeros_like(order[..., :1]), first], -1), axis=-1)
    equal = np.empty_like(ranked)
    np.put_along_axis(equal, order, np.take_along_axis(ranked, first, -1), -1)
    return equal


def size_of(values: Array) -> Array:
    """Return the largest absolute value of each cell of tables (..., m, n), 0 without any."""
    return np.asarray(np.abs(np.where(np.isfinite(values), values, 0.0)).max(-1, initial=0.0))


def run_around(position: int, allowed: Sequence[bool] | Mask) -> tuple[int, int]:
    """Return first and last index of the unbroken run of allowed cells around a position."""
    low = high = position
    while low > 0 and allowed[low - 1]:
        low -= 1
    while high + 1 < len(allowed) and allowed[high + 1]:
        high += 1
    return low, high
