"""What a spread of zero among seeds can mean: a metric that counts queries moves in steps.

R@1 of q queries is a multiple of h = 100 / q, so that a few seeds may come out equal where more would not. Equal numbers
leave room for a neighbour, and the variance of what takes two neighbouring values is at most (h / 2)^2 (Popoviciu 1935). No
variance is therefore taken below

    (h / 2)^2    of a value,        sum_i w_i^2 (h / 2)^2    of a weighted sum of values,        h^2 / 2    of a difference

At an error of 5 % or less Student's interval on that floor holds the exact binomial one after n equal values (Clopper and
Pearson 1934). Rounding error by itself, h^2 / 12 a value (Sheppard 1898), is not enough: "does not matter" was then wrong in
up to 14 % (docs/log.md). Where seeds differ by several steps, the floor is far below their spread and changes nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def least_variance(resolution: float, weights: Array | None = None) -> Array:
    """The least variance of a value that moves in steps of `resolution`, or of sums of m such values by `weights` (..., m).

    0 for a resolution of 0: a metric that is as good as continuous.
    """
    squares = np.ones(()) if weights is None else (weights**2).sum(-1)
    return np.asarray(squares * (resolution / 2) ** 2)
