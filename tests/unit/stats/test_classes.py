"""Differences over classes and seeds: the arithmetic against loops, and error rates by simulation."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest
from scipy.stats import t as student

from tune_dml.stats.verdicts.classes import (
    _effective_classes,
    _mcnemar,
    _variance_parts,
    half_widths,
    judge_generalization,
)


def drawn(rng, sims, classes, seeds, *, class_sd=0.0, seed_sd=0.0, both_sd=0.0, per=20):
    """Return hits of one cell minus those of an equally good one, for random classes and seeds, and the queries."""
    level = rng.normal(0.5, 1.0, (sims, classes, 1))
    effect = class_sd * rng.normal(size=(sims, classes, 1)) + seed_sd * rng.normal(size=(sims, 1, seeds))
    effect = (effect + both_sd * rng.normal(size=(sims, classes, seeds))) / 2
    queries = np.broadcast_to(rng.integers(per // 2, 2 * per, (sims, classes, 1)), (sims, classes, seeds))
    first, second = (rng.binomial(queries, 1 / (1 + np.exp(-(level + sign * effect)))) for sign in (1, -1))
    return (first - second).astype(float), queries.astype(float)


def test_variances_follow_their_definition():
    rng = np.random.default_rng(0)
    hits, queries = (part[0] for part in drawn(rng, 1, 6, 3, class_sd=1.0, seed_sd=0.5))
    queries, hits = queries.copy(), hits.copy()
    queries[2, 1] = hits[2, 1] = 0  # a class that one seed does not have
    estimate, parts = _variance_parts(hits[None], queries[None])
    totals = [sum(queries[c, s] for c in range(6)) for s in range(3)]
    mean = sum(sum(hits[c, s] for c in range(6)) / totals[s] for s in range(3)) / 3
    w = {(c, s): (hits[c, s] - mean * queries[c, s]) / (3 * totals[s]) for c in range(6) for s in range(3)}
    held = [sum(queries[c, s] / totals[s] for s in range(3)) / 3 for c in range(6)]
    of_classes = 5 / 6 * sum((sum(w[c, s] for s in range(3)) / (1 - held[c])) ** 2 for c in range(6))
    of_seeds = 3 / 2 * sum(sum(w[c, s] for c in range(6)) ** 2 for s in range(3))
    of_both = 17 / 16 * sum(value**2 for value in w.values())
    assert estimate[0] == pytest.approx(mean)
    assert [float(part[0]) for part in parts] == pytest.approx([of_classes, of_seeds, of_both])
    assert _effective_classes(queries) == pytest.approx(1 / sum(share**2 for share in held))
    assert _effective_classes(np.ones((6, 3))) == pytest.approx(6)


def test_seeds_alone_give_the_paired_t_interval_of_the_means():
    hits = np.array([[4.0, 6.0, 1.0], [4.0, 6.0, 1.0]])
    queries = np.full((2, 3), 10.0)
    values = hits.sum(0) / 20
    found = judge_generalization(hits, queries, (0, 0), alpha=0.05)
    reach = student.ppf(0.975, 2) * values.std(ddof=1) / math.sqrt(3)
    assert (found.high - found.low) / 200 == pytest.approx(reach)
    assert found.trained_anew == pytest.approx(2 * student.sf(values.mean() / values.std(ddof=1) * math.sqrt(3), 2))


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (7, 7), (3, 12), (40, 21)])
def test_mcnemar_is_the_exact_sign_test(first, second):
    expected = binomtest(first, first + second).pvalue if first + second else 1.0
    assert _mcnemar(first, second) == pytest.approx(expected)
    assert _mcnemar(second, first) == _mcnemar(first, second)


def test_the_interval_ends_at_zero_where_the_p_value_is_its_error():
    rng = np.random.default_rng(1)
    hits, queries = (part[0] for part in drawn(rng, 1, 12, 4, class_sd=0.5, seed_sd=0.2))
    found = judge_generalization(hits + 2, queries, (60, 20), alpha=0.05)
    again = judge_generalization(hits + 2, queries, (60, 20), alpha=found.trained_anew)
    assert again.low == pytest.approx(0, abs=1e-9)
    assert found.these_networks <= found.trained_anew


def test_a_single_seed_or_class_gives_no_interval():
    rng = np.random.default_rng(2)
    hits, queries = (part[0] for part in drawn(rng, 1, 8, 1, class_sd=0.5))
    one = judge_generalization(hits, queries, (5, 3), alpha=0.05)
    assert math.isnan(one.trained_anew)
    assert math.isfinite(one.low)
    single = judge_generalization(hits[:1], queries[:1], (5, 3), alpha=0.05)
    assert math.isnan(single.low)
    assert math.isnan(single.these_networks)


CASES = [
    (20, 3, 0.5, 0.3, 0.3),
    (70, 2, 0.0, 0.3, 0.0),
    (70, 5, 0.5, 0.3, 0.3),
    (20, 10, 0.5, 0.0, 0.0),
    (20, 5, 0, 0, 0.3),
    (10, 10, 1.0, 0.0, 0.0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_false_claims_stay_below_five_percent_where_those_per_query_and_per_class_do_not(case):
    """1,500 sweeps of equally good cells; Monte Carlo error 0.6 points."""
    classes, seeds, class_sd, seed_sd, both_sd = case
    hits, queries = drawn(
        np.random.default_rng(3), 1500, classes, seeds, class_sd=class_sd, seed_sd=seed_sd, both_sd=both_sd
    )
    estimate, parts = _variance_parts(hits, queries)
    alike = _effective_classes(queries)
    wrong, fixed = (
        [
            abs(mean) > half_widths(variances, count, counted)(0.05)
            for mean, count, *variances in zip(estimate, alike, *parts, strict=True)
        ]
        for counted in (seeds, 1)
    )
    assert np.mean(wrong) <= 0.0613  # 5 % and two Monte Carlo errors
    if seed_sd:
        assert np.mean(fixed) > 0.12  # the same networks: claims about other seeds would be false


def test_classes_that_differ_by_seed_are_allowed():
    """Each seed validates on its own classes; then the means of the seeds are sufficient."""
    rng = np.random.default_rng(4)
    wrong = []
    for _ in range(400):
        hits, queries = np.zeros((40, 4)), np.zeros((40, 4))
        for seed, rows in enumerate(np.arange(40).reshape(4, 10)):
            own, asked = (part[0] for part in drawn(rng, 1, 10, 1, class_sd=0.5, seed_sd=0.2))
            hits[rows, seed], queries[rows, seed] = own[:, 0], asked[:, 0]
        estimate, parts = _variance_parts(hits[None], queries[None])
        half = half_widths(tuple(float(part[0]) for part in parts), float(_effective_classes(queries)), 4)(0.05)
        wrong.append(abs(float(estimate[0])) > half)
    assert np.mean(wrong) <= 0.08


def test_equal_answers_have_p_values_of_one_or_may_differ_by_half_a_query():
    found = judge_generalization(np.zeros((3, 2)), np.full((3, 2), 5.0), (0, 0), alpha=0.05)
    assert (found.per_query, found.these_networks, found.trained_anew) == (1, 1, 1)
    found = judge_generalization(np.ones((3, 2)), np.full((3, 2), 5.0), (6, 0), alpha=0.05)
    assert (found.high - found.low) / 200 == pytest.approx(student.ppf(0.975, 1) * math.sqrt(2 / 30**2 / 2))
