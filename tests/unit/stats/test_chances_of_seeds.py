"""What further seeds would show, against draws one by one."""

import numpy as np
import pytest

from tune_dml.stats.noise import fit_pairs
from tune_dml.stats.power import (
    _predicted,
    chance_of_difference,
    chance_to_decide,
    range_to_decide,
    seeds_to_decide,
)


def table(gap, cells=3, seeds=4, sd=1.0, seed=0):
    values = sd * np.random.default_rng(seed).standard_normal((cells, seeds))
    values[0] += gap
    return fit_pairs(values)


@pytest.mark.parametrize(("gap", "multiple", "planned"), [(0.8, 2.5, 12), (0.2, 2.2, 6), (3.0, 4.0, 5)])
def test_the_chance_is_that_of_means_drawn_from_what_is_known(gap, multiple, planned):
    draw, seeds, runs = np.random.default_rng(3), 4, 200_000
    sd = np.sqrt((seeds - 1) / draw.chisquare(seeds - 1, runs))
    truth = gap + sd * draw.standard_normal(runs) / np.sqrt(seeds)
    fresh = truth + sd * draw.standard_normal(runs) / np.sqrt(planned - seeds)
    mean = (seeds * gap + (planned - seeds) * fresh) / planned
    assert _predicted(gap, multiple, seeds, planned) == pytest.approx(
        (mean > multiple / np.sqrt(planned)).mean(), abs=0.006
    )


def test_more_seeds_show_what_there_is_and_the_seeds_that_would_about_decide_do_so_half_the_time():
    noise = table(2.0, sd=1.5, seed=1)

    def level(_):
        return 0.05

    needed = seeds_to_decide(noise, 1.0, 5, level)
    assert chance_to_decide(noise, 1.0, 4, needed, 0.05) == pytest.approx(0.5, abs=0.02)
    chances = [chance_of_difference(noise, (0, 1), 4, planned, 0.05) for planned in (5, 10, 40)]
    assert chances == sorted(chances)
    low, high = range_to_decide(noise, 1.0, 5, level)
    assert low <= needed <= (high or 1000)


def test_nothing_is_foretold_of_one_seed_or_of_no_further_ones():
    assert np.isnan(_predicted(1.0, 2.0, 1, 5))
    assert np.isnan(_predicted(1.0, 2.0, 5, 5))


def test_a_difference_that_may_be_none_has_no_upper_end():
    assert range_to_decide(table(2.0, sd=1.5, seed=1), 1.0, 5, lambda _: 0.05)[1] is None


def test_nothing_is_foretold_where_the_seeds_so_far_show_no_noise():
    noise = fit_pairs(np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]))
    assert np.isnan(chance_of_difference(noise, (0, 1), 3, 6, 0.05))
