"""Variance floor of a metric that moves in steps: equal values of a few seeds do not show that there is no noise.

R@1 of q queries is a multiple of h = 100 / q, so a few seeds may have equal values although more seeds would differ.
Further seeds may give a neighbouring value, and a variable with two neighbouring values has a variance of at most
(h / 2)^2 (Popoviciu 1935). The floor of a variance is therefore

    (h / 2)^2    of a value,      sum_i w_i^2 (h / 2)^2    of a weighted sum of values,      h^2 / 2    of a difference

After n equal values, Student's interval on that floor contains the exact binomial one (Clopper and Pearson 1934), at an
error of 5 % or less. The variance of rounding, h^2 / 12 a value (Sheppard 1898), is not enough: "does not matter" was
then wrong in up to 14 % (docs/log.md). If seeds differ by several steps, the floor is far below their spread.

The step of other metrics (F1, NMI, a metric of the user) is estimated from the numbers (`resolution_shown`). It follows
from the step of which they are multiples, and from the share of equal pairs of seeds. Two draws from a normal
distribution of standard deviation s, rounded to steps of h, tie with a chance of about h / (2 sqrt(pi) s).
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from tune_dml.stats.intervals import Array


def variance_floor(resolution: float, weights: Array | None = None) -> Array:
    """Return the smallest variance assumed for a value with step `resolution`, or for sums by `weights` (..., m).

    It is 0 for a continuous metric, whose resolution is 0.
    """
    squares = np.ones(()) if weights is None else (weights**2).sum(-1)
    return np.asarray(squares * (resolution / 2) ** 2)


_SAME = 1e-6  # relative difference below which numbers count as equal, because they may be rounded to float32
_BITS = (24, 52)  # of float32 and float64
_UNKNOWN = 100.0
"""Step of a metric with a single distinct value; with it, neither a difference nor equality is ever significant."""


def resolution_shown(cells: Iterable[Sequence[float]]) -> float:
    """Estimate the step of a metric from the values of each cell's seeds; close to 0 for a continuous metric.

    The estimate is the larger of two: the step of which all values are multiples, and 2 sqrt(pi) s p. s is the standard
    deviation within cells, p the share of tied pairs of seeds.
    """
    rows = [row for numbers in cells if (row := [value for value in numbers if math.isfinite(value)])]
    values = list(chain.from_iterable(rows))
    if len(values) < 2:
        return 0.0
    scale = max(map(abs, values))
    if _are_equal(values):
        return max(_UNKNOWN, scale)
    squares = sum(float(np.var(row)) * len(row) for row in rows)
    spread = math.sqrt(squares / max(1, len(values) - len(rows)))
    pairs = sum(len(row) * (len(row) - 1) // 2 for row in rows)
    ties = sum((int((np.abs(np.subtract.outer(row, row)) <= _SAME * scale).sum()) - len(row)) // 2 for row in rows)
    step = max(_common_step(values, bits) for bits in _BITS)
    return max(step, 2 * math.sqrt(math.pi) * spread * ties / max(1, pairs))


def is_step_unknown(resolution: float, values: Iterable[float]) -> bool:
    """Return whether the step of the values is unknown because all are equal: an interval would tell nothing."""
    return resolution >= _UNKNOWN and _are_equal([value for value in values if math.isfinite(value)])


def _are_equal(values: Sequence[float]) -> bool:
    return not values or max(values) - min(values) <= _SAME * max(map(abs, values))


def _common_step(values: Sequence[float], bits: int) -> float:
    """Return the largest step of which all differences are multiples (Euclid's algorithm).

    It is 0 if all are equal, or if the step is too small for values rounded to `bits` binary digits.
    """
    lowest, scale = min(values), max(map(abs, values))
    rounding = 2.0 ** (1 - bits) * scale  # of a difference
    differences = [value - lowest for value in sorted(set(values)) if value - lowest > _SAME * scale]
    step, error = (differences[0], rounding) if differences else (0.0, 0.0)
    for difference in differences[1:]:
        if step:
            step, error = _common_divisor(difference, rounding, step, error)
    return step


def _common_divisor(larger: float, larger_error: float, step: float, error: float) -> tuple[float, float]:
    """Return the common divisor of two numbers with errors, and its error; 0 if the errors hide it."""
    while True:
        times = max(round(larger / step), 1)
        remainder, remainder_error = abs(larger - times * step), larger_error + times * error
        if remainder_error > step / 4:
            return 0.0, 0.0
        if remainder <= remainder_error:  # a multiple shows the step more exactly
            return min((step, error), (larger / times, larger_error / times), key=lambda pair: pair[1])
        larger, larger_error, step, error = step, error, remainder, remainder_error
