"""Run a sweep's trials as SLURM arrays, round by round; this process is the ledger's only writer.

A collecting job calls `execute_round`, which moves the messages of the last array's trials into the ledger, lets the
search propose trials, and writes the next round. The batch script then submits that round and, to run after it, itself.
Only SLURM queues and locks: a task of an array finds its trials by its number.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from trainables.files import write_whole
from tune_dml.planning.checks.data import known_digests
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.planning.request import Resources, Session
from tune_dml.record.events import Note, TrialEnded
from tune_dml.record.ledger import Ledger
from tune_dml.record.origin.several_jobs import BUDGET_FROM
from tune_dml.record.session import SessionIntent
from tune_dml.record.spending import hours_spent
from tune_dml.record.state import SweepState
from tune_dml.running.limits import exhausted_budget
from tune_dml.running.search.proposals import proposals_for
from tune_dml.running.slurm.collecting import collect_array
from tune_dml.running.slurm.jobs import read_submission
from tune_dml.running.slurm.task import Round
from tune_dml.running.sweep import record_session
from tune_dml.running.trials.messages import request_of
from tune_dml.text import counted

if TYPE_CHECKING:
    from tune_dml.running.screen.progress import Progress
    from tune_dml.tracking.tracker import SyncReport, Tracker


class _Rounds:
    """Collects the last round of a sweep and prepares the next one."""

    def __init__(
        self,
        ledger: Ledger,
        state: SweepState,
        plan: Plan,
        progress: Progress,
        tracker: Tracker,
        *,
        resources: Resources,
        session: Session,
    ):
        self.ledger, self.state, self.plan = ledger, state, plan
        self.progress, self.tracker = progress, tracker
        self.resources, self.session = resources, session
        self.began = float(os.environ[BUDGET_FROM])
        self._share = resources.gpus or resources.workers
        collected = collect_array(ledger, state, resources)
        without_progress = [trial.has_no_progress and trial.began >= self.began for trial in collected]
        self.is_stuck = bool(without_progress) and all(without_progress)
        """Whether the last array ended before any evaluation, as the next one would."""
        self.hours = hours_spent(ledger.sweep, self.began)
        for trial in collected:
            if trial.end is not None:
                progress.ended(trial.key, trial.end.status, trial.end.metrics, trial.end.reason)
        tracker.notify()
        self.proposals = proposals_for(
            state, plan, ledger.write, progress, lambda key, end: ledger.write(TrialEnded(key=key, end=end))
        )

    def note(self, text: str, *, of_session: bool = False) -> None:
        self.ledger.write(Note(text=text, of_session=of_session))
        self.progress.note(text)

    def prepare(self, group: int) -> int:
        """Write the next round into the sweep's folder; return its number of trials."""
        trials: list[PlannedTrial] = []
        max_trials = group * read_submission(self.ledger.sweep).tasks
        while len(trials) < max_trials and (trial := self.proposals.next_trial()) is not None:
            trials.append(trial)
        if not trials:
            return 0
        requests = [request_of(trial) for trial in trials]
        groups = tuple(tuple(requests[start : start + group]) for start in range(0, len(requests), group))
        digests = known_digests(self.plan, self.session.cache)
        hours, time_budget = self.session.gpu_hours, self.session.time_budget
        round_ = Round(
            groups,
            str(self.session.cache) if self.session.cache else None,
            self.resources.cpus_per_worker,
            self.resources.gpus_per_worker,
            self.resources.micro_batch,
            digests,
            self.plan.metric,
            self.plan.space.program,
            until=None if time_budget is None else self.began + time_budget,
            seconds=None if hours is None else (hours - self.hours) * 3600 / self._share,
        )
        folder = self.ledger.sweep / "slurm"
        write_whole(folder / "round.json", json.dumps(round_.to_json()).encode(), private=True)
        concurrency_suffix = f"%{limit}" if (limit := self.session.max_concurrent) else ""
        write_whole(folder / "array", f"0-{len(groups) - 1}{concurrency_suffix}\n".encode())
        return len(trials)

    def prepare_within_budget(self, group: int) -> int:
        """Write the next round unless a budget is exhausted; return its number of trials."""
        if budget := exhausted_budget(self.session, self.hours, time.time() - self.began):
            self.note(f"stopped after {budget}, resumable", of_session=True)
            return 0
        if self.is_stuck:
            rule = "the last array ended before any evaluation; give its tasks more time, or evaluate more often"
            self.note(f"stopped, resumable: {rule}", of_session=True)
            return 0
        trials = self.prepare(group)
        if trials:
            self.progress.note(f"{counted(trials, 'trial')} follow in the next array")
        elif not self.proposals.is_finished:
            self.note("no trial can be proposed", of_session=True)
        return trials


def execute_round(
    state: SweepState,
    resources: Resources,
    session: Session,
    intent: SessionIntent,
    group: int,
    *,
    ledger: Ledger,
    progress: Progress,
    tracker: Tracker,
) -> tuple[bool, SyncReport]:
    """Collect the last round and prepare the next one.

    Return whether trials remain, and the report of the MLflow sync.
    """
    record_session(ledger, state, resources, session, intent)
    plan = intent.confirmation or state.plan
    tracker.start()
    finished = False
    try:
        with progress:
            rounds = _Rounds(ledger, state, plan, progress, tracker, resources=resources, session=session)
            finished = rounds.proposals.is_finished
            if not finished:
                finished = not rounds.prepare_within_budget(group) and rounds.proposals.is_finished
    finally:
        report = tracker.stop(interrupted=not finished)
    state.update()
    if finished:
        state.record_look(intent.verb)
    return not finished, report
