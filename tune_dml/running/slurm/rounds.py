"""Run a sweep's trials as SLURM arrays, round by round; this process is the ledger's only writer.

A collecting job calls `execute_round`, which moves the messages of the last array's trials into the ledger, lets the
search propose trials, and writes the next round. The batch script then submits that round and, to run after it, itself.
Only SLURM queues and locks: a task of an array finds its trials by its number.
"""

from __future__ import annotations

import json
import os
import time
from itertools import islice
from typing import TYPE_CHECKING

from trainables.files import write_whole
from tune_dml.planning.checks.data import known_digests
from tune_dml.record.events import TrialEnd, TrialEnded
from tune_dml.record.origin.several_jobs import BUDGET_FROM
from tune_dml.record.spending import hours_spent
from tune_dml.running.driver import Driver
from tune_dml.running.search.proposals import proposals_for
from tune_dml.running.slurm.collecting import collect_array
from tune_dml.running.slurm.jobs import read_submission
from tune_dml.running.slurm.task import Round
from tune_dml.running.trials.limits import exhausted_budget
from tune_dml.running.trials.messages import request_of
from tune_dml.text import counted

if TYPE_CHECKING:
    from tune_dml.tracking import SyncReport


class _Rounds:
    """Collects the last round of a sweep and prepares the next one."""

    def __init__(self, driver: Driver):
        self.driver = driver
        ledger, progress = driver.ledger, driver.progress
        self.began = float(os.environ[BUDGET_FROM])
        collected = collect_array(ledger, driver.state, driver.resources)
        without_progress = [trial.has_no_progress and trial.began >= self.began for trial in collected]
        self.is_stuck = bool(without_progress) and all(without_progress)
        """Whether the last array ended before any evaluation, as the next one would."""
        self.hours = hours_spent(ledger.sweep, self.began)
        for trial in collected:
            if trial.end is not None:
                progress.ended(trial.key, trial.end.status, trial.end.metrics, trial.end.reason)
        driver.tracker.notify()

        def on_stop(key: str, end: TrialEnd) -> None:
            ledger.write(TrialEnded(key=key, end=end))

        self.proposals = proposals_for(driver.state, driver.plan, ledger.write, progress, on_stop)

    def prepare(self, group: int) -> int:
        driver, folder = self.driver, self.driver.ledger.sweep
        resources, session, plan = driver.resources, driver.session, driver.plan
        trials = list(islice(iter(self.proposals.next_trial, None), group * read_submission(folder).tasks))
        if not trials:
            return 0
        requests = [request_of(trial) for trial in trials]
        groups = tuple(tuple(requests[start : start + group]) for start in range(0, len(requests), group))
        hours, time_budget = session.gpu_hours, session.time_budget
        round_ = Round(
            groups,
            str(session.cache) if session.cache else None,
            resources.cpus_per_worker,
            resources.gpus_per_worker,
            resources.micro_batch,
            known_digests(plan, session.cache),
            plan.metric,
            plan.space.program,
            until=None if time_budget is None else self.began + time_budget,
            seconds=None if hours is None else (hours - self.hours) * 3600 / driver.share,
        )
        write_whole(folder / "slurm" / "round.json", json.dumps(round_.to_json()).encode(), private=True)
        concurrency_suffix = f"%{limit}" if (limit := session.max_concurrent) else ""
        write_whole(folder / "slurm" / "array", f"0-{len(groups) - 1}{concurrency_suffix}\n".encode())
        return len(trials)

    def prepare_within_budget(self, group: int) -> int:
        """Write the next round unless a budget is exhausted; return its number of trials."""
        driver = self.driver
        if budget := exhausted_budget(driver.session, self.hours, time.time() - self.began):
            driver.note(f"stopped after {budget}, resumable", of_session=True)
            return 0
        if self.is_stuck:
            rule = "the last array ended before any evaluation; give its tasks more time, or evaluate more often"
            driver.note(f"stopped, resumable: {rule}", of_session=True)
            return 0
        trials = self.prepare(group)
        if trials:
            driver.progress.note(f"{counted(trials, 'trial')} follow in the next array")
        elif not self.proposals.is_finished:
            driver.note("no trial can be proposed", of_session=True)
        return trials


def execute_round(driver: Driver, group: int) -> tuple[bool, SyncReport]:
    """Collect the last round and prepare the next one.

    Return whether trials remain, and the report of the MLflow sync.
    """
    driver.record_session()
    driver.tracker.start()
    finished = False
    try:
        with driver.progress:
            rounds = _Rounds(driver)
            finished = rounds.proposals.is_finished
            if not finished:
                finished = not rounds.prepare_within_budget(group) and rounds.proposals.is_finished
    finally:
        report = driver.tracker.stop(interrupted=not finished)
    driver.state.update()
    if finished:
        driver.state.record_look(driver.intent.verb)
    return not finished, report
