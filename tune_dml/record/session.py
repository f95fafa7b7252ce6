"""Decide what a session runs, and where its trials store their files."""

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
    """What a session runs, and on whose behalf."""

    verb: str  # sweep, resume, extend or confirm, also of the look at the end of the session
    notes: tuple[str, ...] = ()  # notes for the ledger
    look: Look | None = None  # the look on which the decision for this session is based
    race: RaceRule | None = None  # new rule of a race (`--until-decided`); None to keep the present one
    confirmation: Plan | None = None  # plan of the best cells with fresh seeds, to run instead of the sweep's


def intent_to_resume(state: SweepState) -> SessionIntent:
    """Return the intent of `resume`: to continue the sweep or, if it is complete, its confirmation."""
    if state.is_incomplete or not state.confirmation_left:
        return SessionIntent("resume")
    return SessionIntent("confirm", confirmation=rebuild_confirmation(state.plan, state.confirmation_trials.values()))


def last_row_time(state: SweepState) -> dict[str, float]:
    """Return key -> time of the last row, for each trial that was running when the last driver died."""
    interrupted = (trial.key for trial in state.trial_states.values() if trial.is_live)
    return {key: float(rows[-1]["time"]) for key in interrupted if (rows := read_history(state.folder, key))}


def with_trial_files(session: Session, state: SweepState) -> Session:
    """Return the session with an address for trial files: the sweep's, or a new one below the requested address.

    Raise ConfigError if trials would lose files that they need to continue.
    """
    if session.trial_files is None:
        return replace(session, trial_files=state.trial_files)
    requested = Address.read(session.trial_files)
    if state.trial_files is not None:
        current = Address.read(state.trial_files)
        known = {(address.bucket, address.path) for address in (current, current.parent)}
        if (requested.bucket, requested.path) in known:
            return replace(session, trial_files=str(replace(current, query=requested.query)))
    if any(trial.status == "running" or trial.has_remote_files for trial in state.trial_states.values()):
        location = state.trial_files or str(state.folder)
        rule = f"trials continue from their files at {location}"
        remedy = f"Leave {spell('trial_files')} out until the sweep has ended."
        raise ConfigError(option_problem("trial_files", rule, session.trial_files, remedy))
    return replace(session, trial_files=str(requested / f"{state.plan.name}-{uuid.uuid4().hex[:8]}"))
