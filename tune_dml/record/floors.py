"""What a sweep reaches without training, as its first session recorded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tune_dml.record.events import SessionStarted

Floors = Mapping[str, Mapping[str, float]]
"""Floor -> validation figures."""


def recorded_floors(sessions: Sequence[SessionStarted]) -> Floors:
    """The floors of the first session that measured them; empty in sweeps from before they were measured."""
    return next((session.floors for session in sessions if session.floors), {})
