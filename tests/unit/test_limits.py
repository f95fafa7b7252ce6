"""Budgets and hung trials, by a clock of our own."""

import pytest

from tune_dml.running.failures import stalled
from tune_dml.running.limits import Spending, Watch


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_spending_counts_trials_that_ran_and_those_that_run():
    clock = Clock()
    spending = Spending(share=2.0, limit=1.0, clock=clock)
    spending.begin("a")
    clock.now = 900.0
    spending.begin("a")  # again, after a lost process: its time goes on
    spending.begin("b")
    clock.now = 1200.0
    spending.end("a")
    assert spending.spent == 2 * (1200 + 300) / 3600
    assert not spending.stop_all()
    clock.now = 1500.0
    assert spending.spent == 1.0
    assert spending.stop_all()
    assert not Spending(share=2.0).stop_all()


def test_a_trial_that_says_nothing_for_too_long_is_stalled():
    clock = Clock()
    watch = Watch(limit=100.0, clock=clock)
    for key in ("speaks", "hangs", "starts"):
        watch.begin(key)
        if key != "starts":
            watch.step(key)
    clock.now = 90.0
    watch.step("speaks")
    clock.now = 150.0
    assert watch.stalled() == {"hangs": stalled(100.0)}
    watch.end("hangs")
    clock.now = 189.0
    assert watch.stalled() == {}
    clock.now = 360.0
    assert watch.stalled() == {"speaks": stalled(100.0)}
    clock.now = 601.0
    assert watch.stalled() == {"speaks": stalled(100.0), "starts": stalled(600.0, before_first=True)}
    assert Watch(clock=clock).stalled() == {}


@pytest.mark.parametrize("limit", [None, 300.0])
def test_a_start_has_a_limit_of_its_own_where_one_is_given(limit):
    """A module that hangs while it is imported, before there is a step to count from."""
    clock = Clock()
    watch = Watch(limit, start_limit=30.0, clock=clock)
    watch.begin("hangs")
    watch.begin("trains")
    watch.step("trains")
    watch.await_answer("is created", new=True)
    clock.now = 29.0
    assert watch.stalled() == {}
    clock.now = 200.0
    told = watch.stalled()
    assert told == dict.fromkeys(("hangs", "is created"), stalled(30.0, before_first=True))
    assert told["hangs"].reason == "stalled: no first step for 30 s"
    clock.now = 301.0
    assert ("trains" in watch.stalled()) == (limit is not None)


def test_a_process_that_does_not_take_the_next_trial_is_stalled():
    clock = Clock()
    watch = Watch(limit=100.0, clock=clock)
    watch.await_answer("a", new=False)
    watch.await_answer("new", new=True)
    clock.now = 101.0
    assert list(watch.stalled()) == ["a"]
    clock.now = 601.0
    assert list(watch.stalled()) == ["a", "new"]
    watch.end("new")
    clock.now = 700.0
    watch.begin("a")
    clock.now = 1000.0
    assert watch.stalled() == {}


def test_it_does_not_look_at_every_event():
    clock = Clock()
    watch = Watch(limit=80.0, clock=clock)
    watch.step("a")
    clock.now = 200.0
    assert list(watch.stalled()) == ["a"]
    clock.now = 205.0
    assert watch.stalled() == {}
