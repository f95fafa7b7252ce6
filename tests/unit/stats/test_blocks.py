import numpy as np
import pytest
from tables import table_of

from tune_dml.stats import fit_blocks


def naive_fit(values: np.ndarray) -> tuple[np.ndarray, float, int, np.ndarray]:
    """Dummy-variable regression by lstsq: the oracle for complete and for unbalanced data."""
    m, n = values.shape
    rows, numbers = [], []
    for i in range(m):
        for j in range(n):
            if np.isfinite(values[i, j]):
                row = np.zeros(m + n)
                row[i] = row[m + j] = 1
                rows.append(row)
                numbers.append(values[i, j])
    design, y = np.array(rows), np.array(numbers)
    beta, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    residual = y - design @ beta
    df = len(y) - rank
    contrast = np.linalg.pinv(design.T @ design)
    unit = np.zeros((m, m))
    for i in range(m):
        for k in range(m):
            c = np.zeros(m + n)
            c[i] += 1
            c[k] -= 1
            unit[i, k] = c @ contrast @ c
    return beta[:m], float(np.sqrt(residual @ residual / df)), int(df), unit


@pytest.mark.parametrize("holes", [[], [(0, 2)], [(0, 2), (1, 0), (3, 1)]])
def test_fit_equals_dummy_variable_regression(holes: list[tuple[int, int]]) -> None:
    values = np.random.default_rng(1).normal(60, 3, size=(5, 3))
    for hole in holes:
        values[hole] = np.nan
    fit = fit_blocks(table_of(values))
    means, sd, df, unit = naive_fit(values)
    assert fit.df == df
    assert fit.sd == pytest.approx(sd, rel=1e-10)
    np.testing.assert_allclose(fit.means - fit.means[0], means - means[0], atol=1e-10)
    np.testing.assert_allclose(fit.unit_variance, unit, atol=1e-10)
    assert fit.design == ("least squares" if holes else "complete blocks")


def test_complete_data_give_plain_means_and_two_over_n() -> None:
    values = np.random.default_rng(2).normal(size=(4, 5))
    fit = fit_blocks(table_of(values))
    np.testing.assert_allclose(fit.means, values.mean(1), atol=1e-12)
    assert fit.df == 12
    np.testing.assert_allclose(fit.unit_variance, (1 - np.eye(4)) * 2 / 5, atol=1e-12)
    np.testing.assert_allclose(fit.covariance(), np.diag(np.maximum(fit.sd, fit.cell_sd) ** 2) / 5, atol=1e-12)


def test_seed_effects_do_not_enter_the_noise() -> None:
    values = np.random.default_rng(3).normal(size=(4, 6))
    shifted = values + 50 * np.arange(6)
    plain, moved = fit_blocks(table_of(values)), fit_blocks(table_of(shifted))
    assert moved.sd == pytest.approx(plain.sd, rel=1e-9)
    assert moved.seed_sd > 50


def test_cell_noise_is_unbiased() -> None:
    random = np.random.default_rng(4)
    truth = np.array([3.0, 1.0, 1.0, 2.0])
    found = np.zeros(4)
    for _ in range(3000):
        values = random.normal(size=(4, 4)) * truth[:, None] + random.normal(size=4)
        m, n = values.shape
        residual = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
        pooled = (residual**2).sum() / ((m - 1) * (n - 1))
        found += m / (m - 2) * ((residual**2).sum(1) / (n - 1) - pooled / m)
        own = fit_blocks(table_of(values)).cell_sd ** 2 if _ < 20 else None
        if own is not None:  # the estimator itself, floored at zero
            expected = np.maximum(m / (m - 2) * ((residual**2).sum(1) / (n - 1) - pooled / m), 0)
            np.testing.assert_allclose(own, expected, atol=1e-9)
    np.testing.assert_allclose(found / 3000, truth**2, rtol=0.08)


def test_two_values_equal_the_paired_t_test() -> None:
    from scipy.stats import ttest_rel

    values = np.random.default_rng(5).normal(size=(2, 6))
    fit = fit_blocks(table_of(values))
    t = (fit.means[0] - fit.means[1]) / fit.standard_errors()[0, 1]
    assert t == pytest.approx(ttest_rel(values[0], values[1]).statistic, rel=1e-10)
    assert fit.df == 5


def test_cells_without_numbers_or_common_seeds_are_named() -> None:
    nan = np.nan
    values = np.array([[1, 2, nan, nan], [2, 3, nan, nan], [nan, nan, nan, nan], [nan, nan, 5, 6]])
    fit = fit_blocks(table_of(values))
    assert fit.table.labels == ("c0", "c1")
    assert {item.label: item.reason for item in fit.table.excluded} == {
        "c2": "no trial finished yet",
        "c3": "shares no seed with the other values",
    }


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1, 1), (0, 2)])
def test_too_little_data_gives_no_noise_estimate(shape: tuple[int, int]) -> None:
    fit = fit_blocks(table_of(np.ones(shape)))
    assert fit.df == 0
    assert fit.sd == 0


def test_equal_numbers_have_no_noise_at_all() -> None:
    fit = fit_blocks(table_of(np.full((4, 3), 99.87)))
    assert fit.sd == 0
    assert fit.noise_ratio == 1


def test_infinite_values_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        table_of(np.array([[np.inf, 1.0]]))
