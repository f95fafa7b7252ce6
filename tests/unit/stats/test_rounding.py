"""Rounding decides nothing: ties go to the first cell, equal cells do not differ, and no processor draws other chances."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from helpers.tables import table_of

from tune_dml.stats import forecast
from tune_dml.stats.intervals import Array, size_of, without_rounding
from tune_dml.stats.intervals.contrasts import FullGrid
from tune_dml.stats.intervals.resolution import resolution_shown
from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.sequential.racing import judge_race
from tune_dml.stats.verdicts.chance import p_best
from tune_dml.stats.verdicts.curve import fit_parabola
from tune_dml.stats.verdicts.equivalence import judge_order
from tune_dml.stats.verdicts.importance import importance_of_grid, importance_of_search
from tune_dml.stats.verdicts.ranks import kendall_tau
from tune_dml.stats.verdicts.search_effect import judge_search_effect
from tune_dml.stats.verdicts.selection import best_first, score_of_best
from tune_dml.stats.verdicts.sensitivity import judge_sensitivity

THIRD = 100 / 3  # the step of R@1 of three queries
TIED = THIRD * np.array([[0.0, 1, 2, 2, 1, 3], [3.0, 2, 1, 1, 2, 0], [1.0, 0, 2, 2, 3, 1]])
"""Three cells with equal means, whose sums are rounded differently."""


def test_numbers_that_differ_by_rounding_become_the_largest_of_them() -> None:
    numbers = np.array([[0.3, 0.1 + 0.2, 0.1, -np.inf, -np.inf], [1.0, 2.0, 3.0, 2.0 + 1e-15, 0.0]])
    equal = without_rounding(numbers, np.array([[1.0], [10.0]]))
    assert equal.tolist() == [[0.1 + 0.2, 0.1 + 0.2, 0.1, -np.inf, -np.inf], [1.0, 2 + 1e-15, 3.0, 2 + 1e-15, 0.0]]
    assert size_of(np.array([[1.0, -4.0], [np.nan, 2.0]])).tolist() == [4, 2]
    assert size_of(np.zeros((2, 0))).tolist() == [0, 0]


def test_a_huge_value_hides_no_difference_between_other_cells() -> None:
    values = np.array([[1.0, 1.1, 0.9, 1.0], [2.0, 2.1, 2.0, 1.9], [-1e12, -3e12, -2e12, -1e12]])
    assert best_first(values) == [1, 0, 2]
    assert int(judge_race(values, 1.0, 0.05).leader) == int(score_of_best(values).best) == 1


@pytest.mark.parametrize(
    "choose",
    [
        best_first,
        lambda values: int(score_of_best(values[:, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]]).best),
        lambda values: int(judge_race(values, 1.0, 0.05).leader),
    ],
    ids=["ranking", "selected", "leader of a race"],
)
def test_the_first_of_equal_cells_is_chosen_in_any_order_of_the_seeds_and_on_any_scale(
    choose: Callable[[Array], object],
) -> None:
    rng = np.random.default_rng(0)
    chosen = {
        str(choose(scale * TIED[rng.permutation(3)][:, rng.permutation(6)] + offset))
        for scale in (1, 3.7, 1e-9)
        for offset in (0, 1000 * scale)
        for _ in range(20)
    }
    assert chosen <= {"0", "[0, 1, 2]"}


def test_tau_of_equal_means_does_not_depend_on_the_order_of_the_seeds() -> None:
    rng, steep = np.random.default_rng(0), np.array([1.0, 2.0, 3.0, 4.0])
    tables = [np.vstack([TIED, TIED[:1] + THIRD])[:, rng.permutation(6)] for _ in range(20)]
    assert {round(kendall_tau(table.mean(1), steep), 12) for table in tables} == {round(math.sqrt(0.5), 12)}
    orders = (judge_order(b.estimate, b.low, b.high, [1.0, 2.0, 3.0, 4.0], run_sd=1.0) for b in map(all_pairs, tables))
    assert {order.tau for order in orders} == {0.5}


@pytest.mark.parametrize("lost", [0, 1])
def test_equal_cells_of_a_grid_do_not_differ(lost: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        values = np.tile(rng.normal(50, 3, 5), (21, 1))
        values[4, :lost] = np.nan
        rows = tuple(np.indices((3, 7))[0].ravel().tolist())
        assert not (FullGrid(values, rows).pairs(0.05).low > 0).any()
        assert importance_of_grid(values.reshape(3, 7, 5)).problem


def test_equal_cells_have_equal_chances_whatever_their_order() -> None:
    seeds, other = np.array([50.1, 48.3, 51.7, 49.9]), np.array([50.3, 48.0, 51.9, 49.7])
    assert p_best(np.array([seeds, seeds])).tolist() == [0.5, 0.5]
    first, second, _ = p_best(np.array([seeds, seeds, other]))
    assert first == second > 0.2


def test_chances_do_not_depend_on_the_signs_of_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(0, 1, (5, 4))

    def chances() -> list[float]:
        drawn = forecast._continuations(values, 3, scale=1.0)
        assert drawn is not None
        return [*p_best(values).tolist(), *drawn[..., 4:].mean((0, 2)).tolist()]

    usual, eigh = chances(), np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda matrix: (eigh(matrix)[0], -eigh(matrix)[1]))
    assert chances() == pytest.approx(usual, abs=1e-9)


def test_a_range_is_named_before_the_rest_of_the_knob() -> None:
    rng = np.random.default_rng(5)
    for cells in range(12, 60):
        levels = np.repeat([0.0, 1.0], [cells // 2, cells - cells // 2])[:, None]
        found = judge_search_effect(levels, np.zeros((cells, 0)), rng.normal(0, 1, cells) / 3)
        assert found is not None
        assert found.inside[0]


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (0.0, 1e-9), (1e6, 1e-3)])
def test_the_fit_of_a_parabola_is_checked_on_any_scale(offset: float, scale: float) -> None:
    u = np.linspace(-1, 1, 9)
    saturating = np.minimum(u, 0.2) - 0.12 * np.maximum(u, 0.2)
    values = saturating[:, None] + 0.001 * np.random.default_rng(0).normal(0, 1, (9, 5))
    assert fit_parabola(offset + scale * values, u).verdict == "no parabola"


def test_equal_values_have_no_top() -> None:
    rng = np.random.default_rng(0)
    tables = (np.tile(rng.normal(50, 3, n), (5, 1)) for n in rng.integers(3, 6, 1500))
    assert {fit_parabola(table, np.arange(5.0)).verdict for table in tables} == {"no parabola"}


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_step_of_rounded_values_is_found_in_any_order(scale: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        hits = np.append(rng.integers(700, 1000, 15), [700, 701])
        values = (scale * hits / 1000).astype(np.float32).astype(float)
        shown = resolution_shown([[value] for value in rng.permutation(values)])
        assert shown == pytest.approx(scale / 1000, rel=1e-3)


def test_the_first_of_equal_differences_is_named() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = np.vstack([TIED, TIED[[1]] + 1])[:, rng.permutation(6)]
        largest = judge_sensitivity(table_of(values), 10.0).largest
        assert largest is not None
        assert (largest.first, largest.second) == ("c3", "c0")


@pytest.mark.parametrize("values", [np.full((12, 3), THIRD), THIRD * np.array([[0.0, 1, 2], [2.0, 1, 0]] * 6)])
def test_a_search_of_equal_configurations_has_no_importance(values: Array) -> None:
    positions = list(np.random.default_rng(0).random((2, 12, 1)))
    found = importance_of_search(positions, [np.linspace(0, 1, 5)[:, None]] * 2, values)
    assert found.problem.startswith("a model of the configurations predicts 0%")
