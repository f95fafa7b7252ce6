"""Least variance of a metric that moves in steps: equal values of a few seeds do not show that there is no noise.

R@1 of q queries is a multiple of h = 100 / q, so a few seeds may come out equal although more would differ. Further seeds
may give a neighbouring value, and a variable with two neighbouring values has a variance of at most (h / 2)^2 (Popoviciu
1935). No variance is therefore taken below

    (h / 2)^2    of a value,        sum_i w_i^2 (h / 2)^2    of a weighted sum of values,        h^2 / 2    of a difference

At an error of 5 % or less Student's interval on that floor contains the exact binomial one after n equal values (Clopper and
Pearson 1934). Rounding error by itself, h^2 / 12 a value (Sheppard 1898), is not enough: "does not matter" was then wrong in
up to 14 % (docs/log.md). If seeds differ by several steps, the floor is far below their spread and changes nothing.

The step of other metrics (F1, NMI, a metric of the user) is estimated from the numbers (`resolution_shown`): from the step
of which they are multiples, and from how often two seeds of a cell give the same number. Two draws from a normal
distribution of standard deviation s, rounded to steps of h, tie with a chance of about h / (2 sqrt(pi) s).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from tune_dml.stats.intervals import Array


def least_variance(resolution: float, weights: Array | None = None) -> Array:
    """Return the least variance of a value with step `resolution`, or of its sums by `weights` (..., m).

    0 for a resolution of 0, a continuous metric.
    """
    squares = np.ones(()) if weights is None else (weights**2).sum(-1)
    return np.asarray(squares * (resolution / 2) ** 2)


_SAME = 1e-6
"""Relative difference below which numbers count as equal, because they may be rounded to float32."""
_UNKNOWN = 100.0
"""Step of a metric with one distinct value: no difference is significant, nor significantly small."""


def resolution_shown(cells: Iterable[Sequence[float]]) -> float:
    """Estimate the step of a metric from the values of each cell's seeds; close to 0 for a continuous metric.

    The larger of the step of which all values are multiples, and 2 sqrt(pi) s p: s is the standard deviation within
    cells, p the share of tied pairs of seeds.
    """
    rows = [row for numbers in cells if (row := [value for value in numbers if math.isfinite(value)])]
    seen = list(chain.from_iterable(rows))
    if len(seen) < 2:
        return 0.0
    scale = max(map(abs, seen))
    if max(seen) - min(seen) <= _SAME * scale:
        return max(_UNKNOWN, scale)
    squares = sum(float(np.var(row)) * len(row) for row in rows)
    spread = math.sqrt(squares / max(1, len(seen) - len(rows)))
    pairs = sum(len(row) * (len(row) - 1) // 2 for row in rows)
    ties = sum(_ties(row, _SAME * scale) for row in rows)
    return max(_common_step(seen), 2 * math.sqrt(math.pi) * spread * ties / max(1, pairs))


def _common_step(values: Sequence[float]) -> float:
    """Return the largest step of which all differences are multiples (Euclid's algorithm); 0 if all are equal."""
    least, same = min(values), _SAME * max(map(abs, values))
    step = 0.0
    for value in set(values):
        other = value - least
        while other > same:
            step, other = other, math.fmod(step, other)
    return step


def _ties(row: Sequence[float], same: float) -> int:
    """Count the pairs of equal numbers."""
    apart = np.abs(np.subtract.outer(row, row))
    return (int((apart <= same).sum()) - len(row)) // 2
