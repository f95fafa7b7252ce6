"""Spreads of sources of chance: coverage by simulation, and nothing claimed where seeds cannot tell."""

import math

import numpy as np
import pytest
from helpers.costly import slow_after
from scipy.stats import chi2

from tune_dml.stats.intervals.components import _spread_of, difference_spread, together, trial_spread


def test_one_part_has_the_chi_squared_interval():
    found = _spread_of([(4.0, 7.0)])
    assert found.sd == 2.0
    assert (found.low, found.high) == pytest.approx(
        (math.sqrt(28 / chi2.ppf(0.975, 7)), math.sqrt(28 / chi2.ppf(0.025, 7)))
    )


def test_a_trials_spread_is_the_mean_over_cells_of_each_cells_variance():
    values = np.random.default_rng(0).normal(size=(5, 4)) + np.arange(4)
    assert trial_spread(values).sd ** 2 == pytest.approx(values.var(axis=1, ddof=1).mean())


def test_a_difference_spreads_as_the_pairs_do():
    values = np.random.default_rng(1).normal(size=(3, 6))
    pairs = [(values[i] - values[k]).var(ddof=1) for i in range(3) for k in range(i)]
    assert difference_spread(values).sd ** 2 == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize("values", [np.ones((3, 1)), np.full((2, 4), np.nan), np.array([[1.0, np.nan], [np.nan, 2.0]])])
def test_nothing_is_claimed_where_no_seed_is_repeated(values):
    assert not trial_spread(values).known
    assert not together([trial_spread(values), _spread_of([(1.0, 3.0)])]).known
    assert not together([]).known


def test_one_cell_has_no_difference():
    assert not difference_spread(np.arange(4.0)[None]).known
    assert trial_spread(np.arange(4.0)[None]).sd == pytest.approx(np.arange(4).std(ddof=1))


@pytest.mark.parametrize(
    ("cells", "seeds", "shared"), slow_after(1, [(6, 3, 3.0), (1, 3, 1.0), (6, 10, 1.0), (18, 5, 1.0)])
)
def test_intervals_cover_the_truth(cells, seeds, shared):
    """600 sweeps whose cells rise and fall together by `shared` and alone by 1; Monte Carlo error 0.9 points."""
    rng = np.random.default_rng(2)
    alone, summed = [], []
    for _ in range(600):
        first = trial_spread(shared * rng.normal(size=(1, seeds)) + rng.normal(size=(cells, seeds)))
        second = trial_spread(0.5 * rng.normal(size=(1, seeds)) + 0.5 * rng.normal(size=(cells, seeds)))
        alone.append(first.low <= math.hypot(shared, 1) <= first.high)
        total = together([first, second])
        summed.append(total.low <= math.sqrt(shared**2 + 1.5) <= total.high)
    assert 0.925 <= np.mean(alone) <= 0.985
    assert 0.925 <= np.mean(summed) <= 0.985
