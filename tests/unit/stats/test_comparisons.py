"""Comparison bars, power and isolation."""

import math

import numpy as np
import pytest
from helpers.tables import table_of
from scipy import stats

from tune_dml.stats import Point, SeedTable, isolate, judge_matters
from tune_dml.stats.contrasts import fill_holes
from tune_dml.stats.power import detectable_difference, half_width
from tune_dml.stats.simultaneous import all_pairs, comparison_bars


@pytest.mark.parametrize("ramp", [1.0, 10.0])
def test_cells_whose_bars_do_not_overlap_differ(ramp: float) -> None:
    random = np.random.default_rng(7)
    for _ in range(30):
        values = random.normal(60, 4, size=(6, 1)) + random.normal(size=(6, 5)) * np.linspace(1, ramp, 6)[:, None]
        bounds = all_pairs(values)
        bars = comparison_bars(bounds)
        apart = np.abs(bounds.estimate) > bars[:, None] + bars
        assert ((bounds.low > 0) | (bounds.high < 0))[apart].all()


def test_a_noisy_cell_has_the_wide_bar() -> None:
    values = np.random.default_rng(0).normal(size=(6, 10))
    values[2] *= 10
    bars = comparison_bars(all_pairs(values))
    assert bars[2] > 2 * np.delete(bars, 2).max()


def test_bars_of_two_cells_share_their_interval_and_blind_cells_have_none() -> None:
    values = np.random.default_rng(1).normal(size=(3, 6))
    two = all_pairs(values[:2])
    assert comparison_bars(two).sum() == pytest.approx((two.high - two.low)[0, 1] / 2)
    values[2, 1:] = np.nan
    assert np.isfinite(comparison_bars(all_pairs(values))).tolist() == [True, True, False]
    assert np.isnan(comparison_bars(all_pairs(values[:, :1]))).all()


def test_detectable_difference_has_the_stated_power() -> None:
    size = detectable_difference(seeds=4, sd=1.5, cells=2)
    random = np.random.default_rng(6)
    differences = size + 1.5 * np.sqrt(2) * random.normal(size=(4000, 4))
    found = stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.025)
    assert detectable_difference(seeds=1, sd=1.0) == math.inf
    assert detectable_difference(seeds=3, sd=0.0) == 0.0


@pytest.mark.parametrize("cells", [3, 10])
def test_half_widths_are_those_of_the_intervals(cells: int) -> None:
    values = np.random.default_rng(3).normal(size=(600, cells, 5))
    bounds = all_pairs(values)
    wide = ((bounds.high - bounds.low) / 2)[:, ~np.eye(cells, dtype=bool)]
    assert half_width(seeds=5, sd=1.0, cells=cells) == pytest.approx(np.median(wide), rel=0.15)
    assert half_width(seeds=1, sd=1.0) == math.inf


def points(values: dict[tuple[object, object, object], list[float]]) -> list[Point]:
    return [Point(a, b, c, dict(enumerate(numbers))) for (a, b, c), numbers in values.items()]


def test_isolation_averages_scientific_knobs_and_keeps_their_cells() -> None:
    cells = points({("x", 1, ()): [1, 2], ("x", 2, ()): [3, 4], ("y", 1, ()): [5, 6], ("y", 2, ()): [7, 8]})
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1))
    np.testing.assert_array_equal(found.table.values, [[2, 3], [6, 7]])
    assert found.how == "averaged over the other knobs"
    assert found.crossed is not None
    assert found.crossed.rows == (0, 1, 0, 1)
    np.testing.assert_array_equal(found.crossed.values, [[1, 2], [5, 6], [3, 4], [7, 8]])


def test_a_lost_seed_of_an_average_is_made_up_for() -> None:
    cells = points({("x", 1, ()): [1, 2], ("x", 2, ()): [3], ("y", 1, ()): [5, 6], ("y", 2, ()): [7, 8]})
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1))
    assert found.means["x"] == pytest.approx(2.5, abs=1e-6)
    assert np.isnan(found.table.values[0, 1])
    filled, present = fill_holes(np.array([[1.0, 2], [3, np.nan]]))
    assert filled[1, 1] == pytest.approx(4, abs=1e-5)
    assert present.tolist() == [[1, 1], [1, 0]]


def test_main_effects_are_judged_by_the_noise_of_the_cells() -> None:
    values = np.random.default_rng(0).normal(size=(6, 5)) + np.array([0, 0, 10, 10, 20, 20])[:, None]
    cells = [Point(i // 2, i % 2, (), dict(enumerate(row))) for i, row in enumerate(values.tolist())]
    found = isolate(cells, {0: "a", 1: "b", 2: "c"}, range(5))
    verdict = judge_matters(found.table, 1.0, crossed=found.crossed)
    assert verdict.verdict == "sensitive"
    assert verdict.largest is not None
    assert (verdict.largest.first, verdict.largest.second) == ("c", "a")
    assert verdict.largest.estimate == pytest.approx(found.means["c"] - found.means["a"])
    assert verdict.bounds is not None
    assert (verdict.bounds.low <= verdict.bounds.high).all()


def test_isolation_tunes_nuisance_on_the_first_third_of_the_seeds() -> None:
    cells = points({("x", (), "a"): [9, 1, 1], ("x", (), "b"): [5, 5, 5], ("y", (), "a"): [0, 0, 0],
                    ("y", (), "b"): [-1, 7, 7]})  # fmt: skip
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1, 2))
    assert found.table.seeds == (1, 2)
    np.testing.assert_array_equal(found.table.values, [[1, 1], [0, 0]])
    least = isolate(cells, {"x": "x", "y": "y"}, (0, 1, 2), sign=-1)
    np.testing.assert_array_equal(least.table.values, [[5, 5], [7, 7]])
    one = isolate(cells, {"x": "x", "y": "y"}, (0,))
    assert one.problem == "one seed cannot both tune the other knobs and judge"


def test_choosing_does_not_flatter() -> None:
    random, total = np.random.default_rng(8), []
    for _ in range(300):
        cells = points({("x", (), k): list(60 + random.normal(size=3)) for k in range(8)})
        total.append(isolate(cells, {"x": "x"}, (0, 1, 2)).table.values.mean())
    assert np.mean(total) == pytest.approx(60, abs=0.15)  # the best mean of eight would show about 60.8


def test_values_that_were_not_crossed_have_no_table() -> None:
    cells = points({("x", 1, ()): [1, 2], ("y", 2, ()): [5, 6]})
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1))
    assert "a grid would compare them" in found.problem
    assert found.table.labels == ()
    partly = isolate(
        points({("x", 1, ()): [1, 2], ("x", 2, ()): [3, 4], ("y", 1, ()): [5, 6]}), {"x": "x", "y": "y"}, (0, 1)
    )
    assert partly.problem == ""
    np.testing.assert_array_equal(partly.table.values, [[1, 2], [5, 6]])


def test_values_without_numbers_are_no_rows_and_do_not_break_the_crossing() -> None:
    cells = [Point("x", 1, (), {0: 1.0}), Point("y", 1, (), {}), Point("z", 1, (), {0: 3.0})]
    found = isolate(cells, {"x": "x", "y": "y", "z": "z"}, (0,))
    assert found.table.labels == ("x", "z")
    assert isolate([Point("x", 1, (), {})], {"x": "x"}, (0,)).table.labels == ()


def test_infinite_values_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        table_of(np.array([[np.inf, 1.0]]))
    with pytest.raises(ValueError, match="shape"):
        SeedTable(("a",), (0,), np.ones((2, 2)))
