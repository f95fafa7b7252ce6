"""Figures that a sweep reaches without training, measured by its first session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tune_dml.record.events import SessionStarted

Floors = Mapping[str, Mapping[str, float]]
"""Floor -> validation figures."""


def recorded_floors(sessions: Sequence[SessionStarted]) -> Floors:
    """Return the floors of the first session that measured them; empty for older sweeps."""
    return next((session.floors for session in sessions if session.floors), {})
