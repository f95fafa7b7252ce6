"""Early stopping, budgets and hanging trials: decisions against naive oracles, with a fake clock."""

import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers import toys
from helpers.costly import slow_after
from helpers.toys import space_of

from tune_dml.planning.rules import stopping_problems
from tune_dml.planning.stopping import bracket_of
from tune_dml.planning.study import Search
from tune_dml.running.failures import stall_failure
from tune_dml.running.search.stopping import StoppingProposals
from tune_dml.running.trials.limits import BudgetStopper, StallDetector
from tune_dml.space import Baseline, Grid, Knob, LogRange

STEPS = {"training.steps": 90, "training.eval_every": 10, "batch.batch_size": 9, "batch.instances_per_class": 3}
LR = Knob("optim.lr", LogRange(1e-4, 1e-1))
MARGINS = Knob("loss.margin", Grid(tuple(round(0.05 * place, 2) for place in range(1, 12))))


def plan_of(knob, method="grid", samples=0, stopping="asha", seeds=3):
    search = Search(method, samples, window=4, stopping=stopping)
    space = space_of(knob, fixed={"loss.name": "triplet"}, baseline=Baseline("off", {"loss.name": "npair"}))
    return toys.plan_of(space=space, overrides=STEPS, seeds=seeds, search=search)


def value_at(trial, step):
    """Return a noisy, growing value; some cells improve late."""
    noise = random.Random(f"{trial.key} {step}").gauss(0, 1)
    merit = -((math.log10(trial.cell.settings.get("optim.lr", 1)) + 2.5) ** 2) if "optim.lr" in trial.cell.knobs else 0
    return 10 * step / 90 + merit + noise + trial.seed


class Sweep:
    """A sweep without training: `value_at` gives the metrics of its trials until they are set to fail."""

    def __init__(self, plan, broken=None):
        self.plan, self.broken = plan, broken or {}
        self.rows, self.known, self.stopped, self.cells = {}, {}, {}, []
        self.begun = Counter()

    def proposals(self):
        return StoppingProposals(
            self.plan,
            trial_values=self.known,
            stopped=self.stopped,
            values=lambda key: dict(self.rows.get(key, {})),
            on_stop=self.stop,
            proposed=list(self.cells),
            record=lambda event: self.cells.append(event.cell),
        )

    def stop(self, key, end):
        assert end.status == "stopped"
        self.known[key], self.stopped[key] = end.at_rung, end.step

    def run(self, order, slots=4, end_after=None):
        """Run `slots` trials at a time, reporting in `order`; stop after a number of started trials."""
        proposals, running = self.proposals(), []
        while True:
            while len(running) < slots and (trial := proposals.next_trial()) is not None:
                self.begun[trial.key] += 1
                running.append((trial, proposals.until(trial)))
                if end_after is not None and sum(self.begun.values()) >= end_after:
                    return proposals
            if not running:
                assert proposals.is_finished
                return proposals
            trial, until = running.pop(order.randrange(len(running)))
            reached = range(10, (until or 90) + 1, 10)
            breaks = self.broken.get((trial.cell.label, trial.seed))
            whole = [step for step in reached if breaks is None or step < breaks[0]]
            self.rows[trial.key] = {step: value_at(trial, step) for step in whole}
            if breaks is not None and breaks[0] <= reached[-1]:
                self.known[trial.key] = breaks[1]
                proposals.record_value(trial.key, breaks[1])
            elif until is None:
                self.known[trial.key] = value_at(trial, 90)
                proposals.record_value(trial.key, value_at(trial, 90))
            else:
                proposals.record_pause(trial.key)

    def outcome(self):
        """Label and seed -> the step it was stopped at, or its value."""
        cells = [*self.plan.cells, *self.cells]
        trials = [self.plan.trial(cell, seed) for cell in cells for seed in self.plan.seeds]
        return {(t.cell.label, t.seed): (self.stopped.get(t.key), self.known.get(t.key)) for t in trials}


def ran(plan, broken=None, order=0, slots=4):
    """Return a sweep that has ended."""
    sweep = Sweep(plan, broken)
    assert sweep.run(random.Random(order), slots).is_finished
    return sweep


def oracle(plan, cells):
    """Digest -> the step at which the cell stops (None if it finishes), by the rule on a grid with one bracket."""
    there, stops = list(cells), {}
    for step in (10, 30):
        means = {c.digest: np.mean([value_at(plan.trial(c, seed), step) for seed in plan.seeds]) for c in there}
        best = sorted(there, key=lambda cell: -means[cell.digest])[: math.ceil(len(there) / 3)]
        stops |= {cell.digest: step for cell in there if cell not in best}
        there = best
    return stops


@pytest.mark.parametrize(
    ("steps", "every", "words"),
    [
        (9, 1, ""),
        (8, 1, "needs 9 steps; they have 8"),
        (40, 4, ""),
        (40, 5, "must be at most 4"),
        (17, 2, "must be at most 1"),
    ],
)
def test_training_must_be_long_enough_for_an_evaluation_at_a_ninth(steps, every, words):
    arm = plan_of(Knob("optim.lr", Grid((0.1, 0.2))), stopping=None).arms[-1]
    lengths = {"training.steps": steps, "training.eval_every": every}
    said = "".join(map(str, stopping_problems("asha", [replace(arm, base_settings={**arm.base_settings, **lengths})])))
    assert words in said
    assert bool(words) == bool(said)


