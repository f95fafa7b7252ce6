import numpy as np
import pytest
from tables import table_of

from tune_dml.stats import Excluded, SeedTable, half_width, judge_sensitivity


def verdicts(means: list[float], n: int, margin: float, repeats: int, *, sds: object = 1.0) -> dict[str, float]:
    """Rates of each verdict over simulated sweeps with strong seed effects; `effect` is that of a non-zero effect."""
    random = np.random.default_rng(len(means) * 1000 + n)
    noise = np.broadcast_to(np.asarray(sds, dtype=float), (len(means),))
    found = {"sensitive": 0, "insensitive": 0, "undecided": 0, "effect": 0}
    for _ in range(repeats):
        shape = (len(means), n)
        seed_effects = 2 * random.standard_normal(n)
        values = np.array(means)[:, None] + seed_effects + noise[:, None] * random.standard_normal(shape)
        result = judge_sensitivity(table_of(values), margin)
        found[result.verdict] += 1
        found["effect"] += result.effect
    return {verdict: count / repeats for verdict, count in found.items()}


REPEATS = 400
LIMIT = 0.05 + 3 * np.sqrt(0.05 * 0.95 / REPEATS)  # three standard errors of a simulated rate


@pytest.mark.parametrize("m", [3, 6])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_flat_curve_rarely_shows_an_effect(m: int, n: int) -> None:
    rates = verdicts([60.0] * m, n, 0.2, REPEATS)
    assert rates["effect"] <= LIMIT
    assert rates["sensitive"] <= LIMIT


@pytest.mark.parametrize("m", [3, 6])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_a_difference_of_exactly_the_margin_rarely_decides_either_way(m: int, n: int) -> None:
    margin = 4.0
    ends = verdicts([60.0, *[62.0] * (m - 2), 64.0], n, margin, REPEATS)
    assert ends["sensitive"] <= LIMIT
    assert ends["insensitive"] <= LIMIT
    halves = [60.0] * (m // 2) + [64.0] * (m - m // 2)  # as many pairs as can lie on the margin at once
    assert verdicts(halves, n, margin, REPEATS)["sensitive"] <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("m", [3, 6])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_unequal_noise_costs_little(m: int, n: int) -> None:
    """One cell three times as noisy: at most 9% false effects (Tukey with pooled noise alone: up to 15%)."""
    assert verdicts([60.0] * m, n, 0.2, 4000, sds=[3.0] + [1.0] * (m - 1))["effect"] <= 0.09


def test_known_flat_curve_is_insensitive_and_known_slope_sensitive() -> None:
    flat = verdicts([60.0] * 5, 8, 3.0, 60, sds=0.5)
    assert flat["insensitive"] > 0.95
    steep = verdicts([60.0, 61, 63, 66, 70], 3, 1.0, 60, sds=0.8)
    assert steep["sensitive"] > 0.95


def test_intervals_hold_simultaneously() -> None:
    random, hits, repeats = np.random.default_rng(0), 0, 400
    means = np.array([60.0, 61.0, 63.0, 60.5])
    for _ in range(repeats):
        values = means[:, None] + random.normal(size=3) * 2 + random.normal(size=(4, 3))
        result = judge_sensitivity(table_of(values), 1.0)
        truth = {f"c{i}": mean for i, mean in enumerate(means)}
        hits += all(d.low <= truth[d.first] - truth[d.second] <= d.high for d in result.differences)
    assert hits / repeats >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / repeats)


def test_one_seed_is_undecided_and_says_why() -> None:
    result = judge_sensitivity(table_of(np.array([[60.0], [70.0]])), 1.0)
    assert result.verdict == "undecided"
    assert result.reason == "one seed gives no noise estimate"
    assert result.seeds_needed is None


def test_one_value_is_undecided() -> None:
    assert judge_sensitivity(table_of(np.ones((1, 3))), 1.0).reason == "fewer than two values have results"
    assert judge_sensitivity(table_of(np.ones((0, 3))), 1.0).reason == "no value has results"


