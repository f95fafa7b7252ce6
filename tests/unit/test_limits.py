"""Budgets and hung trials, by a clock of our own."""

import pytest

from tune_dml.running.failures import stalled
from tune_dml.running.limits import BudgetStopper, StallDetector


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def stalled(self, watch, until):
        """Whom rounds of a second each name meanwhile, and why."""
        named = {}
        while self.now < until:
            self.now += 1.0
            named |= watch.stalled()
        return named


def test_spending_counts_trials_that_ran_and_those_that_run():
    clock = Clock()
    spending = BudgetStopper(share=2.0, limit=1.0, clock=clock)
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
    assert not BudgetStopper(share=2.0).stop_all()


def test_a_trial_that_says_nothing_for_too_long_is_stalled():
    clock = Clock()
    watch = StallDetector(limit=100.0, clock=clock)
    for key in ("speaks", "hangs", "starts"):
        watch.begin(key)
        if key != "starts":
            watch.step(key)
    assert not clock.stalled(watch, until=90.0)
    watch.step("speaks")
    assert clock.stalled(watch, until=150.0) == {"hangs": stalled(100.0)}
    watch.end("hangs")
    assert not clock.stalled(watch, until=189.0)
    assert clock.stalled(watch, until=360.0) == {"speaks": stalled(100.0)}
    watch.end("speaks")
    assert not clock.stalled(watch, until=600.0)
    assert clock.stalled(watch, until=611.0) == {"starts": stalled(600.0, before_first=True)}
    assert not clock.stalled(StallDetector(clock=clock), until=700.0)


@pytest.mark.parametrize("limit", [None, 300.0])
def test_a_start_has_a_limit_of_its_own_where_one_is_given(limit):
    """A module that hangs while it is imported, before there is a step to count from."""
    clock = Clock()
    watch = StallDetector(limit, start_limit=30.0, clock=clock)
    watch.begin("hangs")
    watch.begin("trains")
    watch.step("trains")
    watch.await_answer("is created", new=True)
    assert not clock.stalled(watch, until=29.0)
    told = clock.stalled(watch, until=200.0)
    assert told == dict.fromkeys(("hangs", "is created"), stalled(30.0, before_first=True))
    assert told["hangs"].reason == "stalled: no first step for 30 s"
    assert ("trains" in clock.stalled(watch, until=311.0)) == (limit is not None)


def test_a_driver_that_stood_still_blames_no_trial_for_it():
    clock = Clock()
    watch = StallDetector(limit=10.0, clock=clock)
    watch.begin("speaks")
    watch.step("speaks")
    watch.step("hangs")
    assert not watch.stalled()
    clock.now = 40.0  # stopped, or waiting for its storage; the trials went on
    assert not watch.stalled()
    while clock.now < 52.0:
        clock.now += 1.0
        watch.step("speaks")
        if hung := watch.stalled():
            break
    assert list(hung) == ["hangs"]
    assert clock.now >= 48.0
    watch.end("hangs")
    for _ in range(10):  # rounds that all take long do not hide a trial that hangs
        clock.now += 5.0
        if hung := watch.stalled():
            break
    assert list(hung) == ["speaks"]


def test_a_process_that_does_not_take_the_next_trial_is_stalled():
    clock = Clock()
    watch = StallDetector(limit=100.0, clock=clock)
    watch.await_answer("a", new=False)
    watch.await_answer("new", new=True)
    assert set(clock.stalled(watch, until=111.0)) == {"a"}
    assert set(clock.stalled(watch, until=611.0)) == {"a", "new"}
    watch.end("new")
    clock.now = 700.0
    watch.begin("a")
    clock.now = 1000.0
    assert watch.stalled() == {}


def test_it_does_not_look_at_every_event():
    clock = Clock()
    watch = StallDetector(limit=80.0, clock=clock)
    watch.step("a")
    clock.now = 200.0
    assert list(watch.stalled()) == ["a"]
    clock.now = 205.0
    assert watch.stalled() == {}
