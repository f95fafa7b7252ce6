"""Chances, spreads, ranks and quantiles: against closed forms and scipy, with coverage by simulation."""

import math

import numpy as np
import pytest
from helpers.costly import slow_after
from scipy import stats

from tune_dml.stats.distributions import (
    chi2_isf,
    noncentral_t_cdf,
    normal_isf,
    normal_pdf,
    normal_sf,
    root,
    student_isf,
)
from tune_dml.stats.intervals.components import _spread_of, difference_spread, sum_of_spreads, trial_spread
from tune_dml.stats.intervals.simultaneous import _quantile_of
from tune_dml.stats.verdicts import chance
from tune_dml.stats.verdicts.chance import p_best
from tune_dml.stats.verdicts.ranks import agree_in_rank


def test_equal_cells_have_equal_chances_and_a_clear_lead_has_all():
    random = np.random.default_rng(3)
    noise = random.normal(size=(4, 400))
    equal = p_best(noise - noise.mean(1, keepdims=True))
    assert equal == pytest.approx([0.25] * 4, abs=0.03)
    ahead = p_best(noise + np.array([0.0, 0.0, 0.0, 3.0])[:, None])
    assert ahead[3] == pytest.approx(1.0, abs=1e-3)
    assert ahead.sum() == pytest.approx(1.0)


def test_two_cells_have_students_probability():
    """With one pair the posterior is Student's t on its own degrees of freedom."""
    values = np.array([[1.0, 2.0, 4.0, 3.0], [0.5, 1.9, 3.0, 3.1]])
    gap = values[0] - values[1]
    expected = stats.t.cdf(gap.mean() / (gap.std(ddof=1) / 2), 3)
    assert p_best(values)[0] == pytest.approx(expected, abs=0.03)


def test_seeds_move_all_cells_together_and_change_nothing():
    random = np.random.default_rng(4)
    values = random.normal(size=(5, 4))
    assert p_best(values + 100 * random.normal(size=4)) == pytest.approx(p_best(values), abs=0.02)


@pytest.mark.parametrize("holes", [(), ((0, 1), (2, 0), (4, 2))], ids=["whole", "holes"])
def test_the_root_for_many_cells_gives_the_same_chances(holes, monkeypatch):
    values = 0.7 * np.arange(12)[:, None] + 3 * np.random.default_rng(6).normal(size=(12, 4))
    for place in holes:
        values[place] = np.nan
    few = p_best(values, 40_000)
    monkeypatch.setattr(chance, "_MAX_EIGEN_CELLS", 1)
    assert p_best(values, 40_000) == pytest.approx(few, abs=0.015)


def test_unknown_chances_are_nan_and_lost_cells_have_none():
    assert np.isnan(p_best(np.array([[1.0], [2.0]]))).all()
    assert np.isnan(p_best(np.full((3, 3), np.nan))).all()
    one = np.full((3, 3), np.nan)
    one[1] = [1.0, 2.0, 3.0]
    assert p_best(one).tolist() == [0.0, 1.0, 0.0]
    lost = np.array([[1.0, 2.0, 1.5], [np.nan] * 3, [0.0, 1.0, 0.7]])
    assert p_best(lost)[1] == 0.0


def test_stated_chances_are_calibrated():
    """Of cells called best with probability p, a share of about p is best."""
    random = np.random.default_rng(5)
    said, was = [], []
    for _ in range(150):
        truth = 1.5 * random.normal(size=6)
        values = truth[:, None] + random.normal(size=(6, 4)) + 3 * random.normal(size=4)
        said.append(p_best(values, draws=500))
        was.append(np.arange(6) == truth.argmax())
    probability, best = np.concatenate(said), np.concatenate(was)
    for low, high in ((0.0, 0.1), (0.1, 0.4), (0.4, 0.8), (0.8, 1.01)):
        among = (probability >= low) & (probability < high)
        assert among.sum() > 25
        spread = np.sqrt(0.25 / among.sum())
        assert best[among].mean() == pytest.approx(probability[among].mean(), abs=3 * spread)


def test_a_single_variance_has_the_chi_squared_interval():
    found = _spread_of([(4.0, 7.0)])
    ends = (math.sqrt(28 / stats.chi2.ppf(0.975, 7)), math.sqrt(28 / stats.chi2.ppf(0.025, 7)))
    assert (found.sd, found.low, found.high) == pytest.approx((2.0, *ends))