def test_brackets_of_hyperband_take_nine_five_and_three_cells_of_seventeen():
    for first in (0, 3, 17):
        assert Counter(bracket_of("hyperband", number) for number in range(first, first + 17)) == {0: 9, 1: 5, 2: 3}
    assert {bracket_of("asha", number) for number in range(40)} == {0}


@pytest.mark.parametrize(("order", "slots"), [(0, 1), (1, 4), (2, 40)])
def test_a_grid_stops_the_same_cells_in_any_order(order, slots):
    plan = plan_of(MARGINS)
    sweep = ran(plan, order=order, slots=slots)
    searched = [cell for cell in plan.cells if not cell.baseline]
    stops = oracle(plan, searched)
    assert Counter(stops.values()) == {10: 7, 30: 2}
    for cell in plan.cells:
        assert {sweep.stopped.get(plan.trial(cell, seed).key) for seed in plan.seeds} == {stops.get(cell.digest)}
    assert max(sweep.begun.values()) == 3  # twice on from a rung
    assert sum(sweep.begun.values()) == 3 * (12 + 4 + 2)


@pytest.mark.parametrize("stopping", ["asha", "hyperband"])
@pytest.mark.parametrize("method", slow_after(3, ["grid", "tpe", "gp", "random", "qmc", "cmaes"]))
def test_neither_order_nor_interruptions_change_stops_and_proposals(method, stopping):
    plan = plan_of(MARGINS if method == "grid" else LR, method, 0 if method == "grid" else 14, stopping)
    whole = ran(plan)
    assert whole.stopped
    assert len(whole.stopped) < len(whole.known) - len(plan.seeds)
    for seed, slots in [(3, 1), (4, 12)]:
        cut = Sweep(plan)
        for more in (5, 17, 30, 44, 46):
            cut.run(random.Random(seed), slots, end_after=more)
        cut.run(random.Random(seed), slots)
        assert cut.outcome() == whole.outcome()
        done = cut.proposals()
        assert done.next_trial() is None
        assert done.is_finished


def test_a_proposed_cell_is_compared_only_with_earlier_cells():
    plan = plan_of(LR, "random", 12)
    sweep = ran(plan)
    there = []
    for cell in sweep.cells:
        there.append(cell)
        means = [np.mean([value_at(plan.trial(other, seed), 10) for seed in plan.seeds]) for other in there]
        goes_on = sum(mean > means[-1] for mean in means) < math.ceil(len(there) / 3)
        assert (sweep.stopped.get(plan.trial(cell, 0).key) != 10) == goes_on


def test_a_diverged_cell_ranks_last_and_a_lost_seed_is_a_gap():
    plan = plan_of(MARGINS)
    plain = ran(plan)
    going_on = [label for (label, _), (stopped, _) in plain.outcome().items() if stopped is None]
    finishing = next(label for label in going_on if "margin" in label)
    diverged = ran(plan, {(finishing, 1): (5, math.inf)})
    assert [diverged.outcome()[finishing, seed][0] for seed in plan.seeds] == [10, None, 10]
    lost = ran(plan, {(finishing, 1): (5, math.nan)})
    assert sum(stopped == 10 for stopped, _ in lost.outcome().values()) in {20, 21}
    assert lost.proposals().is_finished


def test_later_divergence_does_not_change_an_earlier_rung():
    plan = plan_of(LR, "random", 12)
    broken = {(ran(plan).cells[0].label, 2): (50, math.inf)}
    one, other, third = (ran(plan, broken, *given).outcome() for given in [(0, 1), (1, 4), (2, 12)])
    assert one == other == third


def test_if_all_cells_diverge_all_end():
    plan = plan_of(MARGINS)
    broken = {(cell.label, seed): (5, math.inf) for cell in plan.cells if not cell.baseline for seed in plan.seeds}
    assert ran(plan, broken).proposals().is_finished


def test_a_stop_that_was_recorded_in_part_is_completed_and_nothing_runs_again():
    sweep = ran(plan_of(MARGINS))
    before, begun = sweep.outcome(), sum(sweep.begun.values())
    key = next(iter(sweep.stopped))
    del sweep.stopped[key], sweep.known[key]
    sweep.run(random.Random(1))
    assert sweep.outcome() == before
    assert sum(sweep.begun.values()) == begun


