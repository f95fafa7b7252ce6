"""Paired differences, the baseline, power and isolation."""

import math

import numpy as np
import pytest
from scipy import stats
from tables import table_of

from tune_dml.stats import (
    Point,
    cell_interval,
    compare_with_baseline,
    detectable_difference,
    half_width,
    isolate,
    mean_interval,
    paired_difference,
    seeds_needed,
)


def test_t_interval_equals_scipy() -> None:
    values = np.random.default_rng(0).normal(60, 2, size=7)
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, 6, loc=values.mean(), scale=stats.sem(values))
    assert (found.n, found.low, found.high) == (7, pytest.approx(low), pytest.approx(high))
    assert found.algorithm == "Student's t"


def test_holes_are_skipped_and_counted() -> None:
    table = table_of(np.array([[1.0, 2, np.nan, 4], [2.0, np.nan, 3, 6]]))
    assert cell_interval(table, 0).n == 3
    difference = paired_difference(table, 1, 0)
    assert (difference.n, difference.mean) == (2, 1.5)


def test_pairing_removes_the_seed_effect() -> None:
    random = np.random.default_rng(1)
    shared = 10 * random.normal(size=6)
    table = table_of(np.stack([60 + shared, 61 + shared]) + 0.1 * random.normal(size=(2, 6)))
    found = paired_difference(table, 1, 0)
    assert found.high - found.low < 0.5
    assert cell_interval(table, 0).high - cell_interval(table, 0).low > 5


def test_bootstrap_is_seeded_and_close_to_t_for_many_seeds() -> None:
    values = np.random.default_rng(2).normal(60, 2, size=60)
    first, second = mean_interval(values, method="bootstrap"), mean_interval(values, method="bootstrap")
    assert first == second
    assert first.low == pytest.approx(mean_interval(values).low, abs=0.15)
    assert "bootstrap" in first.algorithm
    assert mean_interval(values, method="bootstrap", seed=1) != first


def test_one_or_no_number_has_no_interval() -> None:
    assert math.isnan(mean_interval([3.0]).low)
    assert mean_interval([3.0]).mean == 3.0
    assert mean_interval([]).n == 0


def test_baseline_words_follow_the_goal() -> None:
    values = np.array([[60.0, 61, 62], [66, 67.2, 67.9], [50, 51.1, 52], [60.1, 61, 61.9]])
    found = compare_with_baseline(table_of(values), "c0")
    assert found is not None
    assert [row.verdict for row in found.rows] == ["better", "worse", "undecided"]
    lower = compare_with_baseline(table_of(values), "c0", goal="minimize")
    assert lower is not None
    assert [row.verdict for row in lower.rows] == ["worse", "better", "undecided"]
    assert found.rows[0].difference == pytest.approx(values[1].mean() - 61)
    assert "Dunnett" in found.algorithm


def test_baseline_family_error() -> None:
    random, wrong, repeats = np.random.default_rng(4), 0, 500
    for _ in range(repeats):
        values = 60 + random.normal(size=3) + random.normal(size=(5, 3))
        found = compare_with_baseline(table_of(values), "c0")
        assert found is not None
        wrong += any(row.verdict != "undecided" for row in found.rows)
    assert wrong / repeats <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repeats)


def test_baseline_without_numbers_or_noise() -> None:
    values = np.array([[np.nan, np.nan], [60.0, 61.0]])
    assert compare_with_baseline(table_of(values), "c0") is None
    single = compare_with_baseline(table_of(np.array([[60.0], [70.0]])), "c0")
    assert single is not None
    assert single.rows[0].verdict == "undecided"
    assert math.isnan(single.rows[0].low)


def test_detectable_difference_has_the_stated_power() -> None:
    size = detectable_difference(seeds=4, sd=1.5, cells=2)
    random = np.random.default_rng(6)
    differences = size + 1.5 * np.sqrt(2) * random.normal(size=(4000, 4))
    found = stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.025)
    assert detectable_difference(seeds=1, sd=1.0) == math.inf
    assert detectable_difference(seeds=3, sd=0.0) == 0.0


def test_seeds_needed_is_the_first_that_suffices() -> None:
    needed = seeds_needed(margin=1.0, sd=0.8, cells=6)
    assert needed is not None
    assert half_width(seeds=needed, sd=0.8, cells=6) < 1.0 <= half_width(seeds=needed - 1, sd=0.8, cells=6)
    assert seeds_needed(margin=1.0, sd=0.8, cells=6, difference=1.0) is None
    assert half_width(seeds=1, sd=1.0) == math.inf


def points(values: dict[tuple[object, object, object], list[float]]) -> list[Point]:
    return [Point(a, b, c, dict(enumerate(numbers))) for (a, b, c), numbers in values.items()]


def test_isolation_averages_scientific_knobs() -> None:
    cells = points({("x", 1, ()): [1, 2], ("x", 2, ()): [3, 4], ("y", 1, ()): [5, 6], ("y", 2, ()): [7, 8]})
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1))
    np.testing.assert_array_equal(found.table.values, [[2, 3], [6, 7]])
    assert found.how == "averaged over the other knobs"
    assert found.crossed


def test_isolation_tunes_nuisance_on_the_other_seeds() -> None:
    cells = points({("x", (), "a"): [9, 1, 1], ("x", (), "b"): [5, 5, 5], ("y", (), "a"): [0, 0, 0]})
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1, 2))
    # seed 0 must not choose "a" because of its own luck; seeds 1 and 2 see 9 and 1 there, mean 5, a tie with "b"
    np.testing.assert_array_equal(found.table.values[0], [5, 1, 1])
    assert "nuisance" in found.how


def test_choosing_on_the_same_seeds_would_flatter_but_leaving_one_out_does_not() -> None:
    random, total = np.random.default_rng(8), []
    for _ in range(300):
        cells = points({("x", (), k): list(60 + random.normal(size=3)) for k in range(8)})
        total.append(isolate(cells, {"x": "x"}, (0, 1, 2)).table.values.mean())
    assert np.mean(total) == pytest.approx(60, abs=0.12)  # the best mean of eight would show about 60.8


def test_uncrossed_values_and_failures_are_named() -> None:
    cells = points({("x", 1, ()): [1, 2], ("x", 2, ()): [3, 4], ("y", 1, ()): [5, 6]})
    found = isolate(cells, {"x": "x", "y": "y"}, (0, 1))
    assert not found.crossed
    assert found.table.labels == ("x",)
    broken = [Point("x", (), (), {0: 1.0}), Point("y", (), (), {}, failed="diverged under seed 0")]
    found = isolate(broken, {"x": "x", "y": "y"}, (0,))
    assert found.table.excluded[0].reason == "diverged under seed 0"
    assert found.crossed
