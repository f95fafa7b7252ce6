"""What a session is for, as the sweep's record has it."""

from __future__ import annotations

from dataclasses import dataclass

from tune_dml.planning.plan import Plan
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
