"""Verdict on whether a knob matters, and differences of its values to the baseline.

    sensitive     an interval lies wholly beyond the margin on one side. The intervals of all pairs are simultaneous
                  (`simultaneous`; `contrasts` if values are averages over a grid; `tuned` if a value is as good as its
                  best setting)
    insensitive   every difference is significantly inside (-margin, margin), and every value has a result. Each is judged
                  at one-sided alpha, not corrected, because the claim is wrong only if the largest true difference is
                  judged wrongly (intersection-union test)
    undecided     neither; the reason says whether any difference is significant

"Sensitive" can be wrong only for a knob that does not matter and "insensitive" only for one that does, so each has the
whole error. `alpha` is the error that this look may spend (`looks`). Verdicts are about the values that trained. After
a race (`racing`), its intervals are intersected with these, and the race may decide "insensitive".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tune_dml.stats.intervals import ROUNDING, Array, size_of
from tune_dml.stats.intervals.contrasts import FullGrid, can_bias_means, fill_with_highest, fill_with_lowest
from tune_dml.stats.intervals.noise import PairNoise, has_testable_pair
from tune_dml.stats.intervals.simultaneous import ALGORITHM, Bounds, against, all_pairs, at_most
from tune_dml.stats.intervals.table import SeedTable
from tune_dml.stats.intervals.tuned import ALGORITHM as TUNED
from tune_dml.stats.intervals.tuned import TunedLevels, tuned_levels
from tune_dml.stats.sequential.racing import RaceStanding

_LISTED_CELLS = 40
"""Maximum number of values of which all pairwise differences are listed; with more, only the largest is listed."""


@dataclass(frozen=True)
class Difference:
    """mean(first) - mean(second) with its simultaneous interval; infinite if not testable."""

    first: str
    second: str
    estimate: float
    low: float
    high: float
    at_most: float  # one-sided upper bound of |difference|, not corrected for other pairs

    @property
    def at_least(self) -> float:
        """Smallest |difference| within the interval."""
        return max(self.low, -self.high, 0.0)

    @property
    def reach(self) -> float:
        """Largest |difference| within the interval."""
        return max(-self.low, self.high)


@dataclass(frozen=True, eq=False)
class SensitivityVerdict:
    """Verdict on the sensitivity to a knob, with the differences and noise behind it."""

    verdict: Literal["sensitive", "insensitive", "undecided"]
    reason: str
    margin: float
    alpha: float
    effect: bool  # whether any non-zero difference is significant
    flat: bool  # whether all differences between trained values are significantly below the margin
    largest: Difference | None  # pair that decides the verdict
    differences: tuple[Difference, ...]
    """Differences of all pairs; with many values, only that of the deciding pair."""
    epsilon: float
    """Box's epsilon: 1 for equal noise, 1 / (cells - 1) for noise in one direction; NaN with two seeds."""
    prior_df: float  # degrees of freedom that each pair borrows from all pairs
    labels: tuple[str, ...] = ()  # values with results: the rows and columns of `bounds` and `noise`
    bounds: Bounds | None = None
    noise: PairNoise | None = None  # None without a noise estimate
    algorithm: str = ALGORITHM


