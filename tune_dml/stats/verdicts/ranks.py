"""Agreement of two sweeps on the order of a knob's values: Kendall's tau-b with a bootstrap interval over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DRAWS = 2000
Table = NDArray[np.float64]


@dataclass(frozen=True)
class RankAgreement:
    """Agreement of the order of a knob's values between two sweeps."""

    levels: int
    tau: float
    """Kendall's tau-b of the values' means; NaN for fewer than three values or equal means."""
    low: float
    high: float
    """Interval of 95 %: percentile bootstrap over the seeds of each sweep; NaN for fewer than three seeds.

    Noise pulls tau towards 0, so the interval of a noisy sweep understates an agreement."""


def agree_in_rank(first: Table, second: Table, *, seed: int = 0) -> RankAgreement:
    """Compare two tables (values of a knob x seeds) of the same values; the seeds may differ.

    Example:
        >>> import numpy as np
        >>> steep = np.array([[1.0, 1.1, 1.2], [2.0, 2.1, 2.2], [3.0, 3.1, 3.2]])
        >>> agree_in_rank(steep, 5 - steep).tau
        -1.0
    """
    tau = float(_taus(first.mean(axis=1)[None], second.mean(axis=1)[None])[0])
    low = high = math.nan
    if min(first.shape[1], second.shape[1]) >= 3 and math.isfinite(tau):
        draws = np.random.default_rng(seed)
        taus = _taus(_resampled(first, draws), _resampled(second, draws))
        low, high = (float(end) for end in np.nanquantile(taus, (0.025, 0.975)))
    return RankAgreement(len(first), tau, low, high)


def _resampled(table: Table, draws: np.random.Generator) -> Table:
    """Return the means of the values over seeds drawn with replacement, (draws, values)."""
    seeds = table.shape[1]
    chosen = draws.integers(0, seeds, (_DRAWS, seeds))
    means: Table = table[:, chosen].mean(axis=2).T
    return means


def _taus(first: Table, second: Table) -> Table:
    """Return tau-b of each row of two tables (draws, values); NaN where one has equal values only."""
    if first.shape[1] < 3:
        return np.full(len(first), math.nan)
    one, two = (np.sign(rows[:, :, None] - rows[:, None]) for rows in (first, second))
    norms = np.sqrt((one * one).sum(axis=(1, 2)) * (two * two).sum(axis=(1, 2)))
    agreed = (one * two).sum(axis=(1, 2))
    taus: Table = np.divide(agreed, norms, out=np.full(len(first), math.nan), where=norms > 0)
    return taus
