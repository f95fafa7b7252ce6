"""Stop a session at its budget, and find trials that hang.

Example:
    budget.begin(key); budget.end(key); budget.spent      # GPU-hours, or worker-hours, of this session
    detector.begin(key); detector.step(key); detector.stalled()    # key -> which limit it exceeded
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ray.tune import Stopper

from tune_dml.running.failures import Failure, stalled

_START_SECONDS = 600.0
"""Default limit before a trial's first step (processes, data, weights); a larger stall limit replaces it."""


@dataclass
class BudgetStopper(Stopper):  # type: ignore[misc]
    """Sums the cost of a session's trials, and stops Tune when it reaches the limit."""

    share: float
    """GPUs of a trial, or workers without GPUs."""
    limit: float | None = None
    """GPU-hours or worker-hours."""
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

    @property
    def over(self) -> bool:
        """Whether the limit is reached."""
        return self.limit is not None and self.spent >= self.limit

    def __call__(self, trial_id: str, result: object) -> bool:
        """Return False: no trial is stopped for its own result."""
        return False

    def stop_all(self) -> bool:
        """Return whether Tune must stop; it asks after every event."""
        return self.over


@dataclass
class _Seen:
    """When a trial was last active."""

    at: float
    stepping: bool
    """Whether it has made a step since it began; the limit before the first step is longer."""


@dataclass
class StallDetector:
    """Finds trials that hang; a trial sends several messages within the limit."""

    limit: float | None = None
    """Seconds without a step; None for no limit."""
    start_limit: float | None = None
    """Seconds before the first step; None for the other limit, at least ten minutes."""
    clock: Callable[[], float] = time.monotonic
    seen: dict[str, _Seen] = field(default_factory=dict)
    _asked: float | None = None
    _looked: float = 0.0

    def begin(self, key: str) -> None:
        """Start watching a trial."""
        self.seen[key] = _Seen(self.clock(), False)

    def await_answer(self, key: str, new: bool) -> None:
        """Watch for an actor's answer; only a new one gets the time to start."""
        self.seen[key] = _Seen(self.clock(), not new)

    def step(self, key: str) -> None:
        """Record that a trial sent a message."""
        self.seen[key] = _Seen(self.clock(), True)

    def end(self, key: str) -> None:
        """Stop watching a trial that ended or restarts."""
        self.seen.pop(key, None)

    def stalled(self) -> dict[str, Failure]:
        """Return the trials that exceeded a limit, and how; checks a few times within the limit.

        A long pause between two calls (a suspended driver, slow storage) counts as an eighth of the limit: messages sent
        meanwhile arrive only after it.
        """
        now, (start, step) = self.clock(), self._allowed
        if start == step == math.inf:
            return {}
        pause, self._asked = now - (now if self._asked is None else self._asked), now
        for seen in self.seen.values():
            unheard = max(pause - (step if seen.stepping else start) / 8, 0.0)
            seen.at = min(seen.at + unheard, now)
        if now - self._looked < min(start / 8, step / 8, 10.0):
            return {}
        self._looked = now
        return {
            key: stalled(step) if seen.stepping else stalled(start, before_first=True)
            for key, seen in self.seen.items()
            if now - seen.at > (step if seen.stepping else start)
        }

    @property
    def _allowed(self) -> tuple[float, float]:
        """Seconds before the first step, and between later ones."""
        step = math.inf if self.limit is None else self.limit
        return (max(step, _START_SECONDS) if self.start_limit is None else self.start_limit), step
