"""Pair-wise noise and the simultaneous intervals on it, against loops written from the formulas, and in simulation."""

import math

import numpy as np
import pytest
from scipy.special import digamma, polygamma
from scipy.stats import t as student

from tune_dml.planning.stopping import ETA
from tune_dml.stats.intervals.contrasts import _variance_by_seeds, estimate_contrasts, interaction, main_effect
from tune_dml.stats.intervals.noise import _trigamma_inverse, cell_variances, fit_pairs, has_testable_pair
from tune_dml.stats.intervals.simultaneous import against, all_pairs, at_most, half_widths


def naive_epsilon(values: np.ndarray) -> float:
    """Box's epsilon from an orthonormal basis of contrasts, complete data."""
    m, n = values.shape
    nu = n - 1
    basis = np.linalg.svd(np.eye(m) - 1 / m)[0][:, : m - 1]
    s = np.cov(basis.T @ values)
    t1, t2 = np.trace(s), np.trace(s @ s)
    square = nu**2 / ((nu - 1) * (nu + 2)) * (t2 - t1**2 / nu)
    return float(np.clip((t1**2 - 2 * square / nu) / ((m - 1) * square), 1 / (m - 1), 1)) if square > 0 else 1.0


def naive_fit(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Estimates, moderated variances and degrees of freedom by loops over pairs; NaN below two shared seeds."""
    m = len(values)
    estimate, variance, df = np.full((m, m), np.nan), np.full((m, m), np.nan), np.zeros((m, m))
    own, nus = {}, {}
    for i in range(m):
        for k in range(m):
            d = values[i] - values[k]
            d = d[np.isfinite(d)]
            if len(d):
                estimate[i, k] = d.mean()
            if len(d) >= 2 and i != k:
                own[i, k], nus[i, k] = d.var(ddof=1), len(d) - 1
    nu = sum(v**2 for v in nus.values()) / sum(nus.values())
    e = {pair: math.log(s2) - digamma(nus[pair] / 2) + math.log(nus[pair] / 2) for pair, s2 in own.items()}
    mean = np.mean(list(e.values()))
    spread = sum((x - mean) ** 2 for x in e.values()) / (len(e) - 1)
    spread -= np.mean([polygamma(1, v / 2) for v in nus.values()])
    d0, s0 = math.inf, math.exp(mean)
    if spread > 1e-6:
        low, high = 1e-8, 1e8
        for _ in range(200):  # trigamma falls
            middle = math.sqrt(low * high)
            low, high = (middle, high) if polygamma(1, middle) > spread else (low, middle)
        d0 = 2 * low
        s0 = math.exp(mean + digamma(d0 / 2) - math.log(d0 / 2))
    bound = (naive_epsilon(values) * (m - 1) - 1) * (nu - 1) if not np.isnan(values).any() else None
    d0 = min(d0 * (1 - 1 / nu), bound if bound is not None else float(fit_pairs(values).prior_df))
    directions = float(fit_pairs(values).epsilon) * (m - 1) - 1
    for pair, s2 in own.items():
        few = nus[pair] < max(nus.values()) - 1  # two or more seeds fewer than another pair
        borrowed = min(d0, max(directions, 0) * (nus[pair] - 1)) if few else d0
        variance[pair] = (borrowed * s0 + nus[pair] * s2) / (borrowed + nus[pair])
        df[pair] = borrowed + nus[pair]
    return estimate, variance, df, d0


def test_the_inverse_of_trigamma_is_exact_for_equal_and_for_very_unequal_noise() -> None:
    spread = np.geomspace(1e-6, 1e6, 100)
    np.testing.assert_allclose(polygamma(1, _trigamma_inverse(spread)), spread, rtol=1e-9)


@pytest.mark.parametrize("holes", [[], [(0, 2), (3, 1)], [(0, 0), (0, 1), (0, 2), (1, 4)]])
@pytest.mark.parametrize("shape", [(5, 5), (8, 5)])
def test_pairs_equal_the_loops(shape: tuple[int, int], holes: list[tuple[int, int]]) -> None:
    random = np.random.default_rng(3)
    values = (
        60 + random.normal(size=shape) * random.uniform(0.5, 3, size=(shape[0], 1)) + 4 * random.normal(size=shape[1])
    )
    for hole in holes:
        values[hole] = np.nan
    found = fit_pairs(values)
    estimate, variance, df, d0 = naive_fit(values)
    np.testing.assert_allclose(found.estimate, estimate, atol=1e-10)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-6)
    assert found.prior_df == pytest.approx(d0, rel=1e-6)
    np.testing.assert_allclose(found.df[found.testable], df[found.testable], rtol=1e-6)
    if not holes:
        assert found.epsilon == pytest.approx(naive_epsilon(values), rel=1e-9)
        assert fit_pairs(1e-6 * (values - 60)).epsilon == pytest.approx(found.epsilon, rel=1e-6)


def test_many_tables_equal_one_at_a_time() -> None:
    values = np.random.default_rng(0).normal(size=(4, 6, 4))
    values[1, 2, 3] = values[2, 0, :3] = np.nan
    together, effects = all_pairs(values), estimate_contrasts(values, main_effect([0, 0, 1, 1, 2, 2]))
    for one, table in enumerate(values):
        alone = estimate_contrasts(table, main_effect([0, 0, 1, 1, 2, 2]))
        np.testing.assert_allclose(effects.low[one], alone.low, rtol=1e-9)
        np.testing.assert_allclose(together.low[one], all_pairs(table).low, rtol=1e-9)


def test_whether_any_pair_can_be_tested_is_known_without_a_fit() -> None:
    random = np.random.default_rng(11)
    told = set()
    for _ in range(200):
        values = random.normal(size=(random.integers(1, 6), random.integers(1, 5)))
        values[random.random(values.shape) < 0.5] = np.nan
        told.add(has_testable_pair(values))
        assert has_testable_pair(values) == fit_pairs(values).testable.any()
    assert told == {True, False}


def test_requested_rows_and_column_equal_those_of_all_pairs() -> None:
    values = np.random.default_rng(12).normal(size=(7, 4))
    values[2, 1] = values[5, 3] = np.nan
    noise = fit_pairs(values)
    np.testing.assert_array_equal(at_most(values, rows=[4, 1]), at_most(values)[[4, 1]])
    reach = half_widths(noise, 0.05, 6, beside=True)[:, 3]
    np.testing.assert_array_equal(against(values, 3).high, np.where(np.arange(7) == 3, 0, noise.estimate[:, 3] + reach))


def test_two_cells_are_the_paired_t_test() -> None:
    values = np.random.default_rng(1).normal(size=(2, 6))
    d = values[0] - values[1]
    reach = student.ppf(0.975, 5) * d.std(ddof=1) / math.sqrt(6)
    found = all_pairs(values)
    assert (found.low[0, 1], found.high[0, 1]) == pytest.approx((d.mean() - reach, d.mean() + reach))
    assert against(values, 1).low[0] == pytest.approx(d.mean() - reach)
    assert estimate_contrasts(values, main_effect([0, 1])).low[0] == pytest.approx(found.low[0, 1])
    assert np.isnan(estimate_contrasts(np.full((4, 3), np.nan), main_effect([0, 0, 1, 1])).estimate).all()


def test_cell_variances_are_grubbs() -> None:
    values = np.random.default_rng(4).normal(size=(5, 7)) * np.array([[3], [1], [1], [2], [1]])
    m, n = values.shape
    residual = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    pooled = (residual**2).sum() / ((m - 1) * (n - 1))
    expected = np.maximum(m / (m - 2) * ((residual**2).sum(1) / (n - 1) - pooled / m), 0)
    np.testing.assert_allclose(cell_variances(values), expected, atol=1e-10)


def test_two_seeds_use_only_their_own_noise_and_one_seed_has_none() -> None:
    two = fit_pairs(np.random.default_rng(0).normal(size=(6, 2)))
    assert two.prior_df == 0
    assert np.isnan(two.epsilon)
    one = all_pairs(np.random.default_rng(0).normal(size=(6, 1)))
    off = ~np.eye(6, dtype=bool)
    assert np.isneginf(one.low[off]).all()
    assert np.isposinf(one.high[off]).all()


def test_pairs_without_two_shared_seeds_are_bounded_through_others() -> None:
    values = np.random.default_rng(6).normal(size=(4, 8)) + 10 * np.arange(4)[:, None]
    values[0, 4:] = values[1, :4] = np.nan
    found = all_pairs(values)
    assert np.isnan(found.estimate[0, 1])
    assert found.low[1, 0] == pytest.approx(max(found.low[1, k] + found.low[k, 0] for k in (2, 3)))


@pytest.mark.parametrize("kind", ["iid", "slope", "one", "ramp", "holes"])
@pytest.mark.parametrize(("cells", "seeds"), [(10, 3), (5, 5), (20, 5)])
def test_false_claims_stay_at_five_percent(kind: str, cells: int, seeds: int) -> None:
    random = np.random.default_rng([cells, seeds])
    values = random.normal(size=(800, cells, seeds))
    if kind == "slope":
        values += 10 * np.linspace(-0.5, 0.5, cells)[:, None] * random.normal(size=(800, 1, seeds))
    elif kind == "one":
        values[:, 1] *= 5
    elif kind == "ramp":
        values *= np.linspace(1, 5, cells)[:, None]
    elif kind == "holes":
        values[random.random(values.shape) < 0.15] = np.nan
    wrong = (all_pairs(values).low > 0).any((1, 2)).mean()
    assert wrong <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 800)


@pytest.mark.parametrize(("few", "seeds"), [(2, 10), (3, 20), (3, 40)])
def test_a_noisy_cell_with_fewer_seeds_than_others_is_no_difference(few: int, seeds: int) -> None:
    """The many seeds of quieter cells would hide its noise: 10 to 15 % of such tables would claim a difference."""
    values = np.random.default_rng([few, seeds]).normal(size=(800, 8, seeds))
    values[:, 4] *= 5
    values[:, 4, few:] = np.nan
    limit = 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 800)
    assert (all_pairs(values).low > 0).any((1, 2)).mean() <= limit
    found = against(values, 0)
    assert ((found.low > 0) | (found.high < 0)).any(1).mean() <= limit


@pytest.mark.parametrize(("few", "seeds"), [(3, 10), (5, 15)])
def test_a_noisy_cell_with_few_seeds_makes_no_main_effect(few: int, seeds: int) -> None:
    """Without Welch's degrees of freedom, 7 to 11 % of such grids would claim one."""
    values = np.random.default_rng([few, seeds]).normal(size=(2000, 9, seeds))
    values[:, 0] *= 5
    values[:, 0, few:] = np.nan
    found = estimate_contrasts(values, main_effect([0, 0, 0, 1, 1, 1, 2, 2, 2]))
    assert ((found.low > 0) | (found.high < 0)).any(1).mean() <= (0.075 if few < 5 else 0.055)


def test_effects_are_differences_of_margins_and_double_differences() -> None:
    first, second = [0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1]
    values = np.random.default_rng(7).normal(size=(6, 4))
    means = values.mean(1).reshape(3, 2)
    margins = means.mean(1)
    found = estimate_contrasts(values, main_effect(first)).estimate
    np.testing.assert_allclose(found, [margins[0] - margins[1], margins[0] - margins[2], margins[1] - margins[2]])
    double = estimate_contrasts(values, interaction(first, second)).estimate
    assert double[0] == pytest.approx(means[0, 0] - means[1, 0] - means[0, 1] + means[1, 1])


@pytest.mark.parametrize("seeds", [5, 10])
def test_ends_that_differ_by_the_margin_are_called_equal_in_a_twentieth_of_sweeps(seeds: int) -> None:
    random, place = np.random.default_rng([16, seeds]), np.linspace(0, 1, 16)[:, None]
    values = random.normal(size=(4000, 16, seeds)) + 10 * place * random.normal(size=(4000, 1, seeds))
    margin = 6 * math.sqrt(102 / seeds)  # six standard errors of the ends' difference
    flat = (at_most(values + margin * place) < margin).all((1, 2))
    assert flat.mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.parametrize("kind", ["iid", "slope", "holes"])
def test_a_grid_without_effects_claims_none(kind: str) -> None:
    first, second = np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4)
    random = np.random.default_rng(9)
    values = random.normal(size=(600, 12, 4))
    if kind == "slope":
        values += 5 * first[:, None] / 4 * random.normal(size=(600, 1, 4))
    elif kind == "holes":
        values[random.random(values.shape) < 0.15] = np.nan
    for weights in (main_effect(first.tolist()), interaction(first.tolist(), second.tolist())):
        found = estimate_contrasts(values, weights)
        assert ((found.low > 0) | (found.high < 0)).any(1).mean() <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 600)


