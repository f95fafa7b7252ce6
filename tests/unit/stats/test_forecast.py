"""Forecasts of planned and further seeds, against closed forms and simulation."""

import time

import numpy as np
import pytest
from helpers.costly import slow_after
from helpers.tables import table_of

from tune_dml.stats import judge_sensitivity
from tune_dml.stats.forecast import (
    EVEN,
    Forecast,
    _choose,
    _continuations,
    _looks_ahead,
    _means,
    _possible_continuations,
    best_is_known,
    forecast_fresh_seeds,
    forecast_seeds,
    pairs_are_decided,
    sensitivity_is_decided,
)
from tune_dml.stats.intervals.contrasts import FullGrid
from tune_dml.stats.intervals.noise import fit_pairs, typical_noise
from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.intervals.tuned import TunedLevels
from tune_dml.stats.power import _noise_range, half_width, seeds_range, verdict_chances
from tune_dml.stats.verdicts.best import judge_best

LEVEL = 0.016
"""Of a second look."""


def noisy(means, seeds, seed=0, sd=1.0):
    means = np.asarray(means, dtype=float)
    return means[:, None] + sd * np.random.default_rng(seed).standard_normal((len(means), seeds))


def ahead(values, decided, level=LEVEL):
    return forecast_seeds(values, values.shape[1], lambda _: level, decided, scale=1.0)


TRUTHS = [np.zeros(6), np.linspace(0, 4, 6), [0, 0, 0, 3, 0, 0], [0, 0, 0, 1.5, 0, 0]]


@pytest.mark.parametrize("loud", slow_after(1, [1, 5]))
@pytest.mark.parametrize("decided", [sensitivity_is_decided(1.0), best_is_known()], ids=["matters", "best"])
def test_the_promised_share_of_sweeps_decides(decided, loud):
    """The largest of many differences is biased upwards: a chance from the leading pair alone is too high."""
    promised, kept = [], []
    for seed in range(72):
        drawn = np.random.default_rng(seed).standard_normal((6, 5 + 4))
        drawn[2] *= loud
        values = drawn + np.asarray(TRUTHS[seed % len(TRUTHS)])[:, None]
        if decided(values[None, :, :5], 0.042)[0]:
            continue
        tables = _continuations(values[:, :5], 4, scale=1.0, runs=80)
        promised.append(decided(tables, LEVEL).mean())
        kept.append(decided(values[None], LEVEL)[0])
    assert len(kept) > 24
    assert np.mean(promised) == pytest.approx(np.mean(kept), abs=0.15)
    upper = np.array(promised) > np.median(promised)
    assert np.mean(np.array(kept)[upper]) > np.mean(np.array(kept)[~upper])


def test_a_continuation_repeats_the_seeds_so_far_and_loses_as_many_trials():
    values = noisy([0, 1, 2], 8)
    values[1, ::2] = np.nan
    drawn = _continuations(values, 20, scale=1.0)
    assert np.array_equal(drawn[..., :8], np.broadcast_to(values, drawn[..., :8].shape), equal_nan=True)
    lost = np.isnan(drawn[..., 8:]).mean((0, 2))
    assert lost[1] == pytest.approx(0.46, abs=0.05)
    assert max(lost[0], lost[2]) < 0.05
    assert not np.isnan(_continuations(noisy([0, 1], 4), 5, scale=1.0)).any()


def test_means_that_differ_by_no_more_than_noise_are_drawn_together():
    spread = [
        _continuations(noisy(means, 4, seed=7), 400, scale=1.0)[..., 4:].mean(-1).std(-1).mean()
        for means in ([0] * 8, [0, 5, 10, 15, 20, 25, 30, 35])
    ]
    observed = noisy([0] * 8, 4, seed=7).mean(1).std()
    assert spread[0] < 0.9 * np.hypot(observed, 0.25)
    assert spread[1] == pytest.approx(np.std(np.arange(0, 40, 5)), rel=0.05)


@pytest.mark.parametrize("seen", [0.5, 4.0])
def test_the_shrinkage_of_a_difference_is_that_of_a_half_cauchy_prior(seen):
    runs, seeds, noise, scale = 8000, 5, 1.5, 0.8
    root = np.broadcast_to(noise * np.eye(2), (runs, 2, 2))
    drawn = _means(np.array([seen, -seen]) / np.sqrt(2), root, seeds, scale, np.random.default_rng(0))
    variance, unit = noise**2 / seeds, np.hypot(scale, noise)
    taus = unit * np.geomspace(0.01, 100, 4000)
    total = taus**2 + variance
    weight = np.exp(-(seen**2) / total / 2) / np.sqrt(total) / (1 + (taus / unit) ** 2) * taus  # times d log tau
    kept = np.average(taus**2 / total, weights=weight)
    assert (drawn[:, 0] - drawn[:, 1]).mean() / np.sqrt(2) == pytest.approx(kept * seen, abs=0.03)


