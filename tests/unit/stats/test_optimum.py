import math

import numpy as np
import pytest
from tables import table_of
from tune_dml.stats.optimum import extension

from trainables.methods import KnobDomain
from tune_dml.stats import fit_blocks, judge_optimum

X = [0.01, 0.1, 0.5, 0.9, 1.0]


def sweep(means: list[float], n: int = 3, sd: float = 0.3, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.array(means)[:, None] + random.normal(size=n) + sd * random.normal(size=(len(means), n))


def test_peak_inside_is_interior() -> None:
    found = judge_optimum(fit_blocks(table_of(sweep([60, 63, 66, 62, 61]))), X, scale="log")
    assert found.verdict == "interior"
    assert found.best == "c2"
    assert found.extend == ()
    assert found.edge_probability <= 0.05


def test_monotone_curve_is_at_its_low_edge_and_says_what_to_add() -> None:
    found = judge_optimum(fit_blocks(table_of(sweep([74.57, 72.0, 68.54, 68.28, 67.89]))), X, scale="log")
    assert (found.verdict, found.side, found.best) == ("edge", "low", "c0")
    assert found.extend == (0.001, 0.0001)
    assert not found.natural_bound


def test_an_edge_at_the_legal_bound_has_nothing_to_extend() -> None:
    domain = KnobDomain(0, 1, low_open=True)
    found = judge_optimum(fit_blocks(table_of(sweep([60, 61, 62, 64, 68]))), X, scale="log", domain=domain)
    assert (found.verdict, found.side) == ("edge", "high")
    assert found.natural_bound
    assert found.extend == ()


def test_minimised_metrics_look_for_the_lowest_mean() -> None:
    fit = fit_blocks(table_of(sweep([60, 63, 66, 62, 50])))
    assert judge_optimum(fit, X, goal="minimize").best == "c4"


def test_values_may_come_in_any_order() -> None:
    found = judge_optimum(fit_blocks(table_of(sweep([66, 60, 63]))), [0.5, 0.01, 1.0], scale="linear")
    assert found.verdict == "interior"


def test_flat_two_valued_and_single_seed_curves_have_no_verdict() -> None:
    fit = fit_blocks(table_of(sweep([60, 63, 66])))
    assert judge_optimum(fit, X[:3], insensitive=True).verdict == "none"
    two = fit_blocks(table_of(sweep([60, 63])))
    assert judge_optimum(two, X[:2]).verdict == "undecided"
    one = fit_blocks(table_of(sweep([60, 63, 66], n=1)))
    assert judge_optimum(one, X[:3]).reason == "one seed gives no noise estimate"
    assert math.isnan(judge_optimum(one, X[:3]).edge_probability)


def test_probabilities_add_up_and_are_reproducible() -> None:
    fit = fit_blocks(table_of(sweep([60, 60.1, 60.2, 60.1], sd=1.0)))
    first, second = judge_optimum(fit, X[:4]), judge_optimum(fit, X[:4])
    assert first == second
    assert sum(share for _, share in first.probabilities) == pytest.approx(1.0)
    assert first.verdict == "undecided"


def test_probability_of_the_best_equals_t_for_two_leading_cells() -> None:
    """With the others far below, P(first beats second) is Student's t at the paired difference."""
    from scipy.stats import t as student

    values = sweep([60, 61, 20], n=6, sd=1.0)
    fit = fit_blocks(table_of(values))
    shares = dict(judge_optimum(fit, [1, 2, 3]).probabilities)
    noise = np.maximum(fit.sd, fit.cell_sd)
    error = np.sqrt((noise[0] ** 2 + noise[1] ** 2) / 6)
    assert shares["c1"] == pytest.approx(student.cdf((fit.means[1] - fit.means[0]) / error, fit.df), abs=0.01)


def test_false_edge_rate_with_an_equally_good_neighbour() -> None:
    """The worst case for "edge": the best value inside is just as good as the edge; wrong at most one time in twenty."""
    random, edges, repeats = np.random.default_rng(5), 0, 200
    for _ in range(repeats):
        values = np.array([62.0, 62.0, 50.0, 49.0])[:, None] + random.normal(size=(4, 3))
        edges += judge_optimum(fit_blocks(table_of(values)), X[:4]).verdict == "edge"
    assert edges / repeats <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repeats)


@pytest.mark.parametrize(
    ("values", "side", "scale", "domain", "expected"),
    [
        ([0.001, 0.01, 0.1, 1], "high", "log", KnobDomain(), (10.0, 100.0)),
        ([0.25, 0.5, 1], "low", "log", KnobDomain(0), (0.12, 0.058)),
        ([4, 8, 12, 16], "high", "linear", KnobDomain(1, integer=True), (20.0, 24.0)),
        ([1, 4, 8], "low", "linear", KnobDomain(1, integer=True), ()),
        ([0.01, 0.1, 0.5], "low", "linear", KnobDomain(0, 1, low_open=True), (0.005, 0.0025)),
        ([0.1, 0.3, 0.5], "low", "linear", KnobDomain(0), (0.0,)),
        ([0.5, 0.9], "high", "linear", KnobDomain(0, 1), (1.0,)),
        ([0.5, 0.9, 1.0], "high", "linear", KnobDomain(0, 1), ()),
    ],
)
def test_extension(values: list[float], side: str, scale: str, domain: KnobDomain, expected: tuple[float, ...]) -> None:
    assert extension(values, side, scale=scale, domain=domain) == expected
