"""What is claimed among the cells that were let finish, where the others were stopped for being behind."""

import math

import numpy as np

from tune_dml.planning.stopping import ETA
from tune_dml.stats.intervals.simultaneous import against, all_pairs


def test_equal_cells_that_were_chosen_early_are_told_apart_in_less_than_a_twentieth_of_sweeps_at_their_share() -> None:
    rng = np.random.default_rng(0)
    end = rng.standard_normal((1000, 19, 10))  # the first row is the baseline
    left = np.tile(np.arange(1, 19), (1000, 1))
    for _ in range(2):
        early = 0.9 * end + math.sqrt(1 - 0.9**2) * rng.standard_normal(end.shape)
        means = np.take_along_axis(early.mean(-1), left, 1)
        left = np.take_along_axis(left, np.argsort(-means, 1)[:, : math.ceil(left.shape[1] / ETA)], 1)
    kept = np.concatenate([end[:, :1], np.take_along_axis(end, left[..., None], 1)], 1)

    def claimed(level: float) -> float:
        pairs, base = all_pairs(kept, level), against(kept, 0, level)
        return float(np.mean((pairs.low > 0).any((1, 2)) | (base.low > 0).any(1) | (base.high < 0).any(1)))

    assert claimed(0.05) > 0.08  # they would be, oftener, as if nothing had been chosen
    assert claimed(0.05 * 2 / 18) < 0.05
