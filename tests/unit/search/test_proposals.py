"""The search: exact grids, paired seeds, no repeats, equal proposals in any order of results; the Gaussian process."""

import math
import random
from collections import Counter
from dataclasses import replace
from statistics import mean, median

import numpy as np
import pytest
from helpers import toys
from helpers.toys import space_of

from tune_dml.planning.study import Search
from tune_dml.record.events import CellProposed
from tune_dml.running.search.gaussian import MIN_CELLS, GaussianSearch, _fitted_cells, _noise, _select_cells
from tune_dml.running.search.optuna_search import Proposals
from tune_dml.running.search.points import _ARM, Points
from tune_dml.space import Arm, Baseline, Grid, Knob, LogRange, Range


def cells_into(cells):
    """Return a function that takes the events of a search, and appends proposed cells to a list."""
    return lambda event: isinstance(event, CellProposed) and cells.append(event.cell)


def plan_of(*knobs, baseline=True, **options):
    off = Baseline("off", {"regularizer.name": "none"}) if baseline else None
    space = space_of(*knobs, fixed={"loss.name": "triplet", "regularizer.name": "sec"}, baseline=off)
    return toys.plan_of(space=space, overrides=SIZES, **{"seeds": 3, **options})


SIZES = {"batch.batch_size": 9, "batch.instances_per_class": 3}
RHO = Knob("regularizer.rho", Grid((0.1, 0.5, 1.0)))
LR = Knob("optim.lr", LogRange(1e-4, 1e-1))
MARGIN = Knob("loss.margin", Grid((0.1, 0.2)))
NAME = Knob("optim.name", Grid(("adamw", "sgd"), scale="category"))


def value_of(trial):
    return -((math.log10(trial.cell.settings["optim.lr"]) + 2.5) ** 2) + 0.01 * trial.seed


def run(proposals, order, slots=4, until=None, value=value_of):
    """Run trials `slots` at a time and end them in a random order; returns the trials in order of starting."""
    started, running = [], []
    while True:
        while len(running) < slots and (trial := proposals.next_trial()) is not None:
            started.append(trial)
            running.append(trial)
            if until is not None and len(started) >= until:
                return started
        if not running:
            assert proposals.is_finished
            return started
        trial = running.pop(order.randrange(len(running)))
        proposals.record_value(trial.key, value(trial))


def cells_of(plan, order=0, slots=4, value=value_of):
    """Return the cells that a search proposes, in their order."""
    cells = []
    run(Proposals(plan, trial_values={}, record=cells_into(cells)), random.Random(order), slots, value=value)
    return cells


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_a_grid_gives_each_cell_once_per_seed(slots):
    plan = plan_of(RHO, MARGIN)
    started = run(Proposals(plan, trial_values={}), random.Random(0), slots)
    assert len(started) == len({(trial.cell.label, trial.seed) for trial in started}) == 7 * 3
    assert len({trial.key for trial in started}) == 21
    assert slots > 1 or [trial.seed for trial in started] == [0] * 7 + [1] * 7 + [2] * 7


def test_known_trials_are_not_run_again():
    plan = plan_of(RHO)
    done = plan.trials()[:5]
    started = run(Proposals(plan, trial_values={trial.key: 1.0 for trial in done}), random.Random(0))
    assert {trial.key for trial in started} == {trial.key for trial in plan.trials()[5:]}


@pytest.mark.parametrize("method", ["tpe", "random", "gp", "qmc", "cmaes", "nsga2"])
def test_a_search_proposes_its_budget_whatever_the_order_and_the_number_of_slots(method):
    plan = plan_of(LR, RHO, search=Search(method, 14, window=4))
    one, other, third = ([c.label for c in cells_of(plan, *given)] for given in [(0, 1), (1, 4), (2, 12)])
    assert one == other == third
    assert len(set(one)) == 14


def above_a_rate_it_diverges(trial):
    return math.inf if trial.cell.settings["optim.lr"] > 1e-2 else value_of(trial)


def assert_an_interruption_changes_nothing(plan, *places):
    """Interrupted after so many trials and rebuilt, a search proposes the same cells, and no trial twice."""
    whole = cells_of(plan, value=above_a_rate_it_diverges)
    for until in places:
        first = []
        before = Proposals(plan, trial_values={}, record=cells_into(first))
        run(before, random.Random(3), until=until, value=above_a_rate_it_diverges)
        known = dict(before.trial_values)
        after = Proposals(plan, trial_values=known, proposed=list(first), record=cells_into(first))
        started = run(after, random.Random(4), value=above_a_rate_it_diverges)
        assert [cell.label for cell in first] == [cell.label for cell in whole]
        assert not {trial.key for trial in started} & set(known)