def judge_sensitivity(
    table: SeedTable,
    margin: float,
    *,
    alpha: float = 0.05,
    diverged: Sequence[str] = (),
    stopped: Sequence[str] = (),
    failed: Sequence[str] = (),
    crossed: FullGrid | None = None,
    tuned: TunedLevels | None = None,
    sign: float = 1,
    raced: RaceStanding | None = None,
    listed: int = _LISTED_CELLS,
) -> SensitivityVerdict:
    """Judge whether any two cells of a table differ by more than a margin.

    Args:
        table: values x seeds; rows without numbers are left out.
        margin: the smallest difference that matters.
        alpha: the error that this look may spend.
        diverged: labels of values that diverged under some seed.
        stopped: labels of values that were stopped early.
        failed: labels of values that a race left unsettled because their trials failed.
        crossed: the cells behind the table, if its rows are averages; their noise is used.
        tuned: the settings behind the table, if each row is the best of several; larger is better.
        sign: -1 if smaller is better in the table; needed only with `tuned`.
        raced: findings of a race about the table's rows, all of which have values.
        listed: maximum number of values of which all differences are listed.

    Raises:
        ValueError: unless margin > 0.
    """
    if not margin > 0:
        raise ValueError(f"`margin > 0` must hold, but got {margin=}")
    table = table.with_numbers() if crossed is None else table
    labels, values = table.labels, table.values
    levels = crossed or tuned
    if reason := _untestable_reason(levels.values if levels else values, len(labels)):
        return SensitivityVerdict("undecided", reason, margin, alpha, False, False, None, (), np.nan, 0.0, labels)
    noise = table.noise
    if levels is None:
        bounds, limits, cell_noise = all_pairs(values, alpha, noise), at_most(values, alpha, noise), noise
    else:
        bounds, limits, cell_noise = levels.pairs(alpha), levels.at_most(alpha), levels.noise
        bounds = bounds.times(sign) if tuned else bounds
    flat = bool((limits < margin).all())
    if raced is not None:
        bounds = raced.narrow(bounds)
        limits = np.minimum(raced.at_most, np.maximum(bounds.high, -bounds.low))
        flat = bool((limits < margin).all()) or (raced.flat and raced.margin <= margin)
    missing, size = _missing_clause(diverged, stopped, failed), float(size_of(values).max())
    verdict, reason, pair = _decide(bounds, margin, flat, missing, size)
    if failed and verdict == "undecided" and not flat:
        reason += f", and {_missing_clause((), (), failed)}"
    pairs = zip(*np.triu_indices(len(labels), 1), strict=True) if len(labels) <= listed else [pair]
    effect = bool(np.maximum(bounds.low, -bounds.high).max() > 0)
    differences = tuple(_difference(labels, bounds, limits, int(i), int(k)) for i, k in pairs)
    has_noise = noise.testable.any()  # averages with holes may share no two seeds although cells do
    return SensitivityVerdict(
        verdict, reason, margin, alpha, effect, flat, _difference(labels, bounds, limits, *pair), differences,
        float(cell_noise.epsilon), float(cell_noise.prior_df), labels, bounds, noise if has_noise else None,
        ALGORITHM if tuned is None else TUNED,
    )  # fmt: skip


def holds_at_extremes(verdict: SensitivityVerdict, table: SeedTable, *, crossed: FullGrid | None = None) -> bool:
    """Return whether a verdict's claim remains if all trials without a value were the worst, or the best, of their seeds.

    The arguments are those of `judge_sensitivity`. A verdict without a claim holds.
    """
    if verdict.bounds is None or not (verdict.effect or verdict.flat):
        return True
    values = table.values if crossed is None else crossed.values
    if can_bias_means(np.isnan(values)):
        return False
    low, limit = verdict.bounds.low, verdict.margin if verdict.verdict == "sensitive" else 0.0
    for fill in (fill_with_lowest, fill_with_highest):
        filled = fill(values, np.isnan(values))
        if crossed is None:
            again = judge_sensitivity(replace(table, values=filled), verdict.margin, alpha=verdict.alpha)
        else:
            grid = replace(crossed, values=filled)
            again = judge_sensitivity(table, verdict.margin, alpha=verdict.alpha, crossed=grid)
        if (verdict.flat or again.bounds is None) and not again.flat:
            return False
        low = low if again.bounds is None else np.minimum(low, again.bounds.low)
    return verdict.flat or bool((low > limit).any())


def compare_all_with(
    table: SeedTable, baseline: str, *, alpha: float = 0.05, raced: RaceStanding | None = None
) -> tuple[Difference, ...]:
    """Return the differences of all other cells to the baseline, with simultaneous intervals.

    The result is empty if the baseline has no results. `raced` has the findings of a race about the table's rows.
    """
    if baseline not in table.labels or not np.isfinite(table.values[table.labels.index(baseline)]).any():
        return ()
    row = table.labels.index(baseline)
    if len(table.seeds) == 1 and raced is None:
        return _without_noise(table, row)
    bounds = against(table.values, row, alpha, table.noise)
    limits = at_most(table.values, alpha, table.noise, rows=[row])[0]
    low, high = bounds.low, bounds.high
    if raced is not None:
        low, high = np.maximum(low, raced.low[:, row]), np.minimum(high, raced.high[:, row])
    return tuple(
        Difference(label, baseline, float(bounds.estimate[i]), float(low[i]), float(high[i]), float(limits[i]))
        for i, label in enumerate(table.labels)
        if i != row
    )


