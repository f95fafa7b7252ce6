"""What a session is for, as the sweep's record has it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from trainables.bucket import FLAG, Address
from trainables.errors import ConfigError, Problem
from tune_dml.planning.plan import Plan
from tune_dml.planning.request import Session
from tune_dml.record.ledger import read_history
from tune_dml.record.looks import Look
from tune_dml.record.race import RaceRule
from tune_dml.record.state import SweepState


@dataclass(frozen=True)
class Purpose:
    """What a session is for."""

    verb: str
    """sweep, resume, extend or confirm: its end is a look."""
    notes: tuple[str, ...] = ()
    """What must be said of it."""
    look: Look | None = None
    """What was seen before this session was decided on."""
    race: RaceRule | None = None
    """To stop when it is decided; None to go on as before."""
    confirmation: Plan | None = None
    """What is run in place of the sweep's own plan: its best cells on fresh seeds."""


def last_heard(state: SweepState) -> dict[str, float]:
    """Key -> time of the last row of every trial whose driver died under it: until then it had its workers."""
    lost = (trial.key for trial in state.recorded.values() if trial.live)
    return {key: float(rows[-1]["time"]) for key in lost if (rows := read_history(state.folder, key))}


def with_place(session: Session, state: SweepState) -> Session:
    """The session with the place of its trials' files: where the sweep has them, else one of its own below what is asked for.

    Raises ConfigError where that would part trials from what they have left.
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
        rule = f"trials go on from what they have left at {there}"
        raise ConfigError(Problem(FLAG, rule, session.trial_files, f"Leave {FLAG} out until the sweep has ended."))
    return replace(session, trial_files=str(asked / f"{state.plan.name}-{uuid.uuid4().hex[:8]}"))