def test_future_values_move_in_the_steps_of_the_metric():
    drawn = _continuations(np.round(noisy([0, 1, 2], 5) / 0.5) * 0.5, 5, scale=1.0, resolution=0.5)
    assert np.allclose(drawn / 0.5, np.round(drawn / 0.5))


def test_many_tables_are_judged_as_the_report_judges_one():
    for seed in range(30):
        values = noisy([0, 0.5, 1.5, 2.5], 6, seed=seed, sd=0.7)
        verdict = judge_sensitivity(table_of(values), 1.0, alpha=LEVEL).verdict
        assert sensitivity_is_decided(1.0)(values[None], LEVEL)[0] == (verdict != "undecided")
        assert sensitivity_is_decided(1.0, flat_decides=False)(values[None], LEVEL)[0] == (verdict == "sensitive")
        best = judge_best(values, range(4), 1.0, alpha=LEVEL)
        assert best_is_known()(values[None], LEVEL)[0] == (len(best.candidates) == 1)


def test_averages_over_a_grid_are_judged_as_the_report_judges_them():
    rows, verdicts = (0, 0, 1, 1, 2, 2), set()
    for seed in range(60):
        values = noisy([0, 0, 0.6, 1, 2, 2] if seed % 2 else [0] * 6, 5, seed=seed, sd=0.6)
        averages = table_of(values.reshape(3, 2, 5).mean(1))
        verdict = judge_sensitivity(averages, 1.0, alpha=LEVEL, crossed=FullGrid(values, rows)).verdict
        verdicts.add(verdict)
        assert sensitivity_is_decided(1.0, rows=rows)(values[None], LEVEL)[0] == (verdict != "undecided")
    assert verdicts == {"sensitive", "insensitive", "undecided"}


def test_a_row_is_settled_by_differences_or_by_equivalence():
    values = noisy([0, 0, 5], 8, sd=0.2)
    assert pairs_are_decided(0, 1.0)(values[None], 0.05)[0]
    assert not pairs_are_decided(0, 0.01)(noisy([0, 0, 5], 8, seed=1)[None], 0.05)[0]


@pytest.mark.parametrize(("gap", "decided"), [(0.9, True), (0.0, False), (-0.1, False), (-0.9, True)])
def test_a_row_is_compared_with_zero_and_with_the_margin_on_both_sides(gap, decided):
    values = noisy([0, 0], 8, sd=0.2)
    values[0] += values[1].mean() - values[0].mean() + gap
    bounds = TunedLevels(values, (0, 1), 0.0).pairs(0.05)
    assert 0.1 < bounds.high[0, 1] - gap < 0.8  # 0.9 is significant, 0.1 is not
    assert pairs_are_decided(0, bounds.high[0, 1] - gap)(values[None], 0.05)[0] == decided


def test_the_look_with_the_most_chance_per_seed_is_chosen_of_those_that_are_likely_to_decide():
    assert _choose([Forecast(4, 0.52), Forecast(5, 0.9), Forecast(8, 0.95)]) == Forecast(5, 0.9)
    assert _choose([Forecast(4, 0.3), Forecast(8, EVEN)]) == Forecast(8, EVEN)
    hopeless = _choose([Forecast(8, 0.4), Forecast(4, 0.3)])
    assert hopeless == Forecast(8, 0.4)
    assert not hopeless.worth_it


def test_looks_reach_three_times_the_seeds_that_have_run():
    assert (_looks_ahead(2), _looks_ahead(3)) == ([3, 4, 5, 6], [4, 5, 6, 8, 10])
    assert _looks_ahead(20)[-1] >= 60


def test_each_look_is_judged_at_its_level_on_the_seeds_that_it_will_have_the_last_one_first():
    """Half of the sweep's eight seeds have values, so a look gains half of its further seeds."""
    seen = []

    def decided(tables, level):
        seen.append((tables.shape, level))
        return np.arange(len(tables)) >= 12

    found = forecast_seeds(noisy([0, 1, 2], 4), 8, lambda seeds: 1 / seeds, decided, scale=1.0)
    ahead = {10: 1, 12: 2, 15: 4, 19: 6, 24: 8}
    by_look = [((240, 3, 4 + more), 1 / seeds) for seeds, more in reversed(ahead.items())]
    assert seen == [look for look in by_look for _ in range(2)]  # under two kinds of noise
    assert found == Forecast(10, 0.95)
    assert [len(_continuations(noisy([0] * cells, 3), 1, scale=1.0)) for cells in (50, 100)] == [100, 60]


def test_the_smaller_chance_under_two_kinds_of_noise_is_promised():
    judged = []

    def decided(tables, _):
        judged.append(tables)
        return np.arange(len(tables)) >= (12 if len(judged) % 2 else 60)

    assert ahead(noisy([0, 1, 2], 4), decided).chance == 0.75


