"""Arms at their best: each one tuned on some seeds and judged on the others, so that an arm gains nothing by having more cells.

The first third of the seeds chooses each arm's cell, the other seeds judge it; where no arm has a choice all seeds judge.
The judged table has one row an arm, with independent choices, so that whatever compares cells (`matters`, `simultaneous`)
compares arms: all pairs, with one correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.selection import best_first, tuned_on_other_seeds

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BestOfArms:
    """One row an arm."""

    values: Array
    """Arms x judging seeds."""
    chosen: tuple[int, ...]
    """The cell (row of its own table) that stands for each arm."""
    choosing: int
    """The first seeds, which chose and do not judge; 0 where there was nothing to choose."""


def expected_best(table: Array, count: int) -> float:
    """What the best of `count` of the cells (cells, n) scores, on average over every choice of `count` of them; larger is better.

    The seeds that choose are those of `at_best` and do not judge: of all C(m, c) choices C(i - 1, c - 1) have the cell of rank i,
    from the worst, as their best (the expected validation performance of Dodge et al. 2019, without replacement).
    Raises ValueError unless 1 <= count <= cells, or with fewer than two seeds.
    """
    cells, seeds = table.shape
    if not 1 <= count <= cells or seeds < 2:
        raise ValueError(f"`1 <= count <= cells` and two seeds must hold, but got {count=}, {cells=}, {seeds=}")
    judged = np.array([tuned_on_other_seeds(row[None, None])[0][0] for row in table])
    order = best_first(table[:, : seeds - judged.shape[-1]])
    held = [row for row in order if np.isfinite(judged[row]).any()]
    chances = [math.comb(len(held) - 1 - place, count - 1) for place in range(len(held))]
    scores = [float(np.nanmean(judged[row])) for row in held]
    return float(np.average(scores, weights=chances)) if any(chances) else math.nan


def at_best(arms: Sequence[Array]) -> BestOfArms:
    """Each arm at its best cell, from one table (cells, n) an arm, larger numbers better.

    Raises ValueError where an arm has a choice and there are fewer than two seeds.
    """
    if all(len(table) == 1 for table in arms):
        return BestOfArms(np.concatenate(list(arms)), (0,) * len(arms), 0)
    judged = [tuned_on_other_seeds(table[None]) for table in arms]
    values = np.concatenate([rows for rows, _ in judged])
    return BestOfArms(values, tuple(int(setting[0]) for _, setting in judged), arms[0].shape[-1] - values.shape[-1])
