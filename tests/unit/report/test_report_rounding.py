"""Rounding decides nothing in a report: tied cells keep their order, and no number that is printed as 0 has a sign."""

from dataclasses import replace
from itertools import permutations

import numpy as np
from helpers.claims import results_with
from helpers.toys import MARGINS, METRIC, RHO, plan_of, space_of

from tune_dml.planning.plan import Plan
from tune_dml.report.analysis import analyse
from tune_dml.report.naming import metric_name
from tune_dml.report.questions.configurations.configuration import configuration
from tune_dml.report.questions.knobs.optimum import locate_optimum
from tune_dml.report.questions.validity.caveats import unbeaten_floor
from tune_dml.space import Baseline, Knob

SEEDS = 100 / np.array([3, 1.5, 7])
"""Three numbers whose sum is rounded differently in other orders."""

TIED_PAIRS = "010 000 111 000 100 101 101 111 111 010 010"
"""Hits of three queries by cell and seed; two double differences of the cells are equally significant."""


def toy_plan(*knobs: Knob) -> Plan:
    fixed = {"loss.name": "triplet", "regularizer.name": "sec"}
    space = space_of(*knobs, fixed=fixed, baseline=Baseline("off", {"regularizer.name": "none"}))
    return plan_of(space=space, seeds=3, overrides={"batch.batch_size": 9, "batch.instances_per_class": 3})


def test_tied_cells_keep_their_order() -> None:
    plan, rng = toy_plan(RHO), np.random.default_rng(0)
    labels = [cell.label for cell in plan.cells]
    for _ in range(10):
        values = np.array([rng.permutation(SEEDS) for _ in labels])
        assert [cell.label for cell in analyse(results_with(plan, values)).ranked] == labels


def test_the_first_of_tied_values_is_called_the_best() -> None:
    plan, rng = toy_plan(RHO), np.random.default_rng(0)
    for _ in range(10):
        found = analyse(results_with(plan, np.array([rng.permutation(SEEDS) for _ in plan.cells])))
        assert locate_optimum(found, found.knobs[0]).best == "rho=0.01"


def test_a_floor_of_the_same_numbers_is_not_beaten() -> None:
    plan, rng = toy_plan(RHO), np.random.default_rng(0)
    for _ in range(10):
        results = results_with(plan, np.array([rng.permutation(SEEDS) for _ in plan.cells]))
        floors = {"raw_pixels": {METRIC: float(np.mean(rng.permutation(SEEDS)))}}
        assert unbeaten_floor(analyse(replace(results, floors=floors)))


def test_the_named_interaction_does_not_depend_on_the_order_of_the_seeds() -> None:
    plan, named = toy_plan(RHO, MARGINS), set()
    values = 100 / 3 * np.array([[int(digit) for digit in row] for row in TIED_PAIRS.split()])
    for order in permutations(range(3)):
        section = configuration.section(analyse(results_with(plan, values[:, order])), None)
        assert section is not None
        named.add(section.data["interactions"][0].levels)
    assert len(named) == 1


def test_a_number_printed_as_0_has_no_sign() -> None:
    recall, variance = metric_name(METRIC), metric_name("train/norm_variance")
    assert [recall.signed(value) for value in (0.001, -0.001, 0.01)] == ["0.00", "0.00", "+0.01"]
    assert recall.rough(-1.4e-15) == "0 points"
    assert variance.signed(1e-6) == "+1.000e-06"


def test_a_gain_printed_as_0_is_no_gain() -> None:
    plan, baseline = toy_plan(RHO, MARGINS), np.array([50.0, 60.0, 70.0])
    off = [cell.label for cell in plan.cells].index("off")
    values = np.tile(baseline - 1, (len(plan.cells), 1))
    values[off], values[off - 1] = baseline, baseline + 0.003
    section = configuration.section(analyse(results_with(plan, values)), None)
    assert section is not None
    assert "no better than off" in section.verdicts[0]
    assert "0.00 points" not in section.verdicts[0]
