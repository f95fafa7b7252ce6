"""Score of the best configuration on seeds that did not choose it.

The mean of the best of many cells is too high, because its seeds were lucky (the winner's curse: 1.05 points for 18
equal cells, 3 seeds, noise 1). Here every seed is scored with the cell that other seeds chose, so the noise of the
choice and the noise of the score are independent:

    score_j = y[c_j, j],  c_j the best cell on the seeds of the other folds       gain_j = score_j - y[default, j]

With up to three seeds, every seed is a fold; with more, even and odd seeds are two folds. If there were more folds, the
choices would share most of their seeds, and the spread of the scores would not show their error: at ten seeds such an
interval covers 83 %. The mean is unbiased for a choice on the seeds of the other folds, which is slightly worse than a
choice on all seeds.

The two limits of the interval are both conservative. The lower limit is Student's t on the cross-fitted scores, which
selection does not bias. The upper limit is Student's t on the chosen cell's own seeds, which selection can only raise.
The coverage is 93 to 97 % over 2 to 50 cells, 3 to 10 seeds, with and without differences (benchmarks/verdicts.py).

`choose_best_cells` chooses the best cell of each arm for drawing. Verdicts compare all cells of the arms (`tuned`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.distributions import student_isf
from tune_dml.stats.intervals import Array, Mask, size_of, without_rounding
from tune_dml.stats.intervals.contrasts import estimate_contrasts, fill_holes
from tune_dml.stats.intervals.resolution import variance_floor
from tune_dml.stats.intervals.tuned import TunedLevels, tuned_levels

ALGORITHM = "lower limit from seeds that did not choose the cell, upper limit from all seeds; Student's t"


@dataclass(frozen=True, eq=False)
class SelectedBest:
    """Score of the selected cell, for one or many tables of shape (...)."""

    best: NDArray[np.intp]  # the cell with the best mean over all seeds
    naive: Array  # mean (or gain over the default) of that cell on all seeds, biased by the selection
    mean: Array  # the cross-fitted mean or gain; NaN with one seed
    low: Array
    high: Array


def score_of_best(
    values: Array, default: int | None = None, alpha: float = 0.05, *, resolution: float = 0.0
) -> SelectedBest:
    """Estimate the best cell's mean, or its gain over the cell `default`, of tables (..., m, n); larger is better."""
    floor = float(variance_floor(resolution)) * (1 if default is None else 2)
    n = values.shape[-1]
    finite = np.isfinite(values)
    within_seed, size = _subtract_seed_means(values, finite), size_of(values)
    folds = np.arange(n) if n <= 3 else np.arange(n) % 2
    reference = np.zeros_like(values[..., 0, :]) if default is None else values[..., default, :]
    score = np.full((*values.shape[:-2], n), np.nan)
    for fold in range(folds.max() + 1):
        chosen = _best(within_seed, finite & (folds != fold), size)
        score[..., folds == fold] = (_row(values, chosen) - reference)[..., folds == fold]
    best = _best(within_seed, finite, size)
    if n < 2:
        score = np.full_like(score, np.nan)
    own = _row(values, best) - reference
    one_group = np.zeros(n, dtype=int)
    mean, below = _interval(score, folds if n > 3 else one_group, alpha, floor)
    naive, above = _interval(own, one_group, alpha, floor)
    return SelectedBest(best, naive, mean, mean - below, np.maximum(naive + above, mean))


def lead_of_best(values: Array, alpha: float = 0.05, *, resolution: float = 0.0) -> tuple[Array, Array]:
    """Return simultaneous limits of the best cell's mean minus the mean of all cells, of tables (..., m, n).

    The limits of `score_of_best` would claim a lead among equal cells in up to 14 %: the mean of all cells has hardly
    any noise, so the score of the selected cell keeps its skew.
    """
    cells = values.shape[-2]
    bounds = estimate_contrasts(values, np.eye(cells) - 1 / cells, alpha, resolution=resolution)
    return bounds.low.max(-1), bounds.high.max(-1)


def best_first(values: Array) -> list[int]:
    """Return the rows of a table (m, n) that have values, best first; larger is better.

    Rows are ranked by their effect in an additive model of cells and seeds (least squares), so that lost seeds and
    cells that stopped early do not change ranks. Of equal rows, the first is better.
    """
    effects = without_rounding(fill_holes(values)[0].mean(-1), size_of(values))
    order = np.argsort(-effects, kind="stable")
    return [int(row) for row in order if np.isfinite(values[row]).any()]


