"""Comparison bars, power and isolation."""

import math

import numpy as np
import pytest
from helpers.tables import table_of
from scipy import stats

from tune_dml.stats import KnobPoint, SeedTable, isolate, judge_sensitivity
from tune_dml.stats.intervals.contrasts import fill_holes
from tune_dml.stats.intervals.simultaneous import Bounds, all_pairs, comparison_bars
from tune_dml.stats.power import detectable_difference, half_width


@pytest.mark.parametrize("ramp", [1.0, 10.0])
@pytest.mark.parametrize("lost", [0, 2])
def test_cells_whose_bars_do_not_overlap_differ(ramp: float, lost: int) -> None:
    random = np.random.default_rng(7)
    for _ in range(30):
        values = random.normal(60, 4, size=(6, 1)) + random.normal(size=(6, 5)) * np.linspace(1, ramp, 6)[:, None]
        values += random.normal(size=5) * 20  # what a seed does to all cells
        values[0, :lost] = np.nan
        means = np.nanmean(values, axis=1)
        bounds = all_pairs(values)
        bars = comparison_bars(bounds, means)
        apart = np.abs(np.subtract.outer(means, means)) > bars[:, None] + bars
        assert ((bounds.low > 0) | (bounds.high < 0))[apart].all()


def test_bars_cover_every_pair_if_half_widths_are_equal() -> None:
    random = np.random.default_rng(1)
    for _ in range(300):
        m = random.integers(3, 16)
        reach = random.choice(1.0 + random.random(random.integers(1, 3)), size=(m, m))
        reach = np.maximum(reach, reach.T)
        np.fill_diagonal(reach, 0)
        bars = comparison_bars(Bounds(np.zeros((m, m)), -reach, reach), np.zeros(m))
        assert (bars[:, None] + bars >= reach * (1 - 1e-6))[~np.eye(m, dtype=bool)].all()
        if len(np.unique(reach)) == 2:  # 0 and one half-width
            assert bars == pytest.approx(np.full(m, reach.max() / 2))


def test_a_pair_with_few_seeds_lengthens_its_own_bars_alone() -> None:
    values = np.random.default_rng(2).normal(size=(8, 5))
    whole = comparison_bars(all_pairs(values), values.mean(1))
    values[0, :2], values[1, 3:] = np.nan, np.nan  # one shared seed does not judge them
    bounds, means = all_pairs(values), np.nanmean(values, axis=1)
    bars = comparison_bars(bounds, means)
    reach = np.maximum(bounds.high - bounds.estimate, bounds.estimate - bounds.low)
    reach += np.abs(np.subtract.outer(means, means) - bounds.estimate)
    off = ~np.eye(8, dtype=bool)
    assert (bars[:, None] + bars >= reach * (1 - 1e-9))[off].all()
    assert bars[:2].min() > 2 * bars[2:].max()
    assert np.median(bars[2:]) < 1.5 * np.median(whole)
    many = Bounds(np.zeros((120, 120)), -np.ones((120, 120)), np.ones((120, 120)))
    assert comparison_bars(many, np.zeros(120)) == pytest.approx(np.full(120, 0.5))


def test_bars_of_two_cells_share_their_interval_blind_cells_have_none_and_exact_ones_no_width() -> None:
    values = np.random.default_rng(1).normal(size=(3, 6))
    two = all_pairs(values[:2])
    assert comparison_bars(two, values[:2].mean(1)).sum() == pytest.approx((two.high - two.low)[0, 1] / 2)
    values[2, 1:] = np.nan
    assert np.isfinite(comparison_bars(all_pairs(values), np.nanmean(values, axis=1))).tolist() == [True, True, False]
    assert np.isnan(comparison_bars(all_pairs(values[:, :1]), values[:, 0])).all()
    values = np.array([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])
    difference = np.subtract.outer(values[:, 0], values[:, 0])
    exact = Bounds(difference, difference, difference)
    with np.errstate(all="raise"):
        assert comparison_bars(exact, values.mean(1)).tolist() == [0.0, 0.0]


def test_detectable_difference_has_the_stated_power() -> None:
    size = detectable_difference(seeds=4, sd=1.5, cells=2)
    random = np.random.default_rng(6)
    differences = size + 1.5 * np.sqrt(2) * random.normal(size=(4000, 4))
    found = stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.025)
    assert detectable_difference(seeds=1, sd=1.0) == math.inf
    assert detectable_difference(seeds=3, sd=0.0) == 0.0


