"""The intent of a session, and the storage of its trials' files."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from trainables.bucket import Address
from trainables.errors import ConfigError
from trainables.option_names import option_problem, spell
from tune_dml.planning.continuation import rebuild_confirmation
from tune_dml.planning.plan import Plan
from tune_dml.planning.request import Session
from tune_dml.record.judging.looks import Look
from tune_dml.record.judging.race import RaceRule
from tune_dml.record.ledger import read_history
from tune_dml.record.state import SweepState


@dataclass(frozen=True)
class SessionIntent:
    """The task of a session."""

    verb: str
    """sweep, resume, extend or confirm. The look at the end of the session is recorded under this verb."""
    notes: tuple[str, ...] = ()
    """Texts for the ledger's notes."""
    look: Look | None = None
    """The look that the decision for this session was based on."""
    race: RaceRule | None = None
    """Rule of a race (`--until-decided`); None to continue as before."""
    confirmation: Plan | None = None
    """The plan to run in place of the sweep's own: its best cells on fresh seeds."""


def intent_to_resume(state: SweepState) -> SessionIntent:
    """Return the intent of `resume`: to continue the sweep, or if it is complete, an interrupted confirmation."""
    if state.incomplete or not state.confirmation_left:
        return SessionIntent("resume")
    return SessionIntent("confirm", confirmation=rebuild_confirmation(state.plan, state.confirming.values()))


def last_row_time(state: SweepState) -> dict[str, float]:
    """Return key -> time of the last row, for each trial that was running when its driver died."""
    lost = (trial.key for trial in state.recorded.values() if trial.live)
    return {key: float(rows[-1]["time"]) for key in lost if (rows := read_history(state.folder, key))}


def with_trial_files(session: Session, state: SweepState) -> Session:
    """Return the session with an address for its trials' files: the sweep's, or a new one below the requested address.

    Raises:
        ConfigError: if trials would lose the files that they need to continue.
    """
    if session.trial_files is None:
        return replace(session, trial_files=state.trial_files)
    asked = Address.read(session.trial_files)
    if state.trial_files is not None:
        used = Address.read(state.trial_files)
        if (asked.bucket, asked.path) in {(above.bucket, above.path) for above in (used, used.parent)}:
            return replace(session, trial_files=str(replace(used, query=asked.query)))
    if any(trial.status == "running" or trial.away for trial in state.recorded.values()):
        there = state.trial_files or str(state.folder)
        rule = f"trials continue from their files at {there}"
        remedy = f"Leave {spell('trial_files')} out until the sweep has ended."
        raise ConfigError(option_problem("trial_files", rule, session.trial_files, remedy))
    return replace(session, trial_files=str(asked / f"{state.plan.name}-{uuid.uuid4().hex[:8]}"))