def test_spreads_are_means_of_variances_of_cells_and_of_pairs():
    values = np.random.default_rng(0).normal(size=(5, 4)) + np.arange(4)
    assert trial_spread(values).sd ** 2 == pytest.approx(values.var(axis=1, ddof=1).mean())
    values = np.random.default_rng(1).normal(size=(3, 6))
    pairs = [(values[i] - values[k]).var(ddof=1) for i in range(3) for k in range(i)]
    assert difference_spread(values).sd ** 2 == pytest.approx(np.mean(pairs))
    assert not difference_spread(np.arange(4.0)[None]).is_known
    assert trial_spread(np.arange(4.0)[None]).sd == pytest.approx(np.arange(4).std(ddof=1))


@pytest.mark.parametrize("values", [np.ones((3, 1)), np.full((2, 4), np.nan), np.array([[1.0, np.nan], [np.nan, 2.0]])])
def test_without_repeated_seeds_nothing_is_claimed(values):
    assert not trial_spread(values).is_known
    assert not sum_of_spreads([trial_spread(values), _spread_of([(1.0, 3.0)])]).is_known
    assert not sum_of_spreads([]).is_known


@pytest.mark.parametrize(
    ("cells", "seeds", "shared", "sweeps"),
    slow_after(
        1, [(6, 3, 3.0, 200), *((*case, 600) for case in [(6, 3, 3.0), (1, 3, 1.0), (6, 10, 1.0), (18, 5, 1.0)])]
    ),
)
def test_intervals_cover_the_truth(cells, seeds, shared, sweeps):
    """Cells rise and fall together by `shared` and alone by 1; 200 sweeps miss a coverage below 85 % once in 100 times."""
    rng = np.random.default_rng(2)
    alone, summed = [], []
    for _ in range(sweeps):
        first = trial_spread(shared * rng.normal(size=(1, seeds)) + rng.normal(size=(cells, seeds)))
        second = trial_spread(0.5 * rng.normal(size=(1, seeds)) + 0.5 * rng.normal(size=(cells, seeds)))
        alone.append(first.low <= math.hypot(shared, 1) <= first.high)
        total = sum_of_spreads([first, second])
        summed.append(total.low <= math.sqrt(shared**2 + 1.5) <= total.high)
    error = 2.8 * math.sqrt(0.95 * 0.05 / sweeps)
    assert 0.95 - error <= np.mean(alone) <= 0.97 + error
    assert 0.95 - error <= np.mean(summed) <= 0.97 + error


def test_intervals_of_differences_allow_for_heavy_tails():
    """Student's t with 3 degrees of freedom: with normal noise assumed, 66 % of these intervals cover."""
    rng, covered = np.random.default_rng(4), []
    for _ in range(300):
        found = difference_spread(rng.standard_t(3, (6, 10)) / math.sqrt(3))
        covered.append(found.low <= math.sqrt(2) <= found.high)
    assert np.mean(covered) >= 0.83
    flat = difference_spread(np.zeros((3, 4)))
    assert (flat.sd, flat.low, flat.high) == (0, 0, 0)


def tables(generator, levels, seeds, noise, *, turned=False):
    truth = np.arange(levels, dtype=float)
    other = truth[::-1] if turned else truth
    draw = lambda means: means[:, None] + noise * generator.normal(size=(levels, seeds))  # noqa: E731
    return draw(truth), draw(other)


def test_tau_is_scipys_also_with_ties():
    generator = np.random.default_rng(0)
    for _ in range(50):
        first, second = generator.integers(0, 4, size=(2, 6, 1)).astype(float)
        mine, theirs = agree_in_rank(first, second).tau, stats.kendalltau(first[:, 0], second[:, 0]).statistic
        assert mine == theirs or abs(mine - theirs) < 1e-12 or (math.isnan(mine) and math.isnan(theirs))


def test_the_interval_of_well_separated_values_covers_and_excludes_zero():
    generator = np.random.default_rng(1)
    for turned, truth in ((False, 1.0), (True, -1.0)):
        found = [agree_in_rank(*tables(generator, 6, 5, 0.25, turned=turned)) for _ in range(40)]
        assert np.mean([each.low <= truth <= each.high for each in found]) >= 0.9
        assert all(each.low * each.high > 0 for each in found)


