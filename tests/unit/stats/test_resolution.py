"""Few queries: equal seeds are no certainty, in any verdict."""

import math
from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
from scipy.stats import binom
from scipy.stats import t as student

from tune_dml.record.judging.resolution import resolution_in, resolution_of
from tune_dml.stats import IsolatedKnob, KnobPoint, SeedTable, compare_all_with, isolate, judge_best, judge_sensitivity
from tune_dml.stats.intervals.contrasts import estimate_contrasts, interaction
from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.paired import cell_interval, paired_difference
from tune_dml.stats.intervals.resolution import is_step_unknown, resolution_shown, variance_floor
from tune_dml.stats.intervals.simultaneous import all_pairs, at_most
from tune_dml.stats.power import fewest_seeds
from tune_dml.stats.sequential.racing import judge_race
from tune_dml.stats.verdicts.chance import p_best
from tune_dml.stats.verdicts.classes import judge_generalization
from tune_dml.stats.verdicts.curve import fit_parabola
from tune_dml.stats.verdicts.equivalence import judge_equivalence
from tune_dml.stats.verdicts.importance import importance_of_grid
from tune_dml.stats.verdicts.selection import score_of_best

STEP = 12.5
"""Of eight queries."""


def few(*levels: float, seeds: int = 3, resolution: float = STEP) -> SeedTable:
    """Return values in steps, equal under every seed."""
    values = STEP * np.repeat(np.array(levels)[:, None], seeds, axis=1)
    return SeedTable(tuple("abcdefghi"[: len(levels)]), tuple(range(seeds)), values, resolution=resolution)


def test_the_floor_is_the_largest_variance_of_two_neighbours() -> None:
    shares = np.linspace(0, 1, 101)
    two = shares * STEP**2 - (shares * STEP) ** 2
    assert variance_floor(STEP) == pytest.approx(two.max())
    weights = np.array([[1.0, -1.0, 0.0], [0.5, 0.5, -1.0]])
    np.testing.assert_allclose(variance_floor(STEP, weights), [2 * two.max(), 1.5 * two.max()])
    assert variance_floor(0.0) == 0


def test_students_interval_on_the_floor_holds_the_exact_binomial_one_of_equal_values() -> None:
    for seeds in range(2, 300):
        for tail in (0.05, 0.025, 0.01, 0.001):
            exact = 1 - tail ** (
                1 / seeds
            )  # Clopper and Pearson: the share of neighbours at which n equal values are rare
            assert binom.cdf(0, seeds, exact) == pytest.approx(tail)
            assert student.isf(tail, seeds - 1) * np.sqrt(variance_floor(1.0) / seeds) >= exact


def test_where_seeds_differ_by_more_than_steps_nothing_changes() -> None:
    values = 60 + np.random.default_rng(0).standard_normal((100, 4, 5))
    plain, coarse = all_pairs(values), all_pairs(values, noise=fit_pairs(values, 100 / 5924))
    np.testing.assert_allclose(coarse.low, plain.low, atol=0.02)


def _flips(cells: int, queries: int, flipping: int, seeds: int, gap: float = 0.0) -> np.ndarray:
    """R@1 of 2,000 sweeps of which `flipping` queries are right half of the time; the last cell is `gap` points better."""
    chance = np.full((cells, 1), 0.5)
    chance[-1] += gap * queries / 100 / flipping
    rng = np.random.default_rng([cells, queries, seeds])
    return np.asarray(100 / queries * rng.binomial(flipping, chance, (2000, cells, seeds)))


def test_the_fewest_seeds_that_show_a_difference_to_be_small() -> None:
    needed = fewest_seeds(resolution=STEP, margin=2.0)
    assert needed is not None
    for seeds, verdict in ((needed - 1, "undecided"), (needed, "insensitive")):
        assert judge_sensitivity(few(1.0, 1.0, seeds=seeds), 2.0).verdict == verdict
    assert fewest_seeds(resolution=STEP, margin=0.1) is None


@pytest.mark.parametrize(
    ("cells", "queries", "flipping", "seeds", "before"),
    [(2, 8, 2, 2, 0.10), (5, 8, 1, 3, 0.15), (5, 20, 6, 2, 0.30), (5, 50, 2, 4, 0.05), (5, 358, 18, 2, 0.20)],
)
def test_equal_cells_differ_on_few_queries_in_at_most_five_sweeps_of_a_hundred(cells, queries, flipping, seeds, before):
    values = _flips(cells, queries, flipping, seeds)
    assert (all_pairs(values).low > 0).any((1, 2)).mean() > before
    noise = fit_pairs(values, 100 / queries)
    assert (all_pairs(values, noise=noise).low > 0).any((1, 2)).mean() < 0.065  # three Monte Carlo standard errors


