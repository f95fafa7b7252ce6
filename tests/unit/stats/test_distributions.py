"""Quantiles and tails against scipy.stats."""

import numpy as np
import pytest
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


def test_they_are_those_of_scipy():
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
    with pytest.raises(ValueError, match="must differ"):
        root(lambda x: x + 1, 0.0, 2.0)