@pytest.mark.parametrize("cells", [3, 10])
def test_half_widths_equal_those_of_the_intervals(cells: int) -> None:
    values = np.random.default_rng(3).normal(size=(600, cells, 5))
    bounds = all_pairs(values)
    wide = ((bounds.high - bounds.low) / 2)[:, ~np.eye(cells, dtype=bool)]
    assert half_width(seeds=5, sd=1.0, cells=cells) == pytest.approx(np.median(wide), rel=0.15)
    assert half_width(seeds=1, sd=1.0) == math.inf


def points(values: dict[tuple[object, object, object], list[float]]) -> list[KnobPoint]:
    return [KnobPoint(a, b, c, dict(enumerate(numbers))) for (a, b, c), numbers in values.items()]


def test_isolation_averages_scientific_knobs_and_keeps_their_cells() -> None:
    cells = points({("x", 1, ()): [1, 2], ("x", 2, ()): [3, 4], ("y", 1, ()): [5, 6], ("y", 2, ()): [7, 8]})
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1))
    np.testing.assert_array_equal(found.table.values, [[2, 3], [6, 7]])
    assert found.how == "averaged over the other knobs"
    assert found.crossed is not None
    assert found.crossed.rows == (0, 1, 0, 1)
    np.testing.assert_array_equal(found.crossed.values, [[1, 2], [5, 6], [3, 4], [7, 8]])


def test_a_lost_seed_of_an_average_is_estimated() -> None:
    cells = points({("x", 1, ()): [1, 2], ("x", 2, ()): [3], ("y", 1, ()): [5, 6], ("y", 2, ()): [7, 8]})
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1))
    assert found.means["x"] == pytest.approx(2.5, abs=1e-6)
    assert np.isfinite(found.table.values).sum(1).tolist() == [1, 2]
    assert np.isnan(found.table.values[0, 1])
    filled, present = fill_holes(np.array([[1.0, 2], [3, np.nan]]))
    assert filled[1, 1] == pytest.approx(4, abs=1e-5)
    assert present.tolist() == [[1, 1], [1, 0]]


def test_holes_are_filled_by_least_squares_also_if_few_seeds_connect_the_cells() -> None:
    values = np.where(np.tri(6, 7, 1) - np.tri(6, 7, -1) > 0, np.random.default_rng(0).normal(60, 1, (6, 7)), np.nan)
    cell, seed = np.nonzero(np.isfinite(values))
    effects = np.linalg.lstsq(np.hstack([np.eye(6)[cell], np.eye(7)[seed]]), values[cell, seed])[0]
    expected = np.where(np.isfinite(values), values, np.add.outer(effects[:6], effects[6:]))
    np.testing.assert_allclose(fill_holes(values)[0], expected)


def test_main_effects_are_judged_by_the_noise_of_the_cells() -> None:
    values = np.random.default_rng(0).normal(size=(6, 5)) + np.array([0, 0, 10, 10, 20, 20])[:, None]
    cells = [KnobPoint(i // 2, i % 2, (), dict(enumerate(row))) for i, row in enumerate(values.tolist())]
    found = isolate(cells, {0: "a", 1: "b", 2: "c"}, range(5))
    verdict = judge_sensitivity(found.table, 1.0, crossed=found.crossed)
    assert verdict.verdict == "sensitive"
    assert verdict.largest is not None
    assert (verdict.largest.first, verdict.largest.second) == ("c", "a")
    assert verdict.largest.estimate == pytest.approx(found.means["c"] - found.means["a"])
    assert verdict.bounds is not None
    assert (verdict.bounds.low <= verdict.bounds.high).all()


def test_isolation_shows_each_value_at_its_best_nuisance_setting_and_keeps_all_of_them() -> None:
    cells = points({("x", (), "a"): [9, 1, 1], ("x", (), "b"): [5, 5, 5], ("y", (), "a"): [0, 0, 0],
                    ("y", (), "b"): [-1, 7, 7]})  # fmt: skip
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1, 2))
    np.testing.assert_array_equal(found.table.values, [[5, 5, 5], [-1, 7, 7]])
    assert found.how == "at each value's best nuisance setting, chosen on the same seeds"
    assert found.tuned is not None
    assert found.tuned.rows == (0, 0, 1, 1)
    np.testing.assert_array_equal(found.tuned.values, [[9, 1, 1], [5, 5, 5], [0, 0, 0], [-1, 7, 7]])
    least = isolate(cells, {"x": "x", "y": "y"}, (0, 1, 2), sign=-1)
    np.testing.assert_array_equal(least.table.values, [[9, 1, 1], [0, 0, 0]])
    assert least.tuned is not None
    verdict = judge_sensitivity(least.table, 1.0, tuned=least.tuned, sign=-1)
    assert verdict.bounds is not None
    np.testing.assert_allclose(verdict.bounds.estimate, [[0, 11 / 3], [-11 / 3, 0]])
    one = isolate(cells, {"x": "x", "y": "y"}, (0,))
    assert judge_sensitivity(one.table, 1.0, tuned=one.tuned).reason == "one seed gives no noise estimate"