def test_a_search_gets_the_extrapolated_value_of_a_stopped_cell():
    plan = plan_of(LR, "tpe", 10)
    sweep = Sweep(plan)
    proposals = sweep.run(random.Random(0))
    proposals._report_up_to(len(proposals.pending_cells) - 1)
    told = [trial.value for trial in proposals.study.trials]

    def mean(cell, step):
        return np.mean([value_at(plan.trial(cell, seed), step) for seed in plan.seeds])

    ends = [sweep.stopped.get(plan.trial(cell, 0).key) for cell in sweep.cells]
    for number, (cell, end) in enumerate(zip(sweep.cells, ends, strict=True)):
        if end is None:
            assert told[number] == pytest.approx(mean(cell, 90))
        else:
            finished = [other for other, how in zip(sweep.cells[:number], ends, strict=False) if how is None]
            gain = np.mean([mean(other, 90) - mean(other, end) for other in finished])
            assert told[number] == pytest.approx(mean(cell, end) + gain)
    assert {10, None} <= set(ends)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def find_stalled(self, watch, until):
        """Return the trials that checks once a second name as stalled, with the reasons."""
        named = {}
        while self.now < until:
            self.now += 1.0
            named |= watch.find_stalled()
        return named


def test_spending_counts_trials_that_ran_and_those_that_run():
    clock = Clock()
    spending = BudgetStopper(share=2.0, limit=1.0, clock=clock)
    spending.begin("a")
    clock.now = 900.0
    spending.begin("a")  # again, after a lost process: its time continues
    spending.begin("b")
    clock.now = 1200.0
    spending.end("a")
    assert spending.spent == 2 * (1200 + 300) / 3600
    assert not spending.stop_all()
    clock.now = 1500.0
    assert spending.spent == 1.0
    assert spending.stop_all()
    assert not BudgetStopper(share=2.0).stop_all()


def test_a_silent_trial_counts_as_stalled():
    clock = Clock()
    detector = StallDetector(limit=100.0, clock=clock)
    for key in ("speaks", "hangs", "starts"):
        detector.watch(key, has_stepped=False)
        if key != "starts":
            detector.watch(key, has_stepped=True)
    assert not clock.find_stalled(detector, until=90.0)
    detector.watch("speaks", has_stepped=True)
    assert clock.find_stalled(detector, until=150.0) == {"hangs": stall_failure(100.0)}
    detector.end("hangs")
    assert not clock.find_stalled(detector, until=189.0)
    assert clock.find_stalled(detector, until=360.0) == {"speaks": stall_failure(100.0)}
    detector.end("speaks")
    assert not clock.find_stalled(detector, until=600.0)
    assert clock.find_stalled(detector, until=611.0) == {"starts": stall_failure(600.0, before_first=True)}
    assert not clock.find_stalled(StallDetector(clock=clock), until=700.0)


@pytest.mark.parametrize("limit", [None, 300.0])
def test_the_start_of_a_trial_has_a_separate_limit(limit):
    """A module may hang on import, before the first step."""
    clock = Clock()
    detector = StallDetector(limit, start_limit=30.0, clock=clock)
    detector.watch("hangs", has_stepped=False)
    detector.watch("trains", has_stepped=False)
    detector.watch("trains", has_stepped=True)
    detector.watch("is created", has_stepped=False)
    assert not clock.find_stalled(detector, until=29.0)
    told = clock.find_stalled(detector, until=200.0)
    assert told == dict.fromkeys(("hangs", "is created"), stall_failure(30.0, before_first=True))
    assert told["hangs"].reason == "stalled: no first step for 30 s"
    assert ("trains" in clock.find_stalled(detector, until=311.0)) == (limit is not None)


def test_a_suspended_driver_marks_no_trial_as_stalled():
    clock = Clock()
    detector = StallDetector(limit=10.0, clock=clock)
    detector.watch("speaks", has_stepped=False)
    detector.watch("speaks", has_stepped=True)
    detector.watch("hangs", has_stepped=True)
    assert not detector.find_stalled()
    clock.now = 40.0  # suspended, or waiting for its storage; the trials continued
    assert not detector.find_stalled()
    while clock.now < 52.0:
        clock.now += 1.0
        detector.watch("speaks", has_stepped=True)
        if hung := detector.find_stalled():
            break
    assert list(hung) == ["hangs"]
    assert clock.now >= 48.0
    detector.end("hangs")
    for _ in range(10):  # rounds that all take long do not hide a trial that hangs
        clock.now += 5.0
        if hung := detector.find_stalled():
            break
    assert list(hung) == ["speaks"]


def test_a_process_that_does_not_take_the_next_trial_is_stalled():
    clock = Clock()
    detector = StallDetector(limit=100.0, clock=clock)
    detector.watch("a", has_stepped=True)
    detector.watch("new", has_stepped=False)
    assert set(clock.find_stalled(detector, until=111.0)) == {"a"}
    assert set(clock.find_stalled(detector, until=611.0)) == {"a", "new"}
    detector.end("new")
    clock.now = 700.0
    detector.watch("a", has_stepped=False)
    clock.now = 1000.0
    assert detector.find_stalled() == {}


def test_stalled_trials_are_checked_at_intervals():
    clock = Clock()
    detector = StallDetector(limit=80.0, clock=clock)
    detector.watch("a", has_stepped=True)
    clock.now = 200.0
    assert list(detector.find_stalled()) == ["a"]
    clock.now = 205.0
    assert detector.find_stalled() == {}
