"""Kendall's tau against scipy's and a naive count; its interval by simulation."""

import math

import numpy as np
from scipy.stats import kendalltau

from tune_dml.stats.verdicts.ranks import agree_in_rank


def tables(generator, levels, seeds, noise, *, turned=False):
    truth = np.arange(levels, dtype=float)
    other = truth[::-1] if turned else truth
    draw = lambda means: means[:, None] + noise * generator.normal(size=(levels, seeds))  # noqa: E731
    return draw(truth), draw(other)


def test_tau_is_scipys_also_with_ties():
    generator = np.random.default_rng(0)
    for _ in range(50):
        first, second = generator.integers(0, 4, size=(2, 6, 1)).astype(float)
        mine, theirs = agree_in_rank(first, second).tau, kendalltau(first[:, 0], second[:, 0]).statistic
        assert mine == theirs or abs(mine - theirs) < 1e-12 or (math.isnan(mine) and math.isnan(theirs))


def test_tau_counts_concordant_and_discordant_pairs():
    first, second = np.array([[3.0], [1.0], [4.0], [2.0]]), np.array([[2.0], [1.0], [3.0], [4.0]])
    pairs = [(i, j) for i in range(4) for j in range(i)]
    signs = [np.sign((first[i] - first[j]) * (second[i] - second[j])).item() for i, j in pairs]
    assert agree_in_rank(first, second).tau == sum(signs) / len(pairs)


def test_the_interval_of_well_separated_values_covers_and_excludes_zero():
    generator = np.random.default_rng(1)
    for turned, truth in ((False, 1.0), (True, -1.0)):
        found = [agree_in_rank(*tables(generator, 6, 5, 0.5, turned=turned)) for _ in range(40)]
        assert np.mean([each.low <= truth <= each.high for each in found]) >= 0.9
        assert all(each.low * each.high > 0 for each in found)


def test_unrelated_orders_rarely_exclude_zero():
    """Where one sweep has no effect at all, no more than a tenth of the intervals exclude an agreement of 0."""
    generator = np.random.default_rng(2)
    excluded = 0
    for _ in range(150):
        first, second = generator.normal(size=(2, 6, 5)) + np.arange(6.0)[:, None] * np.array([[[1.0]], [[0.0]]])
        found = agree_in_rank(first, second)
        excluded += found.low > 0 or found.high < 0
    assert excluded <= 15, excluded


def test_few_values_or_seeds_give_no_number():
    two = np.array([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])
    assert math.isnan(agree_in_rank(two, two).tau)
    three = np.array([[1.0, 2.0], [2.0, 3.0], [4.0, 4.0]])
    assert (agree_in_rank(three, three).tau, math.isnan(agree_in_rank(three, three).low)) == (1.0, True)
