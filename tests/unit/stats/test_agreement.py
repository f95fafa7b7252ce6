import itertools
import math

import numpy as np
import pytest
from scipy.stats import kendalltau
from tables import table_of

from tune_dml.stats import fit_blocks, judge_agreement
from tune_dml.stats.agreement import _taus

X = [0.01, 0.1, 0.5, 0.9, 1.0]
PAPER = {0.01: 74.57, 0.1: 72.00, 0.5: 68.54, 0.9: 68.28, 1.0: 67.89}


def sweep(means: list[float], n: int = 5, sd: float = 0.5, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.array(means)[:, None] + sd * random.normal(size=n) + sd * random.normal(size=(len(means), n))


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "matches"), (9.0, "higher"), (-9.0, "lower")])
def test_levels(shift: float, verdict: str) -> None:
    found = judge_agreement(fit_blocks(table_of(sweep([y + shift for y in PAPER.values()]))), X, PAPER)
    assert found.verdict == verdict
    assert found.shared == 5
    assert found.tau == 1.0
    assert found.points[0].gap == pytest.approx(shift, abs=1)


def test_above_here_and_below_there_is_mixed() -> None:
    means = [y + 9 * (-1) ** i for i, y in enumerate(PAPER.values())]
    assert judge_agreement(fit_blocks(table_of(sweep(means))), X, PAPER).verdict == "mixed"


def test_a_reason_forbids_levels_but_not_shape() -> None:
    found = judge_agreement(fit_blocks(table_of(sweep([9, 7, 3, 2, 1]))), X, PAPER, reasons=("other data set",))
    assert found.verdict == "not comparable"
    assert found.reasons == ("other data set",)
    assert all(math.isnan(point.low) for point in found.points)
    assert found.tau == 1.0
    assert found.tau_low > 0.5


def test_only_shared_values_count_and_few_have_no_tau() -> None:
    fit = fit_blocks(table_of(sweep([70, 69, 68])))
    found = judge_agreement(fit, [0.01, 0.2, 0.10000000000000002], PAPER)
    assert found.shared == 2
    assert math.isnan(found.tau)
    assert judge_agreement(fit, [7.0, 8.0, 9.0], PAPER).verdict == "not comparable"


def test_one_seed_is_undecided() -> None:
    found = judge_agreement(fit_blocks(table_of(sweep([70, 69, 68], n=1))), X[:3], PAPER)
    assert found.verdict == "undecided"
    assert found.tau == 1.0
    assert math.isnan(found.tau_low)


def test_prediction_intervals_cover_a_paper_that_is_a_draw_of_the_same_law() -> None:
    random, covered, repeats = np.random.default_rng(3), 0, 400
    truth = np.array([70.0, 69.0, 68.0])
    for _ in range(repeats):
        values = truth[:, None] + 0.7 * random.normal(size=4) + random.normal(size=(3, 4))
        paper = truth + np.sqrt(0.49 + 1) * random.normal(size=3)
        found = judge_agreement(fit_blocks(table_of(values)), X[:3], dict(zip(X, paper, strict=False)))
        covered += found.verdict == "matches"
    assert 0.95 - 3 * np.sqrt(0.05 * 0.95 / repeats) <= covered / repeats < 1.0


def test_tau_equals_scipy_with_ties() -> None:
    for ours in itertools.product([1.0, 2.0, 3.0], repeat=4):
        theirs = np.array([1.0, 2.0, 2.0, 4.0])
        expected = kendalltau(np.array(ours), theirs).statistic
        assert _taus(np.array([ours]), theirs)[0] == pytest.approx(0.0 if math.isnan(expected) else expected)