def test_unrelated_orders_rarely_exclude_zero():
    """If one sweep has no effect at all, at most a tenth of the intervals exclude a tau of 0."""
    generator = np.random.default_rng(2)
    excluded = 0
    for _ in range(150):
        first, second = generator.normal(size=(2, 6, 5)) + np.arange(6.0)[:, None] * np.array([[[1.0]], [[0.0]]])
        found = agree_in_rank(first, second)
        excluded += found.low > 0 or found.high < 0
    assert excluded <= 15, excluded


def test_few_values_seeds_or_queries_give_no_number_or_no_order():
    two = np.array([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])
    assert math.isnan(agree_in_rank(two, two).tau)
    one_seed = np.array([[1.0], [2.0], [4.0]])
    assert (agree_in_rank(one_seed, one_seed).tau, math.isnan(agree_in_rank(one_seed, one_seed).low)) == (1.0, True)
    steps = np.arange(3.0)[:, None].repeat(3, axis=1)
    assert agree_in_rank(steps, steps).low == 1.0
    assert agree_in_rank(steps, steps, resolutions=(5.0, 0.0)).low == -1.0


def test_bounds_cover_an_order_that_noise_hides():
    """A resampled interval missed the true tau, 1, in more than half of such pairs."""
    generator = np.random.default_rng(3)
    found = [agree_in_rank(*tables(generator, 6, 3, 2.0)) for _ in range(60)]
    assert np.mean([each.low <= 1.0 <= each.high for each in found]) >= 0.95


def test_quantiles_equal_those_of_scipy():
    tails, df = np.array([1e-12, 1e-4, 0.025, 0.3, 0.5, 0.9]), np.array([[1.0], [2.5], [40.0], [1e7], [np.inf]])
    assert student_isf(tails, df) == pytest.approx(stats.t.isf(tails, df), rel=1e-9, abs=1e-12)
    assert student_isf(0.0, 3) == np.inf
    assert np.isnan(student_isf(0.1, 0))
    assert [normal_isf(tail) for tail in tails] == pytest.approx(stats.norm.isf(tails), abs=1e-12)
    values = np.array([-3.0, 0.0, 1.2, 9.0])
    assert normal_sf(values) == pytest.approx(stats.norm.sf(values), rel=1e-9)
    assert normal_pdf(values) == pytest.approx(stats.norm.pdf(values), rel=1e-9)
    assert chi2_isf(tails, 7) == pytest.approx(stats.chi2.isf(tails, 7), rel=1e-9)
    for value, freedom, centre in ((2.0, 3.5, 1.0), (-1.0, 8, 0.5), (6.0, 60, 8.0)):
        assert noncentral_t_cdf(value, freedom, centre) == pytest.approx(
            stats.nct.cdf(value, freedom, centre), rel=1e-6
        )


def test_a_root_lies_where_the_sign_changes():
    assert root(lambda x: x**3 - 2, 0.0, 2.0) == pytest.approx(2 ** (1 / 3), abs=1e-9)
    assert root(lambda x: x, 0.0, 1.0) == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="must differ"):
        root(lambda x: x + 1, 0.0, 2.0)


def test_quantiles_of_very_many_degrees_of_freedom_are_interpolated_and_hardly_too_wide():
    df = np.random.default_rng(0).uniform(0.5, 500, (60, 50))
    found = _quantile_of(0.01, df) / student_isf(0.01, np.maximum(df, 1))
    assert found.min() > 1 - 1e-9
    assert found.max() < 1.0005


@pytest.mark.parametrize("root_of", [chance._root, chance._fast_root])
def test_roots_of_variances_give_every_difference_its_variance(root_of):
    """Var(y_i - y_k) of R z with standard normal z is |R_i - R_k|^2; a common shift has no effect."""
    draws = np.random.default_rng(5).normal(size=(4, 30))
    variances = np.array([[(one - other).var() for one in draws] for other in draws])
    found = root_of(variances)
    squares = ((found[:, None] - found[None]) ** 2).sum(-1)
    shift = squares - variances
    assert np.ptp(shift[~np.eye(4, dtype=bool)]) == pytest.approx(0, abs=1e-9)