@pytest.mark.parametrize(("queries", "seeds", "before"), [(8, 2, 0.2), (8, 3, 0.1), (20, 2, 0.2), (50, 2, 0.1)])
def test_a_cell_that_is_the_margin_off_is_called_equal_in_at_most_five(queries: int, seeds: int, before: float) -> None:
    values = _flips(2, queries, max(1, queries // 20), seeds, gap=1.0)
    assert (at_most(values) < 1).all((1, 2)).mean() > before
    assert (at_most(values, noise=fit_pairs(values, 100 / queries)) < 1).all((1, 2)).mean() < 0.065


def test_at_358_queries_differences_are_found_as_before() -> None:
    for seeds in (3, 5):
        values = _flips(5, 358, 107, seeds, gap=6 / seeds**0.5 * 100 / 358 * 107**0.5 / 2)
        found = [
            (all_pairs(values, noise=fit_pairs(values, step)).low > 0).any((1, 2)).mean() for step in (0, 100 / 358)
        ]
        assert found[1] > found[0] - 0.02


KNOB = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
HILL = (1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0)


def _grid(table: SeedTable) -> np.ndarray:
    return np.stack([table.values] * 2, axis=1)


def _averaged(table: SeedTable) -> IsolatedKnob:
    """Return the rows as averages over two values of another knob, which changes nothing."""
    rows = list(zip(table.labels, table.values.tolist(), strict=True))
    points = [KnobPoint(label, other, (), dict(enumerate(row))) for other in (0, 1) for label, row in rows]
    labels = {label: label for label in table.labels}
    return isolate(points, labels, table.seeds, resolution=table.resolution)


def _main_effect(table: SeedTable) -> bool:
    isolated = _averaged(table)
    return judge_sensitivity(isolated.table, 1.0, crossed=isolated.crossed).verdict == "sensitive"


def _fitted(table: SeedTable) -> bool:
    curve = table.values[0] * np.array([1, 1.75, 2, 1.75, 1])[:, None]
    return fit_parabola(curve, np.array(KNOB[:5]), resolution=table.resolution).verdict == "interior"


def _interacts(table: SeedTable) -> bool:
    weights = interaction((0, 0, 1, 1), (0, 1, 0, 1))
    return bool((estimate_contrasts(table.values[[2, 0, 0, 2]], weights, resolution=table.resolution).low > 0).any())


CERTAIN: dict[str, Callable[[SeedTable], bool]] = {
    "matters": lambda table: judge_sensitivity(table, 1.0).verdict == "sensitive",
    "matters, averaged": _main_effect,
    "matters, of averages": lambda table: judge_sensitivity(_averaged(table).table, 1.0).verdict == "sensitive",
    "does not matter": lambda table: judge_sensitivity(table.without("cdefg"), 1.0).verdict == "insensitive",
    "baseline": lambda table: any(d.low > 0 or d.high < 0 for d in compare_all_with(table, "a")),
    "best": lambda table: len(judge_best(table.values, KNOB, 1.0, resolution=table.resolution).candidates) < 9,
    "within": lambda table: len(judge_best(table.values, KNOB, 1.0, resolution=table.resolution).within) > 1,
    "probability": lambda table: p_best(table.values, resolution=table.resolution)[0] == 0,
    "race": lambda table: bool(judge_race(table.values, 1.0, 0.05, resolution=table.resolution).decided),
    "score": lambda table: float(score_of_best(table.values, resolution=table.resolution).low) == 2 * STEP,
    "gain": lambda table: float(score_of_best(table.values, 0, resolution=table.resolution).low) > 0,
    "cell": lambda table: cell_interval(table, 0).low == STEP,
    "pair": lambda table: paired_difference(table, 2, 0).low > 0,
    "agreement": lambda table: (
        judge_equivalence(table.values, table.values[:, 0].tolist(), 1.0, resolution=table.resolution).verdict
        == "matches"
    ),
    "parabola": _fitted,
    "importance": lambda table: not importance_of_grid(_grid(table), resolution=table.resolution).problem,
    "interaction": _interacts,
}


@pytest.mark.parametrize("verdict", CERTAIN)
def test_every_verdict_knows_the_resolution(verdict: str) -> None:
    """Three equal seeds: certain for a nearly continuous metric, never for eight queries."""
    assert CERTAIN[verdict](few(*HILL, resolution=0.0)) != CERTAIN[verdict](few(*HILL))


def test_equal_seeds_are_not_certain_beyond_the_sampled_classes() -> None:
    hits, queries = np.ones((4, 3)), np.full((4, 3), 2.0)
    found = judge_generalization(hits, queries, (12, 0), alpha=0.05)
    assert found.estimate == 50
    assert found.high - found.estimate == pytest.approx(student.isf(0.025, 2) * STEP / np.sqrt(2) / np.sqrt(3))


def test_the_step_of_a_metric_is_the_effect_of_one_query_or_comes_from_its_values() -> None:
    trials = [{"val/queries": 50.0, "test/queries": 8.0}, {"val/queries": 40.0}, {}]
    assert resolution_of("val/recall_at_1", trials) == 2.5
    assert resolution_of("test/map_at_r", trials) == 12.5
    assert resolution_of("val/nmi", trials) == resolution_of("train/loss", trials) == 0
    assert resolution_of("recall_at_1", [{"queries": 20.0}]) == 5
    assert resolution_of("val/recall_at_1", [{}]) == 0
    cells = [[{"val/recall_at_1": 50.0, "val/nmi": 20.0}, {"val/recall_at_1": 75.0, "val/nmi": 22.0}]]
    assert resolution_in("val/nmi", cells) == 2
    assert resolution_in("val/recall_at_1", cells) == 25
    counted = [[{**trial, "val/queries": 50.0} for trial in cell] for cell in cells]
    assert resolution_in("val/recall_at_1", counted) == 2
    assert resolution_in("val/nmi", counted) == 2
    fractions = [[{"recall_at_1": 0.5, "queries": 20.0}, {"recall_at_1": 0.75, "queries": 20.0}]]
    assert resolution_in("recall_at_1", fractions, fractions=True) == 0.25


def test_the_step_is_the_common_divisor_of_all_values() -> None:
    def step(*numbers: float) -> float:
        return resolution_shown([[number] for number in numbers])  # one seed a cell: none tie

    assert step(62.5, 75.0, 37.5) == pytest.approx(12.5)
    assert (step(50.0, 50.0), step(350.0, 350.0)) == (100.0, 350.0)  # unknown: no difference is significant
    single = np.float32(100 * np.array([1000, 1013, 907]) / 1460)
    assert step(*single.tolist()) == pytest.approx(100 / 1460, rel=1e-3)
    assert step(66.4, 66.5, 70.1) == pytest.approx(0.1)
    assert step(*(60 + np.random.default_rng(0).standard_normal(10)).tolist()) < 1e-3


def test_ties_between_the_seeds_of_a_cell_show_a_step_where_numbers_are_multiples_of_none() -> None:
    random = np.random.default_rng(0)
    support = np.sort(random.uniform(0, 100, 101))  # uneven: steps of about 1
    coarse = support[np.clip(np.round(random.normal(50, 2, (6, 8))), 0, 100).astype(int)]
    assert 0.3 < resolution_shown(coarse.tolist()) < 3
    continuous = random.normal(60, 1, (6, 8))
    assert resolution_shown(continuous.tolist()) < 1e-3
    continuous[2, 3] = continuous[2, 1]  # one tie by accident
    assert resolution_shown(continuous.tolist()) < 0.1


def test_a_constant_metric_has_an_unknown_step() -> None:
    assert resolution_shown([[70.0, 70.0], [70.0, np.nan]]) == 100
    assert resolution_shown([[0.0, 0.0], [0.0]]) == 100
    assert resolution_shown([[1e6, 1e6]]) == 1e6
    assert resolution_shown([[70.0]]) == resolution_shown([]) == 0
    assert is_step_unknown(100.0, [70.0, 70.0, math.nan])
    table = few(1.0, 1.0, resolution=resolution_shown([[12.5] * 3] * 2))
    assert judge_sensitivity(table, 1.0).verdict == "undecided"


def test_large_numbers_in_large_steps_have_a_known_step() -> None:
    ranks = [[1200.0, 1500.0, 1100.0], [1300.0, 1300.0, 1400.0]]
    assert resolution_shown(ranks) >= 100
    assert not is_step_unknown(resolution_shown(ranks), chain.from_iterable(ranks))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3])
def test_an_accuracy_on_ten_uncounted_queries_is_certain_in_at_most_five_sweeps(seeds: int) -> None:
    """Two cells, a query that flips; "does not matter" of cells a point apart, and a difference of equal ones."""
    random = np.random.default_rng(seeds)
    wrong = {"small": [0, 0], "different": [0, 0]}
    for _ in range(300):
        apart = 100 - 10.0 * random.binomial(1, [[0.0], [0.1]], (2, seeds))
        alike = 60 + 10.0 * random.binomial(3, 0.5, (2, seeds))
        for place, floor in enumerate((lambda table: 0.0, lambda table: resolution_shown(table.tolist()))):
            wrong["small"][place] += bool((at_most(apart, 0.05, fit_pairs(apart, floor(apart))) < 1).all())
            wrong["different"][place] += bool((all_pairs(alike, 0.05, fit_pairs(alike, floor(alike))).low > 0).any())
    assert wrong["small"][0] > 0.5 * 300
    assert max(wrong["small"][1], wrong["different"][1]) < (0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5) * 300
