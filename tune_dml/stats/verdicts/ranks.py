"""Agreement of two sweeps on the order of a knob's values: Kendall's tau-b, with bounds from significant pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.intervals import Array, without_rounding
from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import Bounds, all_pairs


@dataclass(frozen=True)
class RankAgreement:
    """Agreement of the order of a knob's values between two sweeps."""

    levels: int
    tau: float  # Kendall's tau-b of the values' means; NaN for fewer than three values or equal means
    low: float
    high: float
    """Bounds that are wrong with a chance of `alpha` at most; NaN for one seed. Resampled ones missed up to 90 %."""


def agree_in_rank(
    first: Array, second: Array, *, alpha: float = 0.05, resolutions: tuple[float, float] = (0.0, 0.0)
) -> RankAgreement:
    """Compare two tables (values of a knob x seeds) of the same values; the seeds may differ.

    `alpha` is the error of the bounds, `resolutions` are the steps of the two sweeps' numbers.

    Example:
        >>> import numpy as np
        >>> steep = np.array([[1.0, 1.1, 1.2], [2.0, 2.1, 2.2], [3.0, 3.1, 3.2]])
        >>> agree_in_rank(steep, 5 - steep).tau
        -1.0
    """
    tau = kendall_tau(first.mean(axis=1), second.mean(axis=1))
    low = high = math.nan
    if min(first.shape[1], second.shape[1]) >= 2 and math.isfinite(tau):
        # Each sweep has half of the error, because a pair's agreement is wrong if either order is wrong.
        orders = [
            significant_order(all_pairs(table, alpha / 2, fit_pairs(table, step)), range(len(table)))
            for table, step in zip((first, second), resolutions, strict=True)
        ]
        low, high = tau_bounds(*orders)
    return RankAgreement(len(first), tau, low, high)


def significant_order(bounds: Bounds, rows: Sequence[int]) -> NDArray[np.int_]:
    """Return the order of each pair of these rows: 1 or -1 if it is significant, else 0."""
    pairs = np.triu_indices(len(rows), 1)
    low, high = (part[np.ix_(rows, rows)][pairs] for part in (bounds.low, bounds.high))
    order: NDArray[np.int_] = (low > 0).astype(int) - (high < 0)
    return order


def tau_bounds(first: NDArray[np.int_], second: NDArray[np.int_]) -> tuple[float, float]:
    """Return the smallest and the largest tau that agree with the significant orders of two sweeps."""
    products = first * second
    pairs = len(products)
    return (2 * int((products > 0).sum()) - pairs) / pairs, (pairs - 2 * int((products < 0).sum())) / pairs


def kendall_tau(first: Sequence[float] | Array, second: Sequence[float] | Array) -> float:
    """Return tau-b of two rows of numbers; NaN for fewer than three numbers, or if all numbers of one row are equal."""
    if len(first) < 3:
        return math.nan
    rows = (without_rounding(row, np.abs(row)) for row in map(np.asarray, (first, second)))
    first_signs, second_signs = (np.sign(np.subtract.outer(row, row)) for row in rows)
    norm = math.sqrt((first_signs**2).sum() * (second_signs**2).sum())
    return float((first_signs * second_signs).sum()) / norm if norm else math.nan
