"""A race's looks once more from its table: as judged one by one, with cells that dropped out."""

import numpy as np
import pytest

from tune_dml.stats.racing import replay, standing

JUDGED = [(3, 0.01), (5, 0.01), (8, 0.01)]


def table(*means, seeds=8, sd=0.3):
    random = np.random.default_rng(0)
    return np.array(means)[:, None] + random.normal(size=seeds) + sd * random.normal(size=(len(means), seeds))


def everything(values):
    return np.ones(values.shape, dtype=bool)


def undecided():
    return table(60.0, 62.0, 62.6, 55.0)


def test_it_is_each_look_after_the_one_before():
    values = undecided()
    values[3, 3:] = np.nan  # it had stopped
    compared = np.ones(4, dtype=bool)
    found, dropped = replay(values, np.isfinite(values), 1.0, JUDGED, compared=compared)
    race = None
    for seeds, level in JUDGED:
        assert race is None or not race.decided
        race = standing(values[:, :seeds], 1.0, level, race)
    assert not dropped.any()
    for name in ("low", "high", "leader", "worse", "tied", "matters"):
        np.testing.assert_array_equal(getattr(found, name), getattr(race, name))


def test_a_cell_that_had_not_run_has_not_dropped_out_and_one_that_diverged_has():
    values = table(55.0, 62.0, 62.6, 62.3)
    values[0, 3:] = np.nan
    values[3, 5:] = np.nan
    ran = everything(values)
    ran[0, 3:] = False
    found, dropped = replay(values, ran, 1.0, JUDGED, compared=np.ones(4, dtype=bool))
    assert dropped.tolist() == [False, False, False, True]
    assert found.leader in (1, 2)


def test_a_baseline_far_off_does_not_make_the_knob_matter():
    values = table(20.0, 62.0, 62.1, 62.0, sd=0.1)
    every = np.ones(4, dtype=bool)
    with_it, _ = replay(values, everything(values), 1.0, JUDGED, compared=every)
    without, _ = replay(values, everything(values), 1.0, JUDGED, compared=np.arange(4) > 0)
    assert with_it.matters
    assert not without.matters
    assert without.worse.tolist() == [True, False, False, False]
    assert without.tied.tolist() == [False, True, True, True]


def test_looks_after_the_decision_change_nothing():
    values = table(60.0, 62.0, 50.0, 55.0, sd=0.1)
    every = np.ones(4, dtype=bool)
    at_once, _ = replay(values[:, :3], everything(values[:, :3]), 1.0, JUDGED[:1], compared=every)
    found, _ = replay(values, everything(values), 1.0, JUDGED, compared=every)
    assert at_once.decided
    assert (found.leader, found.decided) == (1, True)
    np.testing.assert_array_equal(found.low, at_once.low)


def test_a_race_without_a_look_is_refused():
    with pytest.raises(ValueError, match="at least one look"):
        replay(table(1.0, 2.0), everything(table(1.0, 2.0)), 1.0, [], compared=np.ones(2, dtype=bool))