def test_excluded_cells_are_named_in_the_verdict() -> None:
    table = table_of(np.random.default_rng(0).normal(60, 1, size=(3, 3)))
    table = SeedTable(table.labels, table.seeds, table.values, (Excluded("rho=5", "diverged at seed 1"),))
    assert judge_sensitivity(table, 1.0).excluded == (Excluded("rho=5", "diverged at seed 1"),)


def test_missing_trials_are_fitted_by_least_squares() -> None:
    values = np.array([[60.0, 61, 62], [66, 67.2, 67.9], [70, 71, np.nan]])
    result = judge_sensitivity(table_of(values), 1.0)
    assert result.design == "least squares"
    assert result.verdict == "sensitive"


def test_no_noise_at_all() -> None:
    assert judge_sensitivity(table_of(np.full((3, 3), 100.0)), 1.0).verdict == "insensitive"
    values = np.full((3, 3), 100.0)
    values[2] = 90.0
    assert judge_sensitivity(table_of(values), 1.0).verdict == "sensitive"


def test_bars_that_do_not_overlap_differ() -> None:
    random = np.random.default_rng(7)
    for _ in range(50):
        values = random.normal(60, 2, size=(5, 1)) + random.normal(size=(5, 4)) * random.uniform(0.2, 2, size=(5, 1))
        result = judge_sensitivity(table_of(values), 1.0)
        half = dict(result.half_widths)
        for difference in result.differences:
            if abs(difference.estimate) > half[difference.first] + half[difference.second]:
                assert difference.low > 0 or difference.high < 0


@pytest.mark.parametrize(("means", "verdict"), [([60.0, 60.2, 60.1], "insensitive"), ([60.0, 61.0, 63.0], "sensitive")])
def test_seeds_needed_are_just_enough_when_the_estimates_hold(means: list[float], verdict: str) -> None:
    noise = np.array([[0.8, -0.8, 0.0], [0.0, 0.8, -0.8], [-0.8, 0.0, 0.8]])  # equal noise in every cell
    margin = 1.4
    first = judge_sensitivity(table_of(np.array(means)[:, None] + noise), margin)
    assert first.verdict == "undecided"
    assert first.seeds_needed is not None
    assert first.seeds_needed > 3
    size = max(means) - min(means)

    def decided(seeds: int) -> str:
        reach = half_width(seeds=seeds, sd=first.sd, cells=3)
        return "sensitive" if size - reach > margin else "insensitive" if size + reach < margin else "undecided"

    assert decided(first.seeds_needed) == verdict
    assert decided(first.seeds_needed - 1) == "undecided"


def test_the_stated_seeds_decide_about_as_often_as_not() -> None:
    """ "About": run with the number of seeds that a 3-seed pilot asks for, most sweeps get their verdict."""
    random, decided, asked = np.random.default_rng(11), 0, 0
    for _ in range(300):
        truth = np.array([60.0, 60.1, 60.2])[:, None]
        pilot = judge_sensitivity(table_of(truth + random.normal(size=(3, 3))), 1.5)
        if pilot.verdict == "undecided" and pilot.seeds_needed is not None:
            asked += 1
            values = truth + random.normal(size=(3, pilot.seeds_needed))
            decided += judge_sensitivity(table_of(values), 1.5).verdict != "undecided"
    assert asked > 200
    assert decided / asked > 0.5


def test_many_cells_list_only_the_difference_that_counts() -> None:
    values = np.random.default_rng(0).normal(60, 0.1, size=(300, 3))
    values[7] += 9
    result = judge_sensitivity(table_of(values), 1.0)
    assert result.verdict == "sensitive"
    assert len(result.differences) == 1
    assert "c7" in {result.differences[0].first, result.differences[0].second}


def test_a_difference_on_the_margin_needs_no_finite_number_of_seeds() -> None:
    values = np.array([[60.0, 60.5, 59.5], [61.0, 60.5, 61.5]])
    result = judge_sensitivity(table_of(values), 1.0)
    assert result.verdict == "undecided"
    assert result.seeds_needed is None


def test_margin_must_be_positive() -> None:
    with pytest.raises(ValueError, match="margin > 0"):
        judge_sensitivity(table_of(np.ones((2, 2))), 0.0)
