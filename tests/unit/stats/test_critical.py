import numpy as np
import pytest
from scipy import stats

from tune_dml.stats.critical import dunnett, studentized_range


@pytest.mark.parametrize(("groups", "df"), [(2, 1), (2, 2), (3, 4), (6, 10), (6, 45), (10, 2), (20, 60), (200, 400)])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_studentized_range_equals_scipy(groups: int, df: int, confidence: float) -> None:
    expected = stats.studentized_range.ppf(confidence, groups, df)
    assert studentized_range(groups, df, confidence) == pytest.approx(expected, rel=1e-7)


def test_two_groups_are_student_t() -> None:
    for df in (1, 2, 7, 500):
        expected = np.sqrt(2) * stats.t.ppf(0.975, df)
        assert studentized_range(2, df) == pytest.approx(expected, rel=1e-7)
        assert dunnett(1, df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-7)


@pytest.mark.parametrize(("comparisons", "df"), [(2, 4), (5, 10), (3, 20)])
def test_dunnett_equals_the_multivariate_t_integral(comparisons: int, df: int) -> None:
    critical = dunnett(comparisons, df)
    shape = np.full((comparisons, comparisons), 0.5) + 0.5 * np.eye(comparisons)
    law = stats.multivariate_t(np.zeros(comparisons), shape, df=df, seed=0)
    inside = law.cdf(np.full(comparisons, critical), lower_limit=np.full(comparisons, -critical), maxpts=200_000)
    assert inside == pytest.approx(0.95, abs=1e-4)


def test_printed_tables() -> None:
    assert studentized_range(6, 10) == pytest.approx(4.91, abs=0.005)
    assert dunnett(5, 10) == pytest.approx(2.99, abs=0.005)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match=r"groups >= 2"):
        studentized_range(1, 3)
    with pytest.raises(ValueError, match=r"comparisons >= 1"):
        dunnett(1, 0)