def test_equal_cells_selected_early_differ_in_less_than_a_twentieth_of_sweeps() -> None:
    rng = np.random.default_rng(0)
    end = rng.standard_normal((1000, 19, 10))  # the first row is the baseline
    left = np.tile(np.arange(1, 19), (1000, 1))
    for _ in range(2):
        early = 0.9 * end + math.sqrt(1 - 0.9**2) * rng.standard_normal(end.shape)
        means = np.take_along_axis(early.mean(-1), left, 1)
        left = np.take_along_axis(left, np.argsort(-means, 1)[:, : math.ceil(left.shape[1] / ETA)], 1)
    kept = np.concatenate([end[:, :1], np.take_along_axis(end, left[..., None], 1)], 1)

    def claimed(level: float) -> float:
        pairs, base = all_pairs(kept, level), against(kept, 0, level)
        return float(np.mean((pairs.low > 0).any((1, 2)) | (base.low > 0).any(1) | (base.high < 0).any(1)))

    assert claimed(0.05) > 0.08  # more often if the selection were ignored
    assert claimed(0.05 * 2 / 18) < 0.05


def test_averages_of_which_fewer_than_two_seeds_were_measured_have_no_interval() -> None:
    """Filled gaps have almost no spread: 17 % of such grids would claim a difference."""
    random, hole = np.random.default_rng(1), np.nan
    apart = np.array([[0.17, hole], [0.44, -1.74], [hole, 0.97], [-1.61, hole]])
    assert np.isinf(estimate_contrasts(apart, main_effect([0, 0, 1, 1])).high).all()
    values = random.normal(size=(600, 4, 2))
    values[random.random(values.shape) < 0.3] = hole
    for weights in (main_effect([0, 0, 1, 1]), interaction([0, 0, 1, 1], [0, 1, 0, 1])):
        found = estimate_contrasts(values, weights)
        assert ((found.low > 0) | (found.high < 0)).any(1).mean() <= 0.05


