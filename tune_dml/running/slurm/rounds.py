"""Run a sweep's trials as SLURM arrays, round by round; this process is the ledger's only writer.

A collecting job calls `execute_round`: it moves the messages of the last array's trials into the ledger, tells the search, and
writes the next round. The batch script then submits that round, and itself after it. There is no queue and no lock beside
SLURM's: an array's task finds its trials by its number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainables.files import write_whole
from tune_dml.planning.checks.data import known_digests
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.planning.request import Resources, Session
from tune_dml.record.events import (
    CellProposed,
    JsonRow,
    Note,
    TrialEnd,
    TrialEnded,
    TrialResumed,
    TrialRetried,
    TrialStarted,
)
from tune_dml.record.ledger import Ledger
from tune_dml.record.session import SessionIntent
from tune_dml.record.state import SweepState
from tune_dml.running.failures import TRIAL_RETRIES
from tune_dml.running.search.proposals import diverged_value, proposals_for
from tune_dml.running.slurm.task import Round, TrialLog
from tune_dml.running.sweep import record_session
from tune_dml.running.trials.messages import request_of
from tune_dml.text import counted

if TYPE_CHECKING:
    from tune_dml.running.screen.progress import Progress
    from tune_dml.tracking.tracker import SyncReport, Tracker

_MOST_TASKS = 1000
"""Tasks of one array: SLURM's default `MaxArraySize` is 1001."""


class _Rounds:
    """Collects rounds of a sweep and prepares the next one."""

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
        self.diverged = diverged_value(state, plan)
        self._collect()
        state.update()
        self.proposals = proposals_for(
            state,
            plan,
            record=ledger.write,
            on_note=self.note,
            on_cell=lambda cell: ledger.write(CellProposed(cell=cell)),
            on_stop=lambda key, end: ledger.write(TrialEnded(key=key, end=end)),
            on_block=progress.recount,
            say=progress.note,
        )

    def note(self, text: str, *, of_session: bool = False) -> None:
        """Print and record a note."""
        self.ledger.write(Note(text=text, of_session=of_session))
        self.progress.note(text)

    def prepare(self, group: int) -> int:
        """Write the next round into the sweep's folder; return its number of trials."""
        trials: list[PlannedTrial] = []
        while len(trials) < group * _MOST_TASKS and (trial := self.proposals.next_trial()) is not None:
            trials.append(trial)
        if not trials:
            return 0
        requests = [request_of(trial) for trial in trials]
        groups = tuple(tuple(requests[at : at + group]) for at in range(0, len(requests), group))
        digests = known_digests(self.plan, self.session.cache)
        round_ = Round(
            groups,
            str(self.session.cache),
            self.resources.cpus_per_worker,
            self.resources.gpus_per_worker,
            self.resources.micro_batch,
            digests,
            self.plan.metric,
            self.plan.space.program,
        )
        place = self.ledger.sweep / "slurm"
        write_whole(place / "round.json", json.dumps(round_.to_json()).encode())
        at_once = f"%{most}" if (most := self.session.max_concurrent) else ""
        write_whole(place / "array", f"0-{len(groups) - 1}{at_once}\n".encode())
        return len(trials)

    def prepare_within_budget(self, group: int) -> int:
        """Write the next round unless the budget is spent; return its number of trials."""
        limit = self.session.gpu_hours
        if limit is not None and (spent := _spent_hours(self.state, self.resources)) >= limit:
            self.note(f"stopped after {spent:.2f} of {limit:g} hours, resumable", of_session=True)
            return 0
        trials = self.prepare(group)
        if trials:
            self.progress.note(f"{counted(trials, 'trial')} follow in the next array")
        elif not self.proposals.finished:
            self.note("no trial can be proposed", of_session=True)
        return trials

    def _collect(self) -> None:
        """Move the messages of the last array's trials into the ledger."""
        for folder in sorted((self.ledger.sweep / "trials").glob("*/array.jsonl")):
            key = folder.parent.name
            recorded = self.state.recorded.get(key)
            if recorded is not None and recorded.end is not None:
                continue
            self._collect_trial(key)

    def _collect_trial(self, key: str) -> None:
        """Move one trial's messages and its end into the ledger."""
        messages = list(TrialLog(self.ledger.sweep, key).read())
        attempts = [message["began"] for message in messages if "began" in message]
        known = self.state.recorded.get(key)
        for attempt in attempts[known.attempts if known else 0 :]:
            self.ledger.write(TrialStarted(key=key, host=attempt["host"], micro_batch=self.resources.micro_batch))
        for message in messages:
            if "resumed" in message:
                self.ledger.write(TrialResumed(key=key, step=message["resumed"]))
            if rows := message.get("rows"):
                self.ledger.report(key, *rows)
            if "note" in message:
                self.note(f"trial {key}: {message['note']}")
        end = next((TrialEnd.from_json(m["ended"]) for m in messages if "ended" in m), None)
        if end is None and (lost := _lost(messages)) > TRIAL_RETRIES:
            end = TrialEnd("failed", f"lost {lost} times: its task ended without a word", kind="infrastructure")
        if end is None:
            self.ledger.write(TrialRetried(key=key))
            return
        self.ledger.write(TrialEnded(key=key, end=end))
        self.progress.ended(key, end.status, end.metrics, end.reason)
        self.tracker.notify()


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

    Returns:
        Whether trials remain, and the report of the MLflow sync.
    """
    record_session(ledger, state, resources, session, intent)
    plan = intent.confirmation or state.plan
    tracker.start()
    finished = False
    try:
        with progress:
            rounds = _Rounds(ledger, state, plan, progress, tracker, resources=resources, session=session)
            finished = rounds.proposals.finished
            if not finished:
                finished = not rounds.prepare_within_budget(group) and rounds.proposals.finished
    finally:
        report = tracker.stop(interrupted=not finished)
    state.update()
    if finished:
        state.record_look(intent.verb)
    return not finished, report


def _lost(messages: Sequence[JsonRow]) -> int:
    """Return how often a trial's task ended without a message, except when SLURM took its node and queued it again."""
    lost, is_open = 0, False
    for message in messages:
        if "began" in message:
            lost += is_open and not message["began"].get("requeued")
            is_open = True
        is_open = is_open and "cut" not in message
    return lost + is_open


def _spent_hours(state: SweepState, resources: Resources) -> float:
    """Return the GPU-hours, or worker-hours, of the trials that have ended."""
    seconds = sum(trial.end.seconds or 0.0 for trial in state.recorded.values() if trial.end)
    return seconds / 3600 * (resources.gpus or resources.workers)
