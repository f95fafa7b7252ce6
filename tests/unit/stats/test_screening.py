"""Screening designs, and how often an audit names the right and the wrong settings."""

import numpy as np
import pytest
from helpers.costly import slow_after
from scipy import stats

from tune_dml.stats.screening import (
    MOST_FACTORS,
    Design,
    _simulated_p_values,
    confirmation_design,
    judge,
    screening_design,
    suspects,
)

SEED_SD, RUN_SD = 2.41, 1.30  # of the study sec_rho on glyphs: between seeds, and of a run beside its seed
CASES = {
    "nothing": (lambda on: 0.0, set()),
    "one": (lambda on: -3.0 * on[4], {4}),
    "two": (lambda on: -3.0 * on[4] - 3.0 * on[7], {4, 7}),
    "interacting pair": (lambda on: -3.0 * on[4] - 3.0 * on[7] - 3.0 * (on[4] and on[7]), {4, 7}),
}


def outcomes(design, effect, random, seed_sd=SEED_SD, run_sd=RUN_SD):
    seeds = seed_sd * random.standard_normal(design.blocks.max() + 1)
    means = np.array([effect(row > 0) for row in design.levels], dtype=float)
    return 70 + means + seeds[design.blocks] + run_sd * random.standard_normal(len(means))


def audit(effect, random, factors=12, **noise):
    first = screening_design(factors)
    values = outcomes(first, effect, random, **noise)
    chosen = suspects(first, values)
    second = confirmation_design(factors, chosen)
    assert len(first.levels) + len(second.levels) <= 36 or factors > 12
    return judge(first, values, second, outcomes(second, effect, random, **noise), chosen)


@pytest.mark.parametrize("factors", range(1, MOST_FACTORS + 1))
def test_the_design_is_balanced_folded_over_and_has_no_run_twice(factors):
    design = screening_design(factors)
    levels, runs = design.levels, len(design.levels)
    np.testing.assert_array_equal(levels.T @ levels, runs * np.eye(factors))
    assert (levels[0] == 1).all()
    rows = [(int(seed), tuple(row)) for seed, row in zip(design.blocks, levels, strict=True)]
    assert len(set(rows)) == runs
    assert {(seed, tuple(-value for value in row)) for seed, row in rows} == set(rows)
    products = [levels[:, i] * levels[:, j] for i in range(factors) for j in range(i)]
    for product in products:  # a pair of settings cannot pass for a third one
        assert not (product @ levels).any()


def test_without_noise_the_effects_are_exact():
    verdict = audit(lambda on: -3.0 * on[1] + 2.0 * on[5], np.random.default_rng(0), run_sd=1e-9)
    assert verdict.named == (1, 5)
    found = [effect.effect for effect in verdict.effects]
    np.testing.assert_allclose(found, [-3 if i == 1 else 2 if i == 5 else 0 for i in range(12)], atol=1e-6)
    pair = audit(lambda on: -4.0 * (on[1] and on[5]), np.random.default_rng(0), run_sd=1e-9)
    assert pair.named == (1, 5)
    assert pair.together.effect == pytest.approx(-4, abs=1e-6)
    assert (pair.together.suspect, pair.together.named) == (True, True)
    assert [pair.effects[i].effect for i in (1, 5)] == pytest.approx([0, 0], abs=1e-6)


def test_p_values_are_those_of_the_textbook():
    """Two settings leave no choice of suspects: both tests are plain F tests."""
    overall, each = _simulated_p_values(2, np.zeros(2), 2000)
    for p in (overall, each[:, 0], each[:, 1]):
        assert stats.kstest(p, "uniform").pvalue > 0.001


def test_an_interval_is_that_of_least_squares():
    random = np.random.default_rng(3)
    first = screening_design(1)
    values = outcomes(first, lambda on: -3.0 * on[0], random)
    second = confirmation_design(1, (0,))
    again = outcomes(second, lambda on: -3.0 * on[0], random)
    found = judge(first, values, second, again, (0,)).effects[0]
    pairs = np.concatenate([_paired(first, values), _paired(second, again)])
    reference = stats.ttest_1samp(pairs, 0).confidence_interval(0.97)
    assert found.effect == pytest.approx(pairs.mean())
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))


def _paired(design: Design, values):
    yours = design.levels[:, 0] > 0
    return [
        values[(design.blocks == b) & yours].mean() - values[(design.blocks == b) & ~yours].mean()
        for b in set(design.blocks)
    ]


def test_runs_without_a_value_are_left_out():
    first = screening_design(12)
    values = outcomes(first, CASES["one"][0], np.random.default_rng(5))
    values[[2, 9]] = np.nan
    chosen = suspects(first, values)
    assert 4 in chosen
    second = confirmation_design(12, chosen)
    again = outcomes(second, CASES["one"][0], np.random.default_rng(6))
    again[0] = np.nan
    assert judge(first, values, second, again, chosen).named == (4,)


def _rates(case, audits, factors=12):
    effect, guilty = CASES[case]
    verdicts = [audit(effect, np.random.default_rng((11, number)), factors) for number in range(audits)]
    named = np.mean([guilty <= set(one.named) for one in verdicts])
    false = np.mean(
        [bool(set(one.named) - guilty) or bool(one.one_of and not guilty & set(one.one_of)) for one in verdicts]
    )
    return named, false


@pytest.mark.parametrize("case", slow_after(1, CASES))
def test_culprits_are_named_and_others_are_not(case):
    """Thirty audits of twelve settings each; the slow test has the stated rates."""
    named, false = _rates(case, 30)
    assert named >= 0.93
    assert false <= 0.10


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_stated_rates_hold(case):
    """95 % named in 200 audits; at most 5 % false names in 1,000, with three Monte Carlo standard errors."""
    assert _rates(case, 200)[0] >= 0.95
    assert _rates(case, 1000)[1] <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000)