def test_contrasts_of_cells_without_common_seeds_have_no_interval() -> None:
    """The effects of their seeds do not cancel: 38 and 76 % of such grids would claim a difference."""
    first, second = np.repeat(np.arange(2), 3), np.tile(np.arange(3), 2)
    values = np.random.default_rng(3).normal(size=(6, 10))
    values[(first + second)[:, None] % 2 == np.arange(10) % 2] = np.nan
    for weights in (main_effect(first.tolist()), interaction(first.tolist(), second.tolist())[[0, 2]]):
        assert np.isinf(estimate_contrasts(values, weights).high).all()
    assert np.isfinite(estimate_contrasts(values, main_effect(second.tolist())).high).all()


@pytest.mark.parametrize("fewer", [[0, 1, 4], [0, 1, 2, 3, 4]])
def test_cells_with_a_third_of_the_seeds_claim_no_effect(fewer: list[int]) -> None:
    """As a race leaves them: 11 to 18 % of such grids claimed a difference."""
    first, second = np.repeat(np.arange(2), 3), np.tile(np.arange(3), 2)
    values = np.random.default_rng(4).normal(size=(600, 6, 15))
    values[:, fewer, 5:] = np.nan
    for levels in (
        main_effect(first.tolist()),
        main_effect(second.tolist()),
        interaction(first.tolist(), second.tolist()),
    ):
        found = estimate_contrasts(values, levels)
        assert ((found.low > 0) | (found.high < 0)).any(1).mean() <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 600)