def _interval(score: Array, folds: NDArray[np.intp], alpha: float, floor: float) -> tuple[Array, Array]:
    """Return the mean score and half its interval, from the variance within folds, which is at least `floor`."""
    counts, squares = np.zeros(score.shape[:-1]), np.zeros(score.shape[:-1])
    groups = np.unique(folds)
    for fold in groups:
        part = score[..., folds == fold]
        squares += np.where(np.isfinite(part), (part - _mean(part)[..., None]) ** 2, 0.0).sum(-1)
        counts += np.isfinite(part).sum(-1)
    df = counts - len(groups)
    spread = np.sqrt(np.maximum(squares / np.maximum(df, 1), floor) / np.maximum(counts, 1))
    return _mean(score), np.where(df > 0, student_isf(alpha / 2, np.maximum(df, 1)) * spread, np.inf)


def _subtract_seed_means(values: Array, finite: Mask) -> Array:
    """Subtract each seed's effect in an additive model of cells and seeds; holes become 0.

    Without holes that is the seed's average. Otherwise the average depends on the cells that have the seed: after a
    race, those with many seeds share their later seeds with good cells only.
    """
    filled = fill_holes(values)[0]
    return np.where(finite, values - filled.mean(-2, keepdims=True), 0.0)


def _best(within_seed: Array, counted: Mask, size: Array | float) -> NDArray[np.intp]:
    """Return the cell with the best mean over the counted values, the first of equal ones; `size` is the values'."""
    count = counted.sum(-1)
    merit = np.where(counted, within_seed, 0.0).sum(-1) / np.maximum(count, 1)
    return np.asarray(without_rounding(np.where(count > 0, merit, -np.inf), size).argmax(-1))


def _row(values: Array, cell: NDArray[np.intp]) -> Array:
    return np.asarray(np.take_along_axis(values, cell[..., None, None], -2)[..., 0, :])


def _mean(numbers: Array) -> Array:
    finite = np.isfinite(numbers)
    count = finite.sum(-1)
    return np.where(count > 0, np.where(finite, numbers, 0.0).sum(-1) / np.maximum(count, 1), np.nan)


@dataclass(frozen=True, eq=False)
class BestOfArms:
    """The best cell of each arm."""

    values: Array  # values of the chosen cells, arms x seeds
    chosen: tuple[int, ...]  # row of the chosen cell in each arm's table
    tuned: TunedLevels | None  # all cells of the arms, for comparisons; None if each arm has one cell


def expected_best(table: Array, count: int) -> float:
    """Return the mean score of the best of `count` cells, over all subsets of `count` rows of a table (cells, n).

    The first third of the seeds ranks the cells, the others score them. Of all C(m, c) subsets, C(i - 1, c - 1) have
    the cell of rank i, counted from the worst, as their best (expected validation performance, Dodge et al. 2019,
    without replacement). Raises ValueError unless 1 <= count <= cells, or with fewer than two seeds.
    """
    cells, seeds = table.shape
    if not 1 <= count <= cells or seeds < 2:
        raise ValueError(f"`1 <= count <= cells` and two seeds must hold, but got {count=}, {cells=}, {seeds=}")
    ranking_seeds = max(1, seeds // 3)
    judged = table[:, ranking_seeds:]
    rows = [row for row in best_first(table[:, :ranking_seeds]) if np.isfinite(judged[row]).any()]
    subsets = [math.comb(len(rows) - 1 - rank, count - 1) for rank in range(len(rows))]
    scores = [float(np.nanmean(judged[row])) for row in rows]
    return float(np.average(scores, weights=subsets)) if any(subsets) else math.nan


def choose_best_cells(arms: Sequence[Array], resolution: float = 0.0) -> BestOfArms:
    """Choose the best cell of each arm from its table (cells, n); larger is better, and every cell has a value."""
    chosen = tuple(best_first(table)[0] for table in arms)
    values = np.array([table[row] for table, row in zip(arms, chosen, strict=True)])
    is_tuned = any(len(table) > 1 for table in arms)
    return BestOfArms(values, chosen, tuned_levels(arms, resolution) if is_tuned else None)
