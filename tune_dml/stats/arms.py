"""Arms at their best: each by the best of its cells, on all seeds; more cells win nothing by luck (`tuned`).

The table has one row an arm, that of the cell with the best mean, and is for drawing. Verdicts compare all cells of the arms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.selection import best_first
from tune_dml.stats.tuned import TunedLevels, tuned_levels

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BestOfArms:
    """One row an arm."""

    values: Array
    """Arms x seeds, of the chosen cells."""
    chosen: tuple[int, ...]
    """The cell (row of its own table) that stands for each arm."""
    tuned: TunedLevels | None
    """Every cell of each arm, by which arms are compared; None where no arm has a choice."""


def expected_best(table: Array, count: int) -> float:
    """What the best of `count` of the cells (cells, n) scores, on average over every choice of `count` of them; larger is better.

    The first third of the seeds chooses and the others judge: of all C(m, c) choices C(i - 1, c - 1) have the cell of rank i,
    from the worst, as their best (the expected validation performance of Dodge et al. 2019, without replacement).
    Raises ValueError unless 1 <= count <= cells, or with fewer than two seeds.
    """
    cells, seeds = table.shape
    if not 1 <= count <= cells or seeds < 2:
        raise ValueError(f"`1 <= count <= cells` and two seeds must hold, but got {count=}, {cells=}, {seeds=}")
    choosing = max(1, seeds // 3)
    judged = table[:, choosing:]
    order = best_first(table[:, :choosing])
    held = [row for row in order if np.isfinite(judged[row]).any()]
    chances = [math.comb(len(held) - 1 - place, count - 1) for place in range(len(held))]
    scores = [float(np.nanmean(judged[row])) for row in held]
    return float(np.average(scores, weights=chances)) if any(chances) else math.nan


def at_best(arms: Sequence[Array], resolution: float = 0.0) -> BestOfArms:
    """Each arm at its best cell, from one table (cells, n) an arm, larger numbers better; every cell has a number."""
    chosen = tuple(best_first(table)[0] for table in arms)
    values = np.array([table[row] for table, row in zip(arms, chosen, strict=True)])
    several = any(len(table) > 1 for table in arms)
    return BestOfArms(values, chosen, tuned_levels(arms, resolution) if several else None)