def test_a_seed_with_one_side_of_a_contrast_shows_no_difference() -> None:
    """If its seeds count by the share of the cells that have them, 24 % of these grids claim an effect."""
    values = np.random.default_rng(5).normal(size=(400, 4, 5)) * np.array([1, 5, 1, 1])[:, None]
    exists = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 1], [0, 0, 1, 1, 1], [0, 1, 1, 0, 1]], dtype=bool)
    values[:, ~exists] = np.nan
    found = estimate_contrasts(values, main_effect([0, 0, 1, 1]))
    assert ((found.low > 0) | (found.high < 0)).mean() <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("fewer", [[6, 7, 8], [1, 2, 3, 5, 6, 7], [7, 8]])
def test_cells_with_fewer_seeds_that_react_alike_to_a_seed_claim_no_effect(fewer: list[int]) -> None:
    """As a race leaves them: 12 to 15 % claimed a main effect when a seed's parts were squared one by one."""
    random, levels = np.random.default_rng(6), np.repeat(np.arange(3), 3)
    slopes = np.linspace(-5, 5, 9)[:, None] * random.normal(size=(800, 1, 20))
    values = random.normal(size=(800, 9, 20)) + slopes
    values[:, fewer, 5:] = np.nan
    found = estimate_contrasts(values, main_effect(levels.tolist()))
    assert ((found.low > 0) | (found.high < 0)).any(1).mean() <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 800)


def test_without_holes_the_variance_by_seeds_is_that_of_the_mean() -> None:
    values, weights = np.random.default_rng(8).normal(size=(6, 7)), main_effect([0, 0, 1, 1, 2, 2])
    variance, df = _variance_by_seeds(values, np.ones(values.shape), weights)
    assert variance == pytest.approx((weights @ values).var(-1, ddof=1) / 7)
    assert df == pytest.approx(6)
