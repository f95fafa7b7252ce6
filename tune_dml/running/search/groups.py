"""Hand out short trials in groups; one call of a process runs a group's trials.

Each call costs Ray Tune and the driver tenths of a second, however short its trials are. Groups change neither the order of
the trials nor their results: each trial has its own seed, ledger lines and end. If a process is lost, the trials that
had not begun come back, and each of them then runs alone. This module does not use Ray.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from tune_dml.planning.plan import PlannedTrial


class _TrialSource(Protocol):
    """Interface of `Proposals`, which chooses the next trials of a session."""

    known: dict[str, float]

    @property
    def finished(self) -> bool:
        """Whether no trial is left and none will follow."""

    def next_trial(self) -> PlannedTrial | None:
        """Return the next trial; None while one must end first."""

    def until(self, trial: PlannedTrial) -> int | None:
        """Return the step at which a trial pauses."""

    def ended(self, key: str, value: float) -> None:
        """Record a trial's value."""


_TOGETHER = 4.0
"""Seconds that a group should take: a lost process costs at most this, and ends are reported at most so late."""
_MOST = 32  # trials of a group
_REST = 0.05
"""Overhead of a trial in seconds, beside its training."""
_WEIGHT = 0.5
"""Weight of the last trial in the mean duration."""


class TrialGroups:
    """Hands out the trials of a session, in groups if they are short."""

    def __init__(self, proposals: _TrialSource, *, together: bool = False, slots: int = 1):
        """Create the groups.

        Args:
            proposals: chooses the trials.
            together: whether several trials may share a call; False hands out each alone.
            slots: calls that run at once.
        """
        self.proposals = proposals
        self.together = together
        self.slots = slots
        self._ready: deque[PlannedTrial] = deque()
        self._alone: deque[PlannedTrial] = deque()
        self._given: dict[str, tuple[PlannedTrial, int]] = {}
        """Key -> trial that was handed out and has not ended, and the number of its group."""
        self.number = 0
        """Number of the last group."""
        self._seconds = math.inf

    @property
    def finished(self) -> bool:
        """Whether no trial is left and none will follow. False while a trial that was handed out may come back."""
        return self.proposals.finished and not (self._ready or self._alone or self._given)

    def next_group(self) -> list[PlannedTrial]:
        """Return the next trials; none while one must end first, or when `finished`."""
        if self._alone:
            group = [self._alone.popleft()]
        else:
            size = self._size()
            while len(self._ready) < size * (self.slots if size > 1 else 1):
                trial = self.proposals.next_trial()
                if trial is None:
                    break
                self._ready.append(trial)
            share = min(size, -(-len(self._ready) // self.slots))  # leave work for the other slots
            group = [self._ready.popleft() for _ in range(share)]
        self.number += 1
        self._given |= {trial.key: (trial, self.number) for trial in group}
        return group

    def _size(self) -> int:
        """Return how many trials fill a group's time; one until the first trial has ended."""
        if not self.together:
            return 1
        return min(max(int(_TOGETHER / (self._seconds + _REST)), 1), _MOST)

    def is_open(self, key: str, number: int) -> bool:
        """Return whether a trial was handed out with this group and has neither ended nor come back since."""
        return key in self._given and self._given[key][1] == number

    def close(self, key: str, seconds: float | None = None) -> None:
        """Record that a trial ended or paused, after `seconds` of training if it finished."""
        self._given.pop(key, None)
        if seconds is not None:
            known = self._seconds if math.isfinite(self._seconds) else seconds
            self._seconds = known + _WEIGHT * (seconds - known)

    def give_back(self, keys: Iterable[str], *, alone: bool) -> None:
        """Take back trials that have not begun; with `alone`, each then gets its own call."""
        trials = [self._given.pop(key)[0] for key in keys if key in self._given]
        (self._alone if alone else self._ready).extendleft(reversed(trials))
