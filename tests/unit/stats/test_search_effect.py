"""The permutation test of a searched knob: rarely wrong of a knob that does nothing, and it finds one that acts."""

import numpy as np
import pytest

from tune_dml.stats.verdicts.search_effect import judge_search_effect


def drawn(number, curve, cells=16, knobs=2):
    """Places and means of a random search with noise 1."""
    rng = np.random.default_rng(number)
    places = rng.random((cells, knobs))
    return places, curve(places) + rng.standard_normal(cells)


def p_values(curve, times, **options):
    searches = [drawn(number, curve, **options) for number in range(times)]
    return np.array([judge_search_effect(at[:, :1], at[:, 1:], means).p_value for at, means in searches])


@pytest.mark.parametrize(
    "curve",
    [
        lambda x: 0 * x[:, 0],
        lambda x: -20 * (x[:, 1] > 0.7),
        lambda x: 15 * np.exp(-(((x[:, 1] - 0.4) / 0.1) ** 2)),
    ],
    ids=["nothing acts", "a cliff of the other", "a narrow peak of the other"],
)
def test_an_idle_knob_has_an_effect_in_at_most_5_of_100_searches(curve):
    found = p_values(curve, 120) <= 0.05
    assert found.mean() <= 0.05 + 2.6 * np.sqrt(0.05 * 0.95 / 120)


def test_it_finds_a_slope_beside_a_cliff_of_another_knob():
    assert (p_values(lambda x: 12 * x[:, 0] - 12 * (x[:, 1] > 0.7), 40, cells=24) <= 0.05).mean() > 0.8


def test_it_names_the_range_that_differs_and_by_how_much():
    places, means = drawn(3, lambda x: -9.0 * (x[:, 0] > 0.6), cells=30, knobs=1)
    found = judge_search_effect(places, np.zeros((30, 0)), means)
    assert found.p_value < 0.001
    inside = np.array(found.inside)
    assert set(places[inside, 0] > 0.6) == ({True} if found.difference < 0 else {False})
    assert abs(found.difference) == pytest.approx(9, abs=1.5)


def test_names_are_compared_with_all_others():
    names = np.eye(3)[np.arange(18) % 3]
    means = 5.0 * names[:, 2] + np.random.default_rng(0).standard_normal(18)
    found = judge_search_effect(names, np.zeros((18, 0)), means)
    assert found.p_value < 0.01
    assert list(found.inside) == [bool(row[2]) for row in names]


def test_few_configurations_or_a_single_value_are_not_tested():
    rng = np.random.default_rng(0)
    assert judge_search_effect(rng.random((7, 1)), np.zeros((7, 0)), rng.random(7)) is None
    assert judge_search_effect(np.full((12, 1), 0.5), np.zeros((12, 0)), rng.random(12)) is None
