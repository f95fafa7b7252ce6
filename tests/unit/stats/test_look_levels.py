"""Error levels of looks at a growing sweep: the group-sequential rule against naive oracles."""

import numpy as np
import pytest
from helpers.costly import slow_after
from scipy.optimize import brentq
from scipy.stats import multivariate_normal, nct, norm, t

from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.sequential.looks import error_spent, level_left
from tune_dml.stats.sequential.racing import next_look


def levels(looks: list[float], planned: float, grown: frozenset[int] = frozenset()) -> list[float]:
    return [level_left(looks[: k + 1], planned=planned, grown=grown) for k in range(len(looks))]


def test_a_second_look_solves_the_bivariate_normal() -> None:
    first, second = (norm.isf(level / 2) for level in levels([3, 5], 3))
    rho = np.sqrt(2.5 / 4.5)
    joint = multivariate_normal(cov=[[1, rho], [rho, 1]])

    def inside(a: float, b: float) -> float:
        return float(joint.cdf([a, b]) - joint.cdf([-a, b]) - joint.cdf([a, -b]) + joint.cdf([-a, -b]))

    claimed_second_alone = (1 - 2 * norm.sf(first)) - inside(first, second)
    spent = error_spent([3, 5], planned=3) - error_spent([3], planned=3)
    assert claimed_second_alone == pytest.approx(spent, abs=1e-5)


@pytest.mark.parametrize("looks", [[3, 5, 8, 12], [1.5, 3, 4, 5, 6], [5, 6, 7, 8, 9, 10]])
def test_simulated_looks_claim_at_the_spent_rate(looks: list[float]) -> None:
    planned, random = 3, np.random.default_rng(0)
    steps = np.diff([0, *(n - 0.5 for n in looks)])
    sums = (random.standard_normal((400_000, len(looks))) * np.sqrt(steps)).cumsum(1)
    statistic = np.abs(sums) / np.sqrt(np.array(looks) - 0.5)
    limits = norm.isf(np.array(levels(looks, planned)) / 2)
    claimed = (statistic > limits).cumsum(1) > 0
    for k in range(len(looks)):
        assert claimed[:, k].mean() == pytest.approx(error_spent(looks[: k + 1], planned=planned), abs=0.0012)


@pytest.mark.parametrize("planned", [2, 3, 10])
def test_looks_never_spend_more_than_alpha(planned: int) -> None:
    seen: list[float] = []
    for seeds in (3, 3.5, 5, 5, 8, 20, 400):
        seen.append(seeds)
        assert 0 < level_left(seen, planned=planned) < 0.05
        assert error_spent(seen, planned=planned) < 0.05


def test_a_repeated_look_spends_nothing_and_one_at_added_cells_only_its_share() -> None:
    assert level_left([3, 5, 5], planned=3) == level_left([3, 5], planned=3) == level_left([3, 5, 4], planned=3)
    assert level_left([3], planned=3) == pytest.approx(0.04)
    for looks, planned in (([], 3), ([3], 0)):
        with pytest.raises(ValueError, match="must"):
            level_left(looks, planned=planned)
    spent = error_spent([3, 5], planned=3) - 0.04
    assert level_left([3, 5], planned=3, grown=frozenset({1})) == pytest.approx(spent)
    assert level_left([3, 5], planned=3) > 1.8 * spent


@pytest.mark.parametrize("planned", [2, 3, 5, 10])
def test_the_second_look_keeps_a_usable_level(planned: int) -> None:
    """One look at the planned seeds, then extensions for two more looks: intervals of at most 98.5 %."""
    for seeds in (planned + 1, next_look(planned), next_look(next_look(planned))):
        if seeds <= planned * 5 / 3:
            assert level_left([planned, seeds], planned=planned) >= 0.0153


@pytest.mark.parametrize(("comparisons", "most"), [(3, 1.055), (6, 1.05), (15, 1.04), (45, 1.035)])
def test_the_planned_look_costs_few_trials(comparisons: int, most: float) -> None:
    """Trials for a power of 80 % at the planned look, beside those of a single look at 5 %."""

    def power(seeds: float, alpha: float, effect: float) -> float:
        limit = t.isf(alpha / (2 * comparisons), seeds - 1)
        return float(nct.sf(limit, seeds - 1, effect * np.sqrt(seeds)))

    def needed(seeds: int) -> float:
        effect = brentq(lambda size: power(seeds, 0.05, size) - 0.8, 0.1, 200)
        return float(brentq(lambda count: power(count, level_left([seeds], planned=seeds), effect) - 0.8, 1.5, 60))

    assert max(needed(seeds) / seeds for seeds in (3, 5, 10)) <= most


@pytest.mark.parametrize("looks", slow_after(1, [[3, 5, 8, 12], [2, 3, 4, 6], [5, 6, 7, 8, 9, 10], [5, 8, 12]]))
def test_extending_until_a_claim_stays_honest(looks: list[int]) -> None:
    sweeps = 2000 if looks[0] == 3 else 8000  # the first case is not slow
    for cells, most in ((2, 0.055), (3, 0.053), (6, 0.05)):
        values = np.random.default_rng([cells, *looks]).normal(size=(sweeps, cells, max(looks)))
        claimed = np.zeros(len(values), dtype=bool)
        for seeds, level in zip(looks, levels([float(n) for n in looks], looks[0]), strict=True):
            claimed |= (all_pairs(values[..., :seeds], level).low > 0).any((1, 2))
        assert claimed.mean() <= most + 2 * np.sqrt(0.05 * 0.95 / len(values))
