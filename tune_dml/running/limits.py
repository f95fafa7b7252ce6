"""When a session stops by itself, and which of its trials has stopped without saying so.

spending.begin(key); spending.end(key); spending.spent        # GPU-hours, or worker-hours, of this session
watch.await_answer(key, new); watch.begin(key); watch.step(key); watch.stalled()    # key -> which limit it has exceeded
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ray.tune import Stopper

from tune_dml.running.failures import Failure, stalled

_START_SECONDS = 600.0
"""Before its first step a trial may take so long, or the limit if that is longer, where nothing else is said: processes,
data, weights."""


@dataclass
class BudgetStopper(Stopper):  # type: ignore[misc]
    """What the trials of a session have cost; Tune stops them all when that reaches the limit."""

    share: float
    """GPUs, or workers without one, of a trial."""
    limit: float | None = None
    """Hours of those."""
    clock: Callable[[], float] = time.monotonic
    seconds: float = 0.0
    since: dict[str, float] = field(default_factory=dict)

    def begin(self, key: str) -> None:
        """A trial begins, or begins again."""
        self.since.setdefault(key, self.clock())

    def end(self, key: str) -> None:
        """A trial is over."""
        began = self.since.pop(key, None)
        self.seconds += 0.0 if began is None else self.clock() - began

    @property
    def spent(self) -> float:
        """Hours, of trials that still run too."""
        now = self.clock()
        return self.share / 3600 * (self.seconds + sum(now - began for began in self.since.values()))

    @property
    def over(self) -> bool:
        """Whether the limit is reached."""
        return self.limit is not None and self.spent >= self.limit

    def __call__(self, trial_id: str, result: object) -> bool:
        """No trial is stopped for its own result."""
        return False

    def stop_all(self) -> bool:
        """Tune asks after every event."""
        return self.over


@dataclass
class _Seen:
    """The last that was seen of a trial."""

    at: float
    stepping: bool
    """Whether it has made a step since it began: to start takes as long as it takes."""


@dataclass
class StallDetector:
    """Notices trials that hang: one that makes steps says something several times within the limit."""

    limit: float | None = None
    """Seconds without a step; None to wait for ever."""
    start_limit: float | None = None
    """Seconds before the first step; None to wait as long as the other limit says, ten minutes at least."""
    clock: Callable[[], float] = time.monotonic
    seen: dict[str, _Seen] = field(default_factory=dict)
    _asked: float | None = None
    _looked: float = 0.0

    def begin(self, key: str) -> None:
        """A trial begins, or begins again."""
        self.seen[key] = _Seen(self.clock(), False)

    def await_answer(self, key: str, new: bool) -> None:
        """A process is asked to take a trial. One that has ended another trial, not a new one, needs no time to start."""
        self.seen[key] = _Seen(self.clock(), not new)

    def step(self, key: str) -> None:
        """Something came from a trial."""
        self.seen[key] = _Seen(self.clock(), True)

    def end(self, key: str) -> None:
        """A trial is over, or is begun again elsewhere."""
        self.seen.pop(key, None)

    def stalled(self) -> dict[str, Failure]:
        """Trials to be given up, and why; asked in every round of the driver's loop, looks a few times within a limit.

        A round that takes long, of a driver that was stopped or has waited for storage, counts as an eighth of the limit:
        what trials have said meanwhile is heard only after it.
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
        """Seconds before the first step, and before each later one."""
        step = math.inf if self.limit is None else self.limit
        return (max(step, _START_SECONDS) if self.start_limit is None else self.start_limit), step
