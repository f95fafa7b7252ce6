"""Levels at their best settings: bounds by naive loops, the ordinary comparison as a special case, error rates."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers.costly import slow_after
from helpers.tables import table_of
from scipy.stats import t as student

from tune_dml.stats.intervals.contrasts import against_last
from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import GUARD_SHARE, against, all_pairs, at_most
from tune_dml.stats.intervals.tuned import TunedLevels, tuned_levels
from tune_dml.stats.verdicts.selection import _best, choose_best_cells
from tune_dml.stats.verdicts.sensitivity import compare_all_with, compare_all_with_best_of, judge_sensitivity

nan = np.nan
ROWS = (0, 0, 0, 1, 2, 2)
"""Three, one and two settings."""


def drawn(means: Any, seeds: int, sweeps: int, noisy: int | None = None) -> np.ndarray:
    """Sweeps (sweeps, cells, seeds) of normal noise with a seed effect; one cell is five times as noisy."""
    means = np.asarray(means, dtype=float)
    random = np.random.default_rng([len(means), seeds, sweeps])
    noise = random.standard_normal((sweeps, len(means), seeds))
    if noisy is not None:
        noise[:, noisy] *= 5
    return means[:, None] + noise + random.standard_normal((sweeps, 1, seeds))


def naive_low(values: np.ndarray, rows: tuple[int, ...], alpha: float, comparisons: int, sides: int) -> np.ndarray:
    """L of every ordered pair of levels, by loops over cells."""
    noise, levels, cells = fit_pairs(values), max(rows) + 1, range(len(rows))

    def reach(i: int, k: int, count: int) -> float:
        loud = max(noise.beside[i, k], noise.beside[k, i])
        single = alpha / sides * (GUARD_SHARE if count > 1 else 1)
        family = student.isf(alpha / sides / count, noise.df[i, k]) * math.sqrt(loud)
        return max(family, student.isf(single, noise.guard_df[i, k]) * math.sqrt(noise.guard[i, k])) / math.sqrt(
            noise.shared[i, k]
        )

    def beaten(i: int) -> bool:
        rivals = [k for k in cells if rows[k] == rows[i] and k != i]
        count = sum(rows[i] == rows[k] for i, k in product(cells, cells) if i != k)
        return any(noise.estimate[k, i] > one_sided(k, i, count) for k in rivals)

    def one_sided(i: int, k: int, count: int) -> float:
        loud = max(noise.beside[i, k], noise.beside[k, i])
        family = student.isf(alpha / count, noise.df[i, k]) * math.sqrt(loud)
        single = student.isf(alpha * (GUARD_SHARE if count > 1 else 1), noise.guard_df[i, k])
        return max(family, single * math.sqrt(noise.guard[i, k])) / math.sqrt(noise.shared[i, k])

    low = np.zeros((levels, levels))
    for a, b in product(range(levels), range(levels)):
        if a == b:
            continue
        mine = [i for i in cells if rows[i] == a and not beaten(i)]
        worst = math.inf
        for k in (k for k in cells if rows[k] == b):
            worst = min(worst, max(noise.estimate[i, k] - reach(i, k, comparisons * len(mine)) for i in mine))
        low[a, b] = worst
    return low


@pytest.mark.parametrize("means", [[0] * 6, [0, 9, -9, 2, 4, 1]])
def test_bounds_are_those_of_loops_over_the_settings(means: list[float]) -> None:
    values = drawn(means, 5, 1)[0]
    values[1, 2] = nan
    tuned = TunedLevels(values, ROWS)
    bounds, low = tuned.pairs(0.05), naive_low(values, ROWS, 0.05, 3, 2)
    np.testing.assert_allclose(bounds.low, low)
    np.testing.assert_allclose(bounds.high, -low.T)
    alone = naive_low(values, ROWS, 0.05, 1, 1)
    off = ~np.eye(3, dtype=bool)
    np.testing.assert_allclose(tuned.at_most(0.05)[off], np.maximum(-alone, -alone.T)[off])
    family = naive_low(values, ROWS, 0.05, 2, 2)
    np.testing.assert_allclose(tuned.against(1, 0.05).low, family[:, 1])
    np.testing.assert_allclose(tuned.against(1, 0.05).high, -family[1])


def test_with_one_setting_per_level_the_comparison_is_the_ordinary_one() -> None:
    values = drawn([0, 1, 3, 2], 4, 1)[0]
    values[0, 1] = values[2, 3] = nan
    tuned = TunedLevels(values, (0, 1, 2, 3), 0.5)
    noise = fit_pairs(values, 0.5)
    np.testing.assert_array_equal(tuned.pairs().low, all_pairs(values, 0.05, noise).low)
    np.testing.assert_array_equal(tuned.at_most(), at_most(values, 0.05, noise))
    np.testing.assert_array_equal(tuned.against(3).high, against(values, 3, 0.05, noise).high)
    table = table_of(values)
    plain, best = judge_sensitivity(table, 1.0), choose_best_cells(list(values[:, None]))
    assert best.tuned is None
    same = judge_sensitivity(table, 1.0, tuned=TunedLevels(values, (0, 1, 2, 3)))
    assert same.differences == plain.differences
    assert compare_all_with_best_of(table, ["c3"]) == compare_all_with(table, "c3")


def test_a_setting_of_one_seed_bounds_nothing_and_blocks_no_other_level() -> None:
    values = drawn([0, 0, 9, 20], 6, 1)[0]
    values[1, 1:] = nan
    low = TunedLevels(values, (0, 0, 1, 2)).pairs().low
    assert low[2, 1] > 0
    assert math.isinf(low[1, 0])
    assert tuned_levels([values[:2], np.full((1, 6), nan), values[2:3]][::2]).rows == (0, 0, 1)


@pytest.mark.parametrize("seeds", slow_after(1, [3, 5, 10]))
@pytest.mark.parametrize("noisy", [None, 4])
def test_equal_levels_tuned_to_different_settings_do_not_differ(seeds: int, noisy: int | None) -> None:
    """Best settings 2 s.d. apart, one per level: with split halves 11 to 20 % of such sweeps claimed a difference."""
    means = [0, -2, -4, -6, 0, -2, -4, -6, -2, 0, -4, -6, -6, -4, -2, 0]
    tuned = TunedLevels(drawn(means, seeds, 600, noisy), tuple(np.repeat(range(4), 4).tolist()))
    assert (tuned.pairs().low > 0).any((1, 2)).mean() <= 0.065


def test_two_identical_methods_tuned_each_for_itself_are_equal_and_a_better_one_is_found() -> None:
    means = np.array([-3.0, 0.0, -1.0, -3.0, 0.0, -1.0])
    rows = (0, 0, 0, 1, 1, 1)
    assert (TunedLevels(drawn(means, 6, 600), rows).pairs().low > 0).any((1, 2)).mean() <= 0.065
    means[:3] += 3
    better = drawn(means, 6, 600)
    bounds = TunedLevels(better, rows).pairs()
    assert (bounds.low[:, 0, 1] > 0).mean() >= 0.85
    best = choose_best_cells([better[0, :3], better[0, 3:]])
    (difference,) = judge_sensitivity(table_of(best.values), 1.0, tuned=best.tuned).differences
    assert (difference.low, difference.high) == pytest.approx((bounds.low[0, 0, 1], bounds.high[0, 0, 1]))


@pytest.mark.parametrize("noisy", [None, 4])
def test_no_difference_of_the_margin_is_called_small(noisy: int | None) -> None:
    means = np.tile([0.0, -2, -2, -4], 3)
    rows = tuple(np.repeat(range(3), 4).tolist())
    equal = TunedLevels(drawn(means, 8, 600), rows)
    assert (equal.at_most() < 3).all((1, 2)).mean() > 0.9
    means[:4] += 3
    apart = TunedLevels(drawn(means, 8, 600, noisy), rows)
    assert (apart.at_most() < 3).all((1, 2)).mean() <= 0.065


@pytest.mark.parametrize(("sign", "count"), slow_after(1, [(1, 10), (-1, 10), (1, 20)]))
def test_the_best_of_many_equal_baselines_beats_no_cell_by_luck(sign: int, count: int) -> None:
    wrong, found = [], []
    for values in drawn([0] * (2 * count), 6, 40 if count < 20 else 30):
        labels = [f"c{row}" for row in range(count, 2 * count)]
        rows = compare_all_with_best_of(table_of(sign * values), labels, sign=sign)
        assert len(rows) == count
        wrong.append(any(d.low > 0 or d.high < 0 for d in rows))
        better = values.copy()
        better[0] += 5
        first, *_ = compare_all_with_best_of(table_of(sign * better), labels, sign=sign)
        found.append(sign * (first.low if sign > 0 else first.high) > 0)
    assert np.mean(wrong) <= 0.065
    assert np.mean(found) >= 0.9


def test_a_cell_beats_the_baseline_if_it_beats_each_of_its_cells() -> None:
    values = drawn([8, 0, 1, 0], 6, 1)[0]
    first, second = compare_all_with_best_of(table_of(values), ["c2", "c3"])
    assert (first.first, first.second) == ("c0", "c2")
    assert first.low > 0
    assert second.low < 0
    low = naive_low(values[[0, 1, 2, 3]], (0, 1, 2, 2), 0.05, 2, 2)
    assert first.low == pytest.approx(low[0, 2])
    assert first.high == pytest.approx(-low[2, 0])
    one = compare_all_with_best_of(table_of(values[:, :1]), ["c2", "c3"])
    assert [d.low for d in one] == [-math.inf, -math.inf]


def test_averages_of_all_levels_but_the_last_are_compared_with_the_last():
    assert against_last((0, 0, 1, 2, 2)).tolist() == [[0.5, 0.5, 0, -0.5, -0.5], [0, 0, 1, -0.5, -0.5]]


def test_a_cell_without_a_counted_value_is_never_the_best():
    within_seed = np.array([[-1.0, -2.0], [nan, nan], [-3.0, -1.0]])
    assert _best(within_seed, np.isfinite(within_seed), 3.0) == 0
