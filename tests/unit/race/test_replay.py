"""Races replayed from their tables, look by look, with diverged and failed cells."""

from dataclasses import fields, replace

import numpy as np
import pytest
from helpers.tables import table_of

from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.sequential.racing import MAX_FAILURES, Outcomes, RaceState, judge_race, next_look, replay
from tune_dml.stats.verdicts.best import judge_best
from tune_dml.stats.verdicts.sensitivity import compare_all_with, judge_sensitivity

JUDGED = [(3, 0.01), (5, 0.01), (8, 0.01)]
EVERY = np.ones(4, dtype=bool)


def table(*means, seeds=8, sd=0.3):
    random = np.random.default_rng(0)
    return np.array(means)[:, None] + random.normal(size=seeds) + sd * random.normal(size=(len(means), seeds))


def trials(values, diverged=(), failed=()):
    """Return the outcomes of a table, without numbers for each (cell, seed) in `diverged` and `failed`."""
    marks = np.zeros((2, *values.shape), dtype=bool)
    for mark, named in zip(marks, (diverged, failed), strict=True):
        for cell, seed in named:
            mark[cell, seed] = True
    return Outcomes(np.where(marks.any(0), np.nan, values), marks[0], marks[1])


def test_a_replay_repeats_every_look_in_order_and_needs_one():
    values = table(60.0, 62.0, 62.6, 55.0)
    values[3, 3:] = np.nan  # it had stopped
    found = replay(trials(values), 1.0, JUDGED, compared=EVERY)
    race = None
    for seeds, level in JUDGED:
        assert race is None or not race.decided
        race = judge_race(values[:, :seeds], 1.0, level, race)
    assert not found.diverged.any()
    assert not found.failed.any()
    for name in ("low", "high", "leader", "worse", "tied", "matters"):
        np.testing.assert_array_equal(getattr(found, name), getattr(race, name))
    with pytest.raises(ValueError, match="at least one look"):
        replay(trials(table(1.0, 2.0)), 1.0, [], compared=np.ones(2, dtype=bool))


@pytest.mark.parametrize(("lead", "leader"), [(0.09, 0), (0.11, 1)])
def test_a_leader_is_overtaken_by_a_tenth_of_the_margin(lead, leader):
    values = table(0.0, 0.0, seeds=3)
    values += np.array([[60.0], [60.0 + 2 * lead]]) - values.mean(1, keepdims=True)
    first = judge_race(values, 2.0, 1e-6)
    assert first.leader == 1
    before = replace(first, leader=np.asarray(0), tied=first.tied[::-1])
    assert judge_race(values, 2.0, 1e-6, before).leader == leader


def test_a_baseline_leads_only_once_the_knob_is_known_to_matter():
    knob = np.array([False, True, True])
    flat, steep = (judge_race(table(70.0, 60.0, other), 1.0, 0.01, compared=knob) for other in (60.2, 65.0))
    assert (bool(flat.matters), flat.leader in (1, 2)) == (False, True)
    assert (bool(steep.matters), int(steep.leader)) == (True, 0)


@pytest.mark.parametrize(
    ("diverged", "failed", "leaves"),
    [([5, 6, 7], [], True), ([5], [6, 7], True), ([], [5, 6, 7], False)],
    ids=["diverged", "partly failed", "failed"],
)
def test_cells_without_results_stay_and_diverged_cells_leave_the_race(diverged, failed, leaves):
    values = table(55.0, 62.0, 62.6, 62.3)
    values[0, 3:] = np.nan
    lost = ([(3, seed) for seed in seeds] for seeds in (diverged, failed))
    found = replay(trials(values, *lost), 1.0, JUDGED, compared=EVERY)
    assert found.diverged.tolist() == [False, False, False, leaves]
    assert not found.failed.any()
    assert found.leader in (1, 2)


def test_a_value_that_always_fails_stops_unsettled_unless_it_was_settled_before():
    values = table(62.0, 62.0, 62.0, 62.0, seeds=3 + MAX_FAILURES, sd=0.1)
    values[:2, 3:] = np.nan  # as if they had stopped
    lost = [(3, seed) for seed in range(3, 3 + MAX_FAILURES)]
    before = replay(trials(values, [], lost[:-1]), 1.0, [(3, 1e-9), (3 + MAX_FAILURES, 1e-9)], compared=EVERY)
    assert not before.failed.any()
    found = replay(trials(values, [], lost), 1.0, [(3, 1e-9), (3 + MAX_FAILURES, 0.01)], compared=EVERY)
    assert found.failed.tolist() == [False, False, False, True]
    assert not found.settled[3]
    assert not found.runs[3]
    assert not found.decided
    assert not found.of(range(4), 1.0).flat
    assert not found.of(range(4), 1.0).tied.any()
    values = table(62.0, 62.0, 62.0, 55.0, seeds=3 + MAX_FAILURES, sd=0.1)
    found = replay(trials(values, [], lost), 1.0, [(3, 0.01), (3 + MAX_FAILURES, 0.01)], compared=EVERY)
    assert found.worse[3]
    assert found.decided


