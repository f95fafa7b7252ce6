"""What a driver runs, on which resources, and where it records and shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tune_dml.planning.checks.data import floors_of
from tune_dml.planning.plan import Plan
from tune_dml.planning.request import Resources, Session
from tune_dml.record.contradictions import describe_edited_code
from tune_dml.record.events import ConfirmationStarted, Note, RaceStarted, SessionStarted
from tune_dml.record.judging.looks import record_look
from tune_dml.record.ledger import Ledger
from tune_dml.record.origin import provenance
from tune_dml.record.origin.commands import cluster_of_this_job
from tune_dml.record.session import SessionIntent, last_row_time
from tune_dml.record.state import SweepState

if TYPE_CHECKING:
    from tune_dml.running.screen.progress import Progress
    from tune_dml.tracking.tracker import Tracker


@dataclass(frozen=True)
class Driver:
    """One session of a sweep, under the sweep's lock."""

    state: SweepState
    resources: Resources
    session: Session
    intent: SessionIntent
    ledger: Ledger
    progress: Progress
    tracker: Tracker

    @property
    def plan(self) -> Plan:
        """The plan that runs: the sweep's own, or that of its confirmation."""
        return self.intent.confirmation or self.state.plan

    @property
    def share(self) -> float:
        """GPUs of a trial, or workers without GPUs: the unit of GPU-hours."""
        return self.resources.gpus or self.resources.workers

    def note(self, text: str, *, of_session: bool = False) -> None:
        """Print and record a note; a note `of_session` is shown until the next session starts."""
        self.ledger.write(Note(text=text, of_session=of_session))
        self.progress.note(text)

    def record_session(self) -> None:
        """Write the session's events, before any trial runs."""
        ledger, state, intent = self.ledger, self.state, self.intent
        machine = provenance.collect()
        lost_notes = [] if state.sessions else list(state.notes)  # notes about a lost ledger
        record_look(state.folder, intent.look)
        (state.folder / "trials").mkdir(exist_ok=True)  # a later session that misses it knows that storage is missing
        confirmation = intent.confirmation
        if confirmation is None:
            state.stored_plan.save(state.folder / "plan.json")
        elif {trial.key for trial in confirmation.trials()} - state.confirmation_trials.keys():
            digests = tuple(cell.digest for cell in confirmation.cells)
            ledger.write(ConfirmationStarted(cells=digests, seeds=confirmation.seeds))
        state.update()
        started = SessionStarted(
            provenance=machine,
            resources=self.resources,
            heard=last_row_time(state),
            trial_files=self.session.trial_files,
            submitted_to=cluster_of_this_job(),
            floors={} if state.sessions else floors_of(state.plan, self.session.cache),
        )
        ledger.write(started)
        for text in (*lost_notes, *describe_edited_code(state), *intent.notes):
            ledger.write(Note(text=text))
        if intent.race is not None and (state.race is None or state.race.rule != intent.race):
            ledger.write(RaceStarted(rule=intent.race))
        state.update()
