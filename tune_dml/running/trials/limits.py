"""Stop a session at its budget, and find trials that hang."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ray.tune import Stopper

from tune_dml.planning.request import Session
from tune_dml.running.failures import Failure, stall_failure
from tune_dml.text import duration

_START_SECONDS = 600.0
"""Default limit before a trial's first step (processes, data, weights); a larger stall limit replaces it."""


def exhausted_budget(session: Session, hours: float, seconds: float) -> str:
    """Return the budget that `hours` (of GPUs or workers) or `seconds` exhaust, in words; an empty string if none."""
    if session.gpu_hours is not None and hours >= session.gpu_hours:
        return f"{hours:.{2 if hours >= 1 else 4}f} of {session.gpu_hours:g} hours"
    return duration(session.time_budget) if session.time_budget and seconds >= session.time_budget else ""


@dataclass
class BudgetStopper(Stopper):  # type: ignore[misc]
    """Sums the cost of a session's trials, and stops Tune when it reaches the limit."""

    share: float  # GPUs of a trial, or workers without GPUs
    limit: float | None = None  # GPU-hours or worker-hours
    clock: Callable[[], float] = time.monotonic
    seconds: float = 0.0
    since: dict[str, float] = field(default_factory=dict)

    def begin(self, key: str) -> None:
        """Start counting a trial."""
        self.since.setdefault(key, self.clock())

    def end(self, key: str) -> None:
        """Stop counting a trial."""
        began = self.since.pop(key, None)
        self.seconds += 0.0 if began is None else self.clock() - began

    @property
    def spent(self) -> float:
        """Hours spent, running trials included."""
        now = self.clock()
        return self.share / 3600 * (self.seconds + sum(now - began for began in self.since.values()))

    def __call__(self, trial_id: str, result: object) -> bool:
        """Return False, because no trial is stopped for its result."""
        return False

    def stop_all(self) -> bool:
        """Return whether the limit is reached. Tune calls this after every event, and then stops."""
        return self.limit is not None and self.spent >= self.limit


@dataclass
class _LastActivity:
    at: float
    has_stepped: bool  # whether it has made a step since it began; the limit before the first step is longer


@dataclass
class StallDetector:
    """Finds trials that hang. A trial at work sends several messages within the limit."""

    limit: float | None = None  # seconds without a step; None for no limit
    start_limit: float | None = None  # before the first step; None for `limit`, at least ten minutes
    clock: Callable[[], float] = time.monotonic
    seen: dict[str, _LastActivity] = field(default_factory=dict)
    _checked_at: float | None = None
    _searched_at: float = 0.0

    def watch(self, key: str, *, has_stepped: bool) -> None:
        """Start watching a trial, or the actor that will run it, or record that it sent a message."""
        self.seen[key] = _LastActivity(self.clock(), has_stepped)

    def end(self, key: str) -> None:
        """Stop watching a trial that ended or restarts."""
        self.seen.pop(key, None)

    def find_stalled(self) -> dict[str, Failure]:
        """Return key -> failure of the trials that exceeded a limit; searches a few times within the limit.

        A long pause between two calls (a suspended driver, slow storage) counts as an eighth of the limit, because
        messages that were sent during the pause arrive after it.
        """
        now, (start, step) = self.clock(), self._limits
        if start == step == math.inf:
            return {}
        pause, self._checked_at = now - (now if self._checked_at is None else self._checked_at), now
        for seen in self.seen.values():
            excess = max(pause - (step if seen.has_stepped else start) / 8, 0.0)
            seen.at = min(seen.at + excess, now)
        if now - self._searched_at < min(start / 8, step / 8, 10.0):
            return {}
        self._searched_at = now
        return {
            key: stall_failure(step) if seen.has_stepped else stall_failure(start, before_first=True)
            for key, seen in self.seen.items()
            if now - seen.at > (step if seen.has_stepped else start)
        }

    @property
    def _limits(self) -> tuple[float, float]:
        """Seconds allowed before the first step, and between two steps."""
        step = math.inf if self.limit is None else self.limit
        return (max(step, _START_SECONDS) if self.start_limit is None else self.start_limit), step