def test_noise_in_the_residuals_directions_keeps_to_a_slope_that_differs_from_seed_to_seed():
    slopes = np.linspace(0, 1, 6)[:, None] * np.random.default_rng(0).standard_normal(4)
    bends = [
        np.ptp(np.diff(tables[..., 4:], 2, 1), -1).max() for tables in _possible_continuations(slopes, 3, 1.0, 0.0)
    ]
    assert bends[1] < 1e-9 < 0.1 < bends[0]


def test_without_noise_or_with_more_than_200_cells_no_forecast_is_made():
    assert ahead(noisy([0] * 201, 3), sensitivity_is_decided(1.0)) is None
    assert ahead(noisy([0, 1, 2], 1), sensitivity_is_decided(1.0)) is None
    assert forecast_fresh_seeds(noisy([0, 1], 1), (1, 0), (5,), scale=1.0) is None


def test_a_lead_that_luck_explains_is_not_expected_to_hold():
    """The winner of twenty equal cells leads by as much as a truly better cell."""
    values = noisy([0] * 20, 4, seed=2)
    winner = int(values[1:].mean(1).argmax()) + 1
    among_many = forecast_fresh_seeds(values, (winner, 0), (5,), scale=1.0).chance
    alone = forecast_fresh_seeds(values[[0, winner]], (1, 0), (5,), scale=1.0).chance
    assert among_many < 0.25
    assert among_many < alone / 2
    clear = forecast_fresh_seeds(noisy([0, 0, 6], 4), (2, 0), (5, 8, 12), scale=1.0)
    assert clear.seeds == 5
    assert clear.chance > 0.9


def test_a_forecast_of_twenty_cells_takes_less_than_half_a_second():
    values = noisy(np.linspace(0, 2, 20), 10)
    ahead(values, sensitivity_is_decided(1.0))
    start = time.process_time()
    ahead(values, sensitivity_is_decided(1.0))
    assert time.process_time() - start < 0.5


PLAN = {"levels": 5, "seeds": 5, "margin": 1.0}


def test_without_noise_every_verdict_is_certain_and_with_much_or_one_seed_or_level_none():
    quiet = {**PLAN, "sd": 1e-6}
    assert verdict_chances(**quiet, difference=0.5).does_not_matter == 1
    assert verdict_chances(**quiet, difference=2.0).matters == 1
    assert verdict_chances(**PLAN, sd=100.0, difference=2.0).undecided == pytest.approx(1, abs=0.03)
    for alone in ({"seeds": 1}, {"levels": 1}):
        assert verdict_chances(**{**PLAN, **alone}, sd=1.0, difference=9.0).undecided == 1


def test_false_verdicts_are_rare_and_true_ones_grow_with_the_difference_and_the_seeds():
    at_margin = verdict_chances(**PLAN, sd=0.5, difference=1.0)
    assert at_margin.matters <= 0.05
    assert at_margin.does_not_matter <= 0.05
    shares = [verdict_chances(**PLAN, sd=0.5, difference=d).matters for d in (1.5, 2.0, 3.0)]
    assert shares == sorted(shares)
    assert shares[-1] > 0.9
    few, many = (verdict_chances(**{**PLAN, "seeds": n}, sd=0.5, difference=0.0).does_not_matter for n in (3, 12))
    assert few < 0.5 < many
    plan = {"seeds": 6, "margin": 3.0, "sd": 1.0, "difference": 0.0, "runs": 50}
    twenty, fifty = (verdict_chances(levels=levels, **plan).does_not_matter for levels in (20, 50))
    assert fifty < twenty / 2


def test_chances_are_those_of_sweeps_judged_one_by_one():
    draw, count, runs = np.random.default_rng(0), 0, 60
    values = 0.7 * draw.standard_normal((runs, 4, 6))
    values[:, 0] += 2.5
    for sweep in values:
        bounds = all_pairs(sweep)
        count += any(bounds.low[i, k] > 1 for i in range(4) for k in range(4) if i != k)
    chance = verdict_chances(levels=4, seeds=6, sd=0.7, margin=1.0, difference=2.5, runs=runs)
    assert chance.matters == count / runs


@pytest.mark.parametrize("df", [4, 20])
def test_the_range_of_the_noise_has_its_stated_coverage(df):
    drawn = np.sqrt(np.random.default_rng(1).chisquare(df, 4000) / df)
    covered = np.mean([low < 1 < high for low, high in (_noise_range(float(sd), df) for sd in drawn)])
    assert covered == pytest.approx(0.6, abs=0.03)
    assert _noise_range(2.0, df) == pytest.approx(tuple(2 * end for end in _noise_range(1.0, df)))


def test_the_range_of_seeds_narrows_with_more_degrees_of_freedom():
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
        few = next(n for n in range(2, 60) if half_width(seeds=n, sd=0.8, cells=4, settings=settings) <= 1.0)
        at = {"levels": 4, "seeds": few, "margin": 1.0, "sd": 0.8, "settings": settings}
        chances.append(
            (verdict_chances(**at, difference=0.0).does_not_matter, verdict_chances(**at, difference=2.0).matters)
        )
    assert chances[1] == pytest.approx(chances[0], abs=0.15)