@pytest.mark.parametrize("method", ["tpe", "gp", "qmc", "cmaes", "nsga2"])
@pytest.mark.parametrize("repeats", [False, True])
def test_an_interrupted_search_proposes_the_same_cells(method, repeats):
    """Also where a listed knob makes a search propose known cells."""
    knobs = (RHO, MARGIN) if repeats else (LR,)
    assert_an_interruption_changes_nothing(plan_of(*knobs, search=Search(method, 6 if repeats else 14, window=4)), 20)


def test_an_interrupted_search_over_arms_proposes_the_same_cells():
    assert_an_interruption_changes_nothing(two_arms("tpe"), 9)
    started = run(Proposals(two_arms("tpe"), trial_values={}), random.Random(0))
    assert [trial.cell.label for trial in started].count("plain") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("method", "cells"), [("tpe", 30), ("gp", 24)])
def test_a_search_leaves_the_half_of_a_range_where_training_diverges(method, cells):
    """Mean share of diverging cells after the first draws; 0.6 if they were reported as failures."""
    shares = []
    for seed in range(6 if method == "tpe" else 2):
        proposed = []
        plan = plan_of(LR, search=Search(method, cells, window=4, seed=seed), seeds=1, baseline=False)
        proposals = Proposals(plan, trial_values={}, record=cells_into(proposed))
        while (trial := proposals.next_trial()) is not None:
            rate = trial.cell.settings["optim.lr"]
            proposals.record_value(trial.key, math.inf if rate > 10**-2.5 else 60 - (math.log10(rate) + 3) ** 2)
        later = proposed[14:]
        shares.append(mean(cell.settings["optim.lr"] > 10**-2.5 for cell in later))
    assert mean(shares) < 0.3, shares


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_diverged_cells_stay_worse_than_all_others(goal):
    space = space_of(LR, fixed={"loss.name": "triplet"}, goal=goal)
    plan = toys.plan_of(space=space, overrides=SIZES, seeds=1, search=Search("random", 12, window=1))
    proposals = Proposals(plan, trial_values={})
    values = iter([math.inf, math.inf, 60.0, math.inf, 10.0, 90.0, math.nan, 50.0, math.inf, 5.0, 95.0, 1.0])
    told = []
    while (trial := proposals.next_trial()) is not None:
        told.append(next(values))
        proposals.record_value(trial.key, told[-1])
    trials = proposals.study.trials
    assert [trial.number for trial in trials] == list(range(12))
    states = Counter(trial.state.name for trial in trials[:11])
    assert states == {"COMPLETE": 10, "FAIL": 1}
    finite = {n: value for n, value in enumerate(told[:11]) if math.isfinite(value)}
    assert {n: trials[n].value for n in finite} == finite
    penalties = {trials[n].value for n, value in enumerate(told[:11]) if math.isinf(value)}
    assert penalties == {5.0 - 9.0 if goal == "maximize" else 95.0 + 9.0}


TIED = (100 / 3, 200 / 3, 100 / 7)


@pytest.mark.parametrize("method", ["gp", "tpe"])
def test_the_order_of_the_seeds_of_tied_cells_decides_nothing(method):
    """Rounding made a diverged cell equal to the others, and its neighbourhood was searched."""
    plan = plan_of(LR, search=Search(method, 14, window=1), baseline=False)

    def proposed(turns):
        place = {}

        def value(trial):
            number = place.setdefault(trial.cell.digest, len(place))
            return math.inf if trial.cell.settings["optim.lr"] > 1e-2 else TIED[(trial.seed + number * turns) % 3]

        return [cell.knobs["optim.lr"] for cell in cells_of(plan, slots=1, value=value)]

    rates = [proposed(turns) for turns in (1, 2)]
    assert rates[0] == rates[1]
    assert max(rates[0][-4:]) < 1e-2


