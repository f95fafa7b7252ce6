"""Estimates of differences between cells, their noise, and simultaneous intervals."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def run_around(position: int, allowed: Sequence[bool] | Mask) -> tuple[int, int]:
    """Return first and last index of the unbroken run of allowed cells around a position."""
    low = high = position
    while low > 0 and allowed[low - 1]:
        low -= 1
    while high + 1 < len(allowed) and allowed[high + 1]:
        high += 1
    return low, high
