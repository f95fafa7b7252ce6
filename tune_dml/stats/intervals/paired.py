"""Student's t intervals of means and of paired differences that were chosen before the data were seen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tune_dml.stats.distributions import student_isf
from tune_dml.stats.intervals import Array
from tune_dml.stats.intervals.resolution import variance_floor
from tune_dml.stats.intervals.table import SeedTable


@dataclass(frozen=True)
class Interval:
    """A mean over n seeds with its confidence interval; `low` and `high` are NaN with fewer than two."""

    n: int
    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float] | Array, alpha: float = 0.05, floor: float = 0.0) -> Interval:
    """Return the mean of the finite values with its 1 - alpha interval; the variance is at least `floor`."""
    array = np.asarray(values, dtype=np.float64)
    array = array[np.isfinite(array)]
    n = len(array)
    mean = float(array.mean()) if n else math.nan
    if n < 2:
        return Interval(n, mean, math.nan, math.nan)
    reach = float(student_isf(alpha / 2, n - 1)) * math.sqrt(max(float(array.var(ddof=1)), floor) / n)
    return Interval(n, mean, mean - reach, mean + reach)


def cell_interval(table: SeedTable, row: int, alpha: float = 0.05) -> Interval:
    """Return the mean of one row with its 1 - alpha interval."""
    return mean_interval(table.values[row], alpha, float(variance_floor(table.resolution)))


def interval_of_first(table: SeedTable, row: int, count: int, alpha: float = 0.05) -> Interval:
    """Return the mean of one row over its first `count` seeds; the spread is that of all of its seeds.

    It is NaN if one of these seeds has no value.
    """
    own, mean = cell_interval(table, row, alpha), float(table.values[row, :count].mean())
    reach = (own.high - own.mean) * math.sqrt(own.n / count)
    return Interval(count, mean, mean - reach, mean + reach)


def paired_difference(table: SeedTable, first: int, second: int, alpha: float = 0.05) -> Interval:
    """Return mean_j (y_first,j - y_second,j) over the seeds that both cells have, with its 1 - alpha interval."""
    floor = float(2 * variance_floor(table.resolution))
    return mean_interval(table.values[first] - table.values[second], alpha, floor)