def test_low_discrepancy_points_fill_the_space_evenly():
    """Of 16 points of a shifted Sobol sequence every eighth of every knob has two; 16 random draws miss some."""
    dim = Knob("model.embedding_dim", Range(1, 64, integer=True))
    plan = plan_of(LR, dim, MARGIN, search=Search("qmc", 16, window=4), seeds=1, baseline=False)
    cells = cells_of(plan, value=lambda trial: 1.0)
    rates = Counter(int(8 * (math.log10(cell.knobs["optim.lr"]) + 4) / 3) for cell in cells)
    sizes = Counter((cell.knobs["model.embedding_dim"] - 1) // 8 for cell in cells)
    assert len(rates) == len(sizes) == 8
    assert set(rates.values()) == {2}
    assert Counter(cell.knobs["loss.margin"] for cell in cells) == {0.1: 8, 0.2: 8}


@pytest.mark.slow
@pytest.mark.learning
def test_tpe_finds_better_cells_than_random_search():
    """The median distance of a proposed rate from the best, in decades, as a mean over three searches: 0.34 against 0.81."""
    misses = {}
    for method in ("tpe", "random"):
        medians = []
        for seed in range(3):
            plan = plan_of(LR, search=Search(method, 30, window=4, seed=seed), seeds=1, baseline=False)
            later = cells_of(plan, slots=1)[10:]
            medians.append(median(abs(math.log10(cell.settings["optim.lr"]) + 2.5) for cell in later))
        misses[method] = mean(medians)
    assert misses["tpe"] < 0.7 * misses["random"], misses


def test_a_failed_seed_fails_the_cell_and_never_poisons_the_study():
    plan = plan_of(LR, search=Search("tpe", 12, window=4), seeds=2, baseline=False)
    proposals = Proposals(plan, trial_values={})
    number = 0
    while (trial := proposals.next_trial()) is not None:
        proposals.record_value(trial.key, math.nan if number % 3 == 0 else value_of(trial))
        number += 1
    assert proposals.is_finished
    states = Counter(trial.state.name for trial in proposals.study.trials)
    assert states["FAIL"] >= 3
    assert all(math.isfinite(trial.value) for trial in proposals.study.trials if trial.state.name == "COMPLETE")


def test_an_exhausted_space_ends_the_search_with_a_note():
    notes = []
    plan = plan_of(RHO, search=Search("tpe", 20, window=4), seeds=1)
    cells = []
    run(Proposals(plan, trial_values={}, record=cells_into(cells), on_note=notes.append), random.Random(0), slots=1)
    assert len(cells) == 3
    assert "no further cells" in notes[0]


def test_ranges_of_integers_and_categories_are_searched():
    dimension = Knob("model.embedding_dim", Range(4, 64, integer=True, scale="log"))
    plan = plan_of(dimension, NAME, search=Search("random", 6, window=4), seeds=1)
    cells = cells_of(plan, slots=1)
    assert all(isinstance(cell.knobs["model.embedding_dim"], int) for cell in cells)
    assert {cell.knobs["optim.name"] for cell in cells} == {"adamw", "sgd"}


ARMS = {"triplet": 60.0, "topk": 40.0, "plain": 0.0}


def two_arms(method, cells=14):
    """One arm with a margin, one with a number of pairs; both have a learning rate, and a third has no knob."""
    triplet = Arm("triplet", {"loss.name": "triplet"}, own_knobs=(MARGIN,))
    topk = Arm("topk", {"loss.name": "dro_topk"}, own_knobs=(Knob("loss.k", Range(1, 30, integer=True)),))
    space = space_of(LR, arms=(triplet, topk, Arm("plain", {"loss.name": "margin_all"}, knobs=())))
    return toys.plan_of(space=space, overrides=SIZES, seeds=1, search=Search(method, cells, window=4))


@pytest.mark.parametrize("method", ["tpe", "random", "gp", "qmc", "cmaes", "nsga2"])
def test_a_search_over_arms_proposes_knobs_of_each_arm_and_is_reproducible(method):
    cells, others = (cells_of(two_arms(method), *given) for given in [(0, 1), (1, 4)])
    assert [cell.label for cell in cells] == [cell.label for cell in others]
    assert len({cell.label for cell in cells}) == 14
    assert {cell.arm for cell in cells} == {"triplet", "topk"}
    for cell in cells:
        assert set(cell.knobs) == {"optim.lr", "loss.margin" if cell.arm == "triplet" else "loss.k"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cmaes", "nsga2"])
def test_generations_are_the_same_after_an_interruption_at_any_place(method):
    """Three generations and more."""
    plan = plan_of(LR, MARGIN, search=Search(method, 36, window=4), seeds=1)
    assert_an_interruption_changes_nothing(plan, 9, 21, 30)


def searched_rates(method, seed):
    """Return log10 lr of 60 cells, where -3 is best."""
    margin = Knob("loss.margin", Range(0.05, 0.5))
    plan = plan_of(LR, margin, search=Search(method, 60, window=4, seed=seed), seeds=1)
    cells = cells_of(plan, 0, 1, lambda trial: -abs(math.log10(trial.cell.settings["optim.lr"]) + 3))
    return [round(math.log10(cell.settings["optim.lr"]), 9) for cell in cells]


@pytest.mark.slow
def test_an_evolutionary_search_approaches_the_best_value():
    """The mean distance to the best rate, the last 12 of 60 cells against the first, over three searches."""
    away = [[abs(rate + 3) for rate in searched_rates("cmaes", seed)] for seed in range(3)]
    assert mean(mean(one[-12:]) for one in away) < 0.6 * mean(mean(one[:12]) for one in away)


def test_later_generations_have_the_rates_of_earlier_ones():
    rates = searched_rates("nsga2", 0)
    assert len(set(rates[:12])) == 12
    inherited = [rate in rates[:index] for index, rate in enumerate(rates)]
    assert mean(inherited[20:]) > 0.25


@pytest.mark.slow
def test_a_search_over_arms_prefers_the_better_one():
    """The share of the better arm among the later of 40 proposals, as a mean over three searches: 0.9."""
    shares = []
    for seed in range(3):
        plan = replace(two_arms("tpe"), search=Search("tpe", 40, window=4, seed=seed))
        later = cells_of(plan, value=lambda trial: ARMS[trial.cell.arm])[20:]
        shares.append(mean(cell.arm == "triplet" for cell in later))
    assert mean(shares) > 0.6, shares


@pytest.mark.parametrize("arms", [False, True], ids=["one arm", "several"])
def test_points_and_coordinates_convert_both_ways(arms):
    points = Points.of_plan(two_arms("gp") if arms else plan_of(LR, MARGIN, NAME, search=Search("gp", 4)))
    for place in np.random.default_rng(0).random((50, points.dimensions)).tolist():
        point = points.point_at(place)
        again = points.point_at(points.coordinates(point))
        assert again == pytest.approx(point)
        here, there = points.columns(np.array([place, points.coordinates(point)]))
        assert here == pytest.approx(there)


def test_columns_cover_the_knobs_of_all_arms():
    points = Points.of_plan(two_arms("gp"))
    first, second = {_ARM: "triplet", "optim.lr": 1e-2, "triplet: loss.margin": 0.2}, {_ARM: "topk", "optim.lr": 1e-3}
    second["topk: loss.k"] = 30
    columns = points.columns(np.array([points.coordinates(first), points.coordinates(second)]))
    assert columns == pytest.approx(np.array([[1, 0, 2 / 3, 0.75, 0.5], [0, 1, 1 / 3, 0.5, 59 / 60]]))


def test_the_noise_of_a_mean_excludes_seed_effects():
    rng = np.random.default_rng(0)
    numbers = 100 * rng.normal(size=3) + 50 * rng.normal(size=(4000, 1)) + 2 * rng.normal(size=(4000, 3))
    assert _noise(numbers).mean() == pytest.approx(4 / 3, rel=0.05)
    numbers[:2000] += 6 * rng.normal(size=(2000, 3))
    loud, quiet = _noise(numbers)[:2000].mean(), _noise(numbers)[2000:].mean()
    assert loud == pytest.approx((40 + 22) / 2 / 3, rel=0.05)
    assert quiet == pytest.approx((4 + 22) / 2 / 3, rel=0.05)
    assert (_noise(numbers[:, :1]) == 0).all()


def test_a_noisy_cell_has_less_weight():
    """Two equally good means: the next point is near the more certain one."""
    points, told = Points.of_plan(plan_of(LR, search=Search("gp", 4))), np.linspace(0.05, 0.95, 10)[:, None]
    numbers = np.tile([-0.1, 0.0, 0.1], (10, 1))
    for best, other in ((2, 7), (7, 2)):
        values = numbers + 3.0 * np.isin(np.arange(10), (best, other))[:, None]
        values[other] += [-9, 0, 9]
        found = GaussianSearch(points).propose(told, values, np.empty((0, 1)), 0)
        assert abs(found[0] - told[best, 0]) < abs(found[0] - told[other, 0])


def test_pending_points_are_kept_away_from():
    points, told = Points.of_plan(plan_of(LR, search=Search("gp", 4))), np.linspace(0.05, 0.95, 8)[:, None]
    values = -10 * (told - 0.62) ** 2 + [-0.01, 0.0, 0.01]
    alone = GaussianSearch(points).propose(told, values, np.empty((0, 1)), 1)
    beside = GaussianSearch(points).propose(told, values, np.array([alone]), 1)
    assert abs(alone[0] - 0.62) < 0.1
    assert beside != alone


def test_the_kernel_is_fitted_as_the_cells_grow_by_a_quarter():
    sizes = sorted({_fitted_cells(told) for told in range(MIN_CELLS, 40)})
    assert sizes == [5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33]
    assert all(_fitted_cells(told) <= told for told in range(MIN_CELLS, 40))


def test_of_many_cells_the_better_ones_and_an_even_sample_are_kept():
    values = np.random.default_rng(0).permutation(1000).astype(float)
    kept = _select_cells(values, 300)
    assert len(set(kept.tolist())) == 300
    assert set(values[kept]) >= set(range(850, 1000))
    assert len(_select_cells(values[:300], 300)) == 300
