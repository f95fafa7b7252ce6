"""The Gaussian process of a search: its noise, its coordinates and its proposals."""

import numpy as np
import pytest
from helpers import toys
from helpers.toys import space_of

from tune_dml.planning.study import Search
from tune_dml.running.search.gaussian import MIN_CELLS, GaussianSearch, _fitted_cells, _noise, _select_cells
from tune_dml.running.search.points import _ARM, Points
from tune_dml.space import Arm, Grid, Knob, LogRange, Range

LR = Knob("optim.lr", LogRange(1e-4, 1e-1))
K = Knob("loss.k", Range(1, 30, integer=True))
MARGIN = Knob("loss.margin", Grid((0.1, 0.2, 0.4)))
NAME = Knob("optim.name", Grid(("adamw", "sgd"), scale="category"))


def points_of(*knobs, arms=()):
    fixed = {} if arms else {"loss.name": "triplet"}
    space = space_of(*knobs, arms=arms, fixed=fixed)
    return Points.of_plan(toys.plan_of(space=space, seeds=1, search=Search("gp", 4)))


def two_arms():
    triplet = Arm("triplet", {"loss.name": "triplet"}, own_knobs=(MARGIN,))
    return points_of(LR, arms=(triplet, Arm("topk", {"loss.name": "dro_topk"}, own_knobs=(K,))))


@pytest.mark.parametrize("points", [points_of(LR, MARGIN, NAME), two_arms()], ids=["one arm", "two"])
def test_points_and_coordinates_convert_both_ways(points):
    for place in np.random.default_rng(0).random((50, points.dimensions)).tolist():
        point = points.point_at(place)
        again = points.point_at(points.coordinates(point))
        assert again == pytest.approx(point)
        here, there = points.columns(np.array([place, points.coordinates(point)]))
        assert here == pytest.approx(there)


def test_columns_cover_the_knobs_of_all_arms():
    points = two_arms()
    first, second = {_ARM: "triplet", "optim.lr": 1e-2, "triplet: loss.margin": 0.2}, {_ARM: "topk", "optim.lr": 1e-3}
    second["topk: loss.k"] = 30
    columns = points.columns(np.array([points.coordinates(first), points.coordinates(second)]))
    assert columns == pytest.approx(np.array([[1, 0, 2 / 3, 0.5, 0.5], [0, 1, 1 / 3, 0.5, 59 / 60]]))


def test_the_noise_of_a_mean_excludes_seed_effects():
    rng = np.random.default_rng(0)
    numbers = 100 * rng.normal(size=3) + 50 * rng.normal(size=(4000, 1)) + 2 * rng.normal(size=(4000, 3))
    assert _noise(numbers).mean() == pytest.approx(4 / 3, rel=0.05)
    numbers[:2000] += 6 * rng.normal(size=(2000, 3))
    loud, quiet = _noise(numbers)[:2000].mean(), _noise(numbers)[2000:].mean()
    assert loud == pytest.approx((40 + 22) / 2 / 3, rel=0.05)
    assert quiet == pytest.approx((4 + 22) / 2 / 3, rel=0.05)
    assert (_noise(numbers[:, :1]) == 0).all()


def test_a_noisy_cell_has_less_weight():
    """Two equally good means: the next point is near the more certain one."""
    points = points_of(LR)
    told = np.linspace(0.05, 0.95, 10)[:, None]
    numbers = np.tile([-0.1, 0.0, 0.1], (10, 1))
    for best, other in ((2, 7), (7, 2)):
        values = numbers + 3.0 * np.isin(np.arange(10), (best, other))[:, None]
        values[other] += [-9, 0, 9]
        found = GaussianSearch(points).propose(told, values, np.empty((0, 1)), 0)
        assert abs(found[0] - told[best, 0]) < abs(found[0] - told[other, 0])


def test_pending_points_are_kept_away_from():
    points, told = points_of(LR), np.linspace(0.05, 0.95, 8)[:, None]
    values = -10 * (told - 0.62) ** 2 + [-0.01, 0.0, 0.01]
    alone = GaussianSearch(points).propose(told, values, np.empty((0, 1)), 1)
    beside = GaussianSearch(points).propose(told, values, np.array([alone]), 1)
    assert abs(alone[0] - 0.62) < 0.1
    assert beside != alone


def test_the_kernel_is_fitted_as_the_cells_grow_by_a_quarter():
    sizes = sorted({_fitted_cells(told) for told in range(MIN_CELLS, 40)})
    assert sizes == [5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33]
    assert all(_fitted_cells(told) <= told for told in range(MIN_CELLS, 40))


def test_of_many_cells_the_better_ones_and_an_even_sample_are_kept():
    values = np.random.default_rng(0).permutation(1000).astype(float)
    kept = _select_cells(values, 300)
    assert len(set(kept.tolist())) == 300
    assert set(values[kept]) >= set(range(850, 1000))
    assert len(_select_cells(values[:300], 300)) == 300
