"""What planned seeds will show, against closed forms and simulation."""

from __future__ import annotations

import numpy as np
import pytest

from tune_dml.stats.intervals.noise import fit_pairs, typical_noise
from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.power import _noise_range, _tuned_half_width, half_width, seeds_range, verdict_chances

PLAN = {"levels": 5, "seeds": 5, "margin": 1.0}


def test_without_noise_every_verdict_is_certain():
    quiet = {**PLAN, "sd": 1e-6}
    assert verdict_chances(**quiet, difference=0.5).does_not_matter == 1
    assert verdict_chances(**quiet, difference=2.0).matters == 1


def test_with_much_noise_nothing_is_decided():
    assert verdict_chances(**PLAN, sd=100.0, difference=2.0).undecided == pytest.approx(1, abs=0.03)


def test_false_verdicts_are_rare_and_true_ones_grow_with_the_difference_and_the_seeds():
    at_margin = verdict_chances(**PLAN, sd=0.5, difference=1.0)
    assert at_margin.matters <= 0.05
    assert at_margin.does_not_matter <= 0.05
    shares = [verdict_chances(**PLAN, sd=0.5, difference=d).matters for d in (1.5, 2.0, 3.0)]
    assert shares == sorted(shares)
    assert shares[-1] > 0.9
    few, many = (verdict_chances(**{**PLAN, "seeds": n}, sd=0.5, difference=0.0).does_not_matter for n in (3, 12))
    assert few < 0.5 < many


def test_chances_are_those_of_sweeps_judged_one_by_one():
    draw, count, runs = np.random.default_rng(0), 0, 60
    values = 0.7 * draw.standard_normal((runs, 4, 6))
    values[:, 0] += 2.5
    for sweep in values:
        bounds = all_pairs(sweep)
        count += any(bounds.low[i, k] > 1 for i in range(4) for k in range(4) if i != k)
    chance = verdict_chances(levels=4, seeds=6, sd=0.7, margin=1.0, difference=2.5, runs=runs)
    assert chance.matters == count / runs


def test_one_seed_or_one_level_shows_nothing():
    assert verdict_chances(levels=5, seeds=1, sd=1.0, margin=1.0, difference=9.0).undecided == 1
    assert verdict_chances(levels=1, seeds=5, sd=1.0, margin=1.0, difference=9.0).undecided == 1


@pytest.mark.parametrize("df", [4, 20])
def test_the_range_of_the_noise_covers_as_often_as_it_says(df):
    drawn = np.sqrt(np.random.default_rng(1).chisquare(df, 4000) / df)
    covered = np.mean([low < 1 < high for low, high in (_noise_range(float(sd), df) for sd in drawn)])
    assert covered == pytest.approx(0.6, abs=0.03)
    assert _noise_range(2.0, df) == pytest.approx(tuple(2 * end for end in _noise_range(1.0, df)))


def test_the_range_of_seeds_narrows_with_what_is_known():
    vague, known = (seeds_range(margin=1.0, sd=1.0, df=df, levels=5) for df in (4, 400))
    assert vague[0] <= known[0] <= known[1] <= vague[1]
    assert known[1] - known[0] <= 3 < vague[1] - vague[0]
    assert seeds_range(margin=0.001, sd=1.0, df=4, levels=5) == (None, None)


def test_the_typical_noise_and_its_degrees_of_freedom():
    draw = np.random.default_rng(2)
    values = 5 * draw.standard_normal(40) + 0.7 * draw.standard_normal((6, 40))
    sd, df = typical_noise(fit_pairs(values))
    assert sd == pytest.approx(0.7, rel=0.1)
    assert 0.7 * 5 * 39 < df <= 5 * 39
    assert typical_noise(fit_pairs(values[:2, :5]))[1] == 4
    assert typical_noise(fit_pairs(values[:, :1])) is None


def test_tuned_levels_take_more_seeds_than_the_same_levels_and_less_than_as_many_levels():
    needed = [
        seeds_range(margin=1.0, sd=0.8, df=20, levels=levels, settings=settings)
        for levels, settings in ((4, 1), (4, 4), (16, 1))
    ]
    assert needed[0] < needed[1] < needed[2]
    plain, tuned = (
        verdict_chances(**{**PLAN, "levels": 3}, sd=0.5, difference=2.0, settings=settings) for settings in (1, 4)
    )
    assert tuned.matters < plain.matters
    assert verdict_chances(**PLAN, sd=0.5, difference=1.0, settings=4).matters <= 0.05


def test_the_seeds_of_tuned_levels_suffice_as_those_of_other_levels_do():
    chances = []
    for settings in (1, 4):
        few = next(n for n in range(2, 60) if _tuned_half_width(seeds=n, sd=0.8, levels=4, settings=settings) <= 1.0)
        at = {"levels": 4, "seeds": few, "margin": 1.0, "sd": 0.8, "settings": settings}
        chances.append(
            (verdict_chances(**at, difference=0.0).does_not_matter, verdict_chances(**at, difference=2.0).matters)
        )
    assert chances[1] == pytest.approx(chances[0], abs=0.15)
    assert _tuned_half_width(seeds=5, sd=2.0, levels=4, settings=1) == half_width(seeds=5, sd=2.0, cells=4)
