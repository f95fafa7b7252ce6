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
from tune_dml.running.trials.messages import TrialRequest, request_of
from tune_dml.text import counted

if TYPE_CHECKING:
    from tune_dml.tracking import SyncReport


def execute_round(driver: Driver, group: int) -> tuple[bool, SyncReport]:
    """Collect the last round and prepare the next one, whose tasks train `group` trials each.

    Return whether trials remain, and the report of the MLflow sync.
    """
    driver.record_session()
    driver.tracker.start()
    finished = False
    try:
        with driver.progress:
            finished = _collect_and_prepare(driver, group)
    finally:
        report = driver.tracker.stop(interrupted=not finished)
    driver.state.update()
    if finished:
        driver.state.record_look(driver.intent.verb)
    return not finished, report


def _collect_and_prepare(driver: Driver, group: int) -> bool:
    """Collect the last round, and prepare the next one within the budgets; return whether no trial is left."""
    ledger, began = driver.ledger, float(os.environ[BUDGET_FROM])
    last_round = ledger.sweep / "slurm" / "round.json"
    continues = last_round.exists() and json.loads(last_round.read_text(encoding="utf-8")).get("began") == began
    collected = collect_array(ledger, driver.state, driver.resources)
    for trial in collected:
        if trial.end is not None:
            driver.progress.ended(trial.key, trial.end.status, trial.end.metrics, trial.end.reason)
    driver.tracker.notify()

    def on_stop(key: str, end: TrialEnd) -> None:
        ledger.write(TrialEnded(key=key, end=end))

    proposals = proposals_for(driver.state, driver.plan, ledger.write, driver.progress, on_stop)
    if proposals.is_finished:
        return True
    hours = hours_spent(ledger.sweep, began)
    if budget := exhausted_budget(driver.session, hours, time.time() - began):
        driver.note(f"stopped after {budget}, resumable", of_session=True)
    elif continues and all(trial.has_no_progress for trial in collected):
        rule = "the last array ended before any evaluation; give its tasks more time, or evaluate more often"
        if not collected:
            rule = f"no task of the last array started a trial; its logs are in {last_round.parent}"
        driver.note(f"stopped, resumable: {rule}", of_session=True)
    elif trials := list(islice(iter(proposals.next_trial, None), group * read_submission(ledger.sweep).tasks)):
        requests = [request_of(trial) for trial in trials]
        groups = tuple(tuple(requests[start : start + group]) for start in range(0, len(requests), group))
        _write_round(driver, groups, began, hours)
        driver.progress.note(f"{counted(len(trials), 'trial')} follow in the next array")
        return False
    elif not proposals.is_finished:
        driver.note("no trial can be proposed", of_session=True)
    return proposals.is_finished


def _write_round(driver: Driver, groups: tuple[tuple[TrialRequest, ...], ...], began: float, hours: float) -> None:
    """Write the groups of the next array; its budgets count from the time `began`, and `hours` are spent."""
    resources, session, plan, folder = driver.resources, driver.session, driver.plan, driver.ledger.sweep
    round_ = Round(
        groups,
        str(session.cache) if session.cache else None,
        resources.cpus_per_worker,
        resources.gpus_per_worker,
        resources.micro_batch,
        known_digests(plan, session.cache),
        plan.metric,
        plan.space.program,
        until=None if session.time_budget is None else began + session.time_budget,
        seconds=None if session.gpu_hours is None else (session.gpu_hours - hours) * 3600 / driver.share,
        began=began,
    )
    write_whole(folder / "slurm" / "round.json", json.dumps(round_.to_json()).encode(), private=True)
    concurrency_suffix = f"%{limit}" if (limit := session.max_concurrent) else ""
    write_whole(folder / "slurm" / "array", f"0-{len(groups) - 1}{concurrency_suffix}\n".encode())
