"""Budgets and hung trials, by a clock of our own."""

import os

from trainables.context import ALIVE
from tune_dml.record.ledger import trial_folder
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


def test_a_trial_without_a_step_for_too_long_is_stalled_once(tmp_path):
    clock = Clock()
    watch = Watch(tmp_path, limit=100.0, clock=clock)
    for key in ("marks", "reports", "hangs", "starts"):
        trial_folder(tmp_path, key).mkdir(parents=True)
        watch.begin(key)
        if key != "starts":
            watch.step(key)
    clock.now = 90.0
    watch.step("reports")
    clock.now = 150.0
    mark = trial_folder(tmp_path, "marks") / ALIVE
    mark.touch()
    assert watch.stalled() == ["hangs"]
    watch.end("hangs")
    clock.now = 245.0
    os.utime(mark, (1.0, 1.0))  # whatever the file system's clock says: it has changed
    watch.step("reports")
    assert watch.stalled() == []
    clock.now = 360.0
    assert watch.stalled() == ["marks", "reports"]
    clock.now = 601.0
    assert watch.stalled() == ["marks", "reports", "starts"]
    assert Watch(tmp_path, clock=clock).stalled() == []


def test_a_process_that_does_not_take_the_next_trial_is_stalled(tmp_path):
    clock = Clock()
    watch = Watch(tmp_path, limit=100.0, clock=clock)
    watch.await_answer("a", new=False)
    watch.await_answer("new", new=True)
    clock.now = 101.0
    assert watch.stalled() == ["a"]
    clock.now = 601.0
    assert watch.stalled() == ["a", "new"]
    watch.end("new")
    clock.now = 700.0
    watch.begin("a")
    clock.now = 1000.0
    assert watch.stalled() == []


def test_the_file_system_is_not_asked_at_every_event(tmp_path):
    clock = Clock()
    watch = Watch(tmp_path, limit=80.0, clock=clock)
    watch.step("a")
    clock.now = 200.0
    assert watch.stalled() == ["a"]
    clock.now = 205.0
    assert watch.stalled() == []
