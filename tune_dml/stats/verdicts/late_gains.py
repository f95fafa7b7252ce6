"""Gains at the end of training: are they above 0, or below the smallest gain that matters?

A trial's gain is its last evaluation minus an earlier one, and both are noisy. The gains are compared with a row of
zeros, as cells are compared with a baseline (`simultaneous`), one-sided. So their noise is moderated over the rows.
"""

from dataclasses import dataclass

import numpy as np

from tune_dml.stats.intervals import Array, Mask
from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import half_widths

_SHARE, _SEEDS = 0.5, 4
"""Share of the level for gains above 0, from this number of seeds on.

A row that collapses under few seeds has a mean that is too high, and little spread, under most sets of seeds. With fewer
seeds their own uncertainty covers that (benchmarks/verdict_convergence.py)."""


@dataclass(frozen=True, eq=False)
class LateGains:
    """Verdicts on the mean gain of each row."""

    rises: Mask  # rows whose gain is significantly above 0, for all rows at once
    small: Mask  # rows whose gain is significantly below the smallest that matters, each row alone
    known: Mask  # rows with two seeds; the others have no verdict


def judge_late_gains(
    gains: Array, margin: float, alpha: float, *, comparisons: int, resolution: float = 0.0
) -> LateGains:
    """Judge gains (rows, seeds), NaN for holes; larger is better.

    `comparisons` counts the rows that share the error, with rows that were left out because of their results.
    `resolution` is the step of the metric.
    """
    noise = fit_pairs(np.vstack([np.zeros(gains.shape[1]), gains]), resolution)
    first_column = np.s_[..., :, [0]]
    share = _SHARE if np.isfinite(gains).sum(1).max(initial=0) >= _SEEDS else 1.0
    shared, single = (
        half_widths(noise, level, count, sides=1, beside=True, of=first_column)[1:, 0]
        for level, count in ((share * alpha, comparisons), (alpha, 1))
    )
    mean = noise.estimate[1:, 0]
    return LateGains(mean > shared, mean + single < margin, np.isfinite(single))