@pytest.mark.parametrize("other", ["worse", "diverged"])
def test_a_leader_that_failed_is_settled_if_no_other_cell_can_still_tie_with_it(other):
    nothing, first, second = np.zeros(2, bool), np.array([True, False]), np.array([False, True])
    square = np.zeros((2, 2))
    masks = {"worse": nothing, "diverged": nothing, other: second}
    race = RaceState(
        square, square, square, np.array(0), masks["worse"], first, np.array(False), masks["diverged"], first
    )
    assert race.settled.all()
    assert not replace(race, **{other: nothing}).settled.any()


def test_if_every_trial_fails_nothing_is_settled():
    values = np.full((4, MAX_FAILURES), np.nan)
    every = [(cell, seed) for cell in range(4) for seed in range(MAX_FAILURES)]
    found = replay(trials(values, [], every), 1.0, [(3, 0.01), (MAX_FAILURES, 0.01)], compared=EVERY)
    assert found.ended
    assert not found.settled.any()
    assert not found.of(range(4), 1.0).flat


def test_a_baseline_far_off_does_not_make_the_knob_matter():
    values = table(20.0, 62.0, 62.1, 62.0, sd=0.1)
    with_it = replay(trials(values), 1.0, JUDGED, compared=EVERY)
    without = replay(trials(values), 1.0, JUDGED, compared=np.arange(4) > 0)
    assert with_it.matters
    assert not without.matters
    assert without.worse.tolist() == [True, False, False, False]
    assert without.tied.tolist() == [False, True, True, True]


def test_looks_after_the_decision_change_nothing():
    values = table(60.0, 62.0, 50.0, 55.0, sd=0.1)
    at_once = replay(trials(values[:, :3]), 1.0, JUDGED[:1], compared=EVERY)
    found = replay(trials(values), 1.0, JUDGED, compared=EVERY)
    assert at_once.decided
    assert (found.leader, found.decided) == (1, True)
    np.testing.assert_array_equal(found.low, at_once.low)


def test_verdicts_of_earlier_looks_are_kept():
    values = table(60.0, 62.0, 62.1, 55.0, seeds=4)
    race = replay(trials(values), 1.0, [(3, 0.04), (4, 1e-9)], compared=EVERY)
    found = race.of([0, 1, 2, 3], 1.0)
    knob, level = [0.1, 0.2, 0.3, 0.4], 1e-9
    alone = judge_sensitivity(table_of(values), 1.0, alpha=level)
    together = judge_sensitivity(table_of(values), 1.0, alpha=level, raced=found)
    assert (alone.verdict, together.verdict) == ("undecided", "sensitive")
    assert judge_best(values, knob, 1.0, alpha=level).candidates == (0, 1, 2, 3)
    assert judge_best(values, knob, 1.0, alpha=level, raced=found).candidates == (1, 2)
    worst = compare_all_with(table_of(values), "c1", alpha=level, raced=found)[-1]
    assert worst.first == "c3"
    assert worst.high < 0
    assert (-race.of([0, 3], 1.0, sign=-1.0).high == found.low[np.ix_([0, 3], [0, 3])]).all()


def test_a_race_that_ended_in_a_tie_reports_that_the_knob_does_not_matter():
    values = table(62.0, 62.0, 62.0, 62.0, seeds=12, sd=0.1)
    race = replay(trials(values), 1.0, [(12, 0.04)], compared=EVERY)
    found = race.of([0, 1, 2, 3], 1.0)
    assert found.flat
    assert judge_sensitivity(table_of(values), 1.0, alpha=1e-12, raced=found).verdict == "insensitive"
    assert judge_sensitivity(table_of(values), 0.01, alpha=1e-12, raced=found).verdict == "undecided"


def test_running_cells_share_a_look_and_stopped_cells_keep_their_verdict():
    values = table(61.4, 62.0, 62.3, 50.0, 50.1, sd=1.0)
    first = judge_race(values[:, :5], 1.0, 0.02)
    running = np.array([True, True, True, False, False])
    assert first.runs.tolist() == running.tolist()
    second = judge_race(values, 1.0, 0.01, first)
    for name in ("low", "high", "ahead"):
        assert (getattr(second, name)[3:] == getattr(first, name)[3:]).all()
    shared = all_pairs(values, 0.01, among=running)
    np.testing.assert_array_equal(second.low[:3, :3], np.maximum(first.low, shared.low)[:3, :3])
    reach, of_all = (one.estimate - one.low for one in (shared, all_pairs(values, 0.01)))
    assert (reach[:3, :3] <= of_all[:3, :3]).all()
    assert np.isinf(reach[3, :3]).all()


def test_tied_cells_keep_their_share_until_the_knob_matters():
    """So "does not matter" is wrong in at most 5 % of races over values that differ by 1.02 margins (else 7 %)."""
    random = np.random.default_rng(1)
    means = np.linspace(0, 1.02, 6)
    values = means[:, None] + 0.5 * random.normal(size=(400, 6, 60))
    wrong, race, seeds, going = 0, None, 0, np.arange(400)
    while len(going) and seeds < 60:
        before, seeds = seeds, min(60, next_look(seeds))
        race = judge_race(values[going, :, :seeds], 1.0, 0.04 * (seeds - before) / 60, race)
        wrong += int((race.decided & ~race.matters).sum())
        kept, going = ~race.decided, going[~race.decided]
        stopped = ~race.runs[kept]
        values[going, :, seeds:] = np.where(stopped[..., None], np.nan, values[going, :, seeds:])
        race = RaceState(*(getattr(race, field.name)[kept] for field in fields(race)))
    assert wrong / 400 <= 0.06