def test_other_scientific_knobs_are_averaged_over_before_a_nuisance_knob_is_tuned() -> None:
    cells = points({("x", 1, "a"): [1, 1], ("x", 2, "a"): [3, 3], ("x", 1, "b"): [9, 9], ("x", 2, "b"): [-7, -7],
                    ("y", 1, "a"): [0, 0], ("y", 2, "a"): [0, 2], ("y", 1, "b"): [5, 5], ("y", 2, "b"): [5, 5]})  # fmt: skip
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1), resolution=1.0)
    np.testing.assert_array_equal(found.table.values, [[2, 2], [5, 5]])
    assert found.how.endswith("chosen on the same seeds, averaged over the other knobs")
    assert found.tuned is not None
    np.testing.assert_array_equal(found.tuned.values, [[2, 2], [1, 1], [0, 1], [5, 5]])
    assert found.tuned.resolution == pytest.approx(1 / np.sqrt(2))


def test_values_that_were_not_crossed_have_no_table() -> None:
    cells = points({("x", 1, ()): [1, 2], ("y", 2, ()): [5, 6]})
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1))
    assert "a grid would compare them" in found.problem
    assert (found.table.labels, found.how) == ((), "")
    for lost in ({}, {("y", 2, ()): []}):
        partly = points({("x", 1, ()): [1, 2], ("x", 2, ()): [3, 4], ("y", 1, ()): [5, 6], **lost})
        found = isolate(partly, {"x": "x", "y": "y"}, (0, 1))
        assert found.problem == ""
        assert found.how == "at the one of 2 settings of the other knobs where every value has a number"
        np.testing.assert_array_equal(found.table.values, [[1, 2], [5, 6]])
    most = points({(level, other, ()): [1, 2] for level, other in [("x", 1), ("x", 2), ("x", 3), ("y", 1), ("y", 2)]})
    where = "averaged over the 2 of 3 settings of the other knobs where every value has a number"
    assert isolate(most, {"x": "x", "y": "y"}, (0, 1)).how == where


def test_values_without_numbers_are_left_out_and_do_not_break_the_crossing() -> None:
    cells = [KnobPoint("x", 1, (), {0: 1.0}), KnobPoint("y", 1, (), {}), KnobPoint("z", 1, (), {0: 3.0})]
    found = isolate(cells, {"x": "x", "y": "y", "z": "z"}, (0,))
    assert (found.table.labels, found.how) == (("x", "z"), "")
    assert isolate([KnobPoint("x", 1, (), {})], {"x": "x"}, (0,)).table.labels == ()
    cells = points({("x", (), "a"): [9, 8], ("x", (), "b"): [], ("y", (), "a"): [1, 2], ("y", (), "b"): [3, 4]})
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1))
    assert found.tuned is not None
    assert found.tuned.rows == (0, 1, 1)


def test_infinite_values_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        table_of(np.array([[np.inf, 1.0]]))
    with pytest.raises(ValueError, match="shape"):
        SeedTable(("a",), (0,), np.ones((2, 2)))


def test_nuisance_settings_that_no_two_settings_of_the_other_knobs_share_are_not_averaged() -> None:
    cells = points(
        {(level, other, setting): [1, 2] for level in "xy" for other, setting in [(1, "a"), (1, "b"), (2, "c")]}
    )
    assert "a grid would compare them" in isolate(cells, {"x": "x", "y": "y"}, (0, 1)).problem
    whole = {("x", other, setting): [1, 2] for other in (1, 2) for setting in "ab"}
    lost = {("y", 1, "a"): [1, 2], ("y", 1, "b"): [], ("y", 2, "a"): [], ("y", 2, "b"): [1, 2]}
    assert "a grid would compare them" in isolate(points({**whole, **lost}), {"x": "x", "y": "y"}, (0, 1)).problem