def compare_all_with_best_of(
    table: SeedTable,
    baselines: Sequence[str],
    *,
    sign: float = 1,
    alpha: float = 0.05,
    raced: RaceStanding | None = None,
) -> tuple[Difference, ...]:
    """Return the differences of all other cells to the best of several baseline cells, with intervals of `tuned`.

    Args:
        table: every row has a number.
        baselines: the labels of the baseline's cells.
        sign: -1 if smaller is better.
        alpha: the error that this look may spend.
        raced: findings of a race about the table's rows, on the metric's own scale.
    """
    baseline_rows = [row for row, label in enumerate(table.labels) if label in set(baselines)]
    rows = [row for row in range(len(table.labels)) if row not in baseline_rows]
    if not rows:
        return ()
    levels = [*([row] for row in rows), baseline_rows]
    tuned = tuned_levels([sign * table.values[level] for level in levels], table.resolution)
    last = len(rows)
    best = max(baseline_rows, key=lambda row: sign * float(np.nanmean(table.values[row])))
    if len(table.seeds) == 1 and raced is None:
        return tuple(row for row in _without_noise(table, best) if row.first not in baselines)
    bounds, limits = tuned.against(last, alpha).times(sign), tuned.at_most(alpha)[:, last]
    low, high = bounds.low[:-1], bounds.high[:-1]
    if raced is not None:  # the intervals of a race hold for all baseline cells simultaneously
        raced_low, raced_high = raced.low[np.ix_(rows, baseline_rows)], raced.high[np.ix_(rows, baseline_rows)]
        best_of = np.min if sign == 1 else np.max
        low, high = np.maximum(low, best_of(raced_low, axis=1)), np.minimum(high, best_of(raced_high, axis=1))
    parts = zip(rows, bounds.estimate.tolist(), low.tolist(), high.tolist(), limits.tolist(), strict=False)
    return tuple(Difference(table.labels[row], table.labels[best], *numbers) for row, *numbers in parts)


def _without_noise(table: SeedTable, row: int) -> tuple[Difference, ...]:
    """Return the differences to a row under the only seed, with infinite intervals."""
    gaps, unbounded = (table.values - table.values[row])[:, 0].tolist(), (-math.inf, math.inf, math.inf)
    named = list(zip(table.labels, gaps, strict=True))
    return tuple(Difference(label, named[row][0], gap, *unbounded) for label, gap in named[:row] + named[row + 1 :])


def _untestable_reason(values: Array, levels: int) -> str:
    """Return why the cells cannot be tested; empty if they can."""
    if levels < 2:
        return "only one value has results" if levels else "no value has results"
    if np.isfinite(values).any(0).sum() < 2:
        return "one seed gives no noise estimate"
    return "" if has_testable_pair(values) else "no two values share two seeds"


def _decide(
    bounds: Bounds, margin: float, flat: bool, missing: str, size: float
) -> tuple[Literal["sensitive", "insensitive", "undecided"], str, tuple[int, int]]:
    """Return the verdict, its reason, and the pair of cells that decides it; `size` is that of the values."""
    estimates = np.nan_to_num(bounds.estimate)
    np.fill_diagonal(estimates, -np.inf)  # two different values, even if all means are equal
    surest, widest = _largest_pair(bounds.low, size), _largest_pair(estimates, size)
    if bounds.low.max() > margin:
        return "sensitive", "some difference is significantly larger than the smallest that matters", surest
    if flat and missing:
        reason = "among the values that trained every difference is smaller than the smallest that matters"
        return "undecided", f"{reason}, but {missing}", widest
    if flat:
        return "insensitive", "every difference is significantly smaller than the smallest that matters", widest
    if bounds.low.max() > 0:
        reason = "some difference is significant, but it may be larger or smaller than the smallest that matters"
        return "undecided", reason, surest
    return "undecided", "the noise could hide a difference that matters", widest


def _largest_pair(matrix: Array, size: float) -> tuple[int, int]:
    """Return the row and the column of the largest number, the first of equal ones; `size` is that of the values."""
    row, column = np.unravel_index(int((matrix >= matrix.max() - ROUNDING * size).argmax()), matrix.shape)
    return int(row), int(column)


def _missing_clause(diverged: Sequence[str], stopped: Sequence[str], failed: Sequence[str]) -> str:
    """Return a clause that names the values without final results; empty if there are none."""
    parts = [f"{', '.join(diverged)} diverged"] if diverged else []
    parts += [f"{', '.join(stopped)} {'was' if len(stopped) == 1 else 'were'} stopped early"] if stopped else []
    parts += [f"trials of {', '.join(failed)} failed repeatedly"] if failed else []
    return " and ".join(parts)


def _difference(labels: Sequence[str], bounds: Bounds, limits: Array, i: int, k: int) -> Difference:
    low, high = float(bounds.low[i, k]), float(bounds.high[i, k])
    return Difference(labels[i], labels[k], float(bounds.estimate[i, k]), low, high, float(limits[i, k]))
