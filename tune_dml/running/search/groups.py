"""Start short trials in groups; one call of a process runs all trials of a group.

Each call costs Ray Tune and the driver tenths of a second, even if its trials are very short. Groups change neither the
order of the trials nor their results: each trial has its own seed, ledger events and end. If a process is lost, the
trials that had not started are queued again, and each then runs alone. This module does not use Ray.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from tune_dml.planning.plan import PlannedTrial
from tune_dml.record.events import Event

Record = Callable[[Event], None]  # appends an event to the ledger


class TrialSource(ABC):
    """Chooses the trials of a session: a search, a race, or a search with early stopping."""

    def __init__(self, trial_values: Mapping[str, float]):
        """Create the source. `trial_values`: key -> value of the trials that have ended."""
        self.trial_values = dict(trial_values)
        self.waiting: deque[PlannedTrial] = deque()

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether no trial is left to start now or later."""

    @abstractmethod
    def next_trial(self) -> PlannedTrial | None:
        """Return the next trial; None if a running trial must end first, or if `is_finished`."""

    def until(self, trial: PlannedTrial) -> int | None:
        """Return the step at which a trial pauses; None if it runs to its end."""
        return None

    def record_pause(self, key: str) -> None:
        """Record that a trial reached the step at which it pauses."""
        raise NotImplementedError("only trials of a search with early stopping pause")

    def record_value(self, key: str, value: float) -> None:
        """Record the value of an ended trial; NaN if it failed, and infinite (of a race NaN) if it diverged."""
        self.trial_values[key] = value


_GROUP_SECONDS = 4.0
"""Intended duration of a group in seconds. A lost process costs as much, and ends are reported as late."""
_MAX_TRIALS = 32  # most trials of a group
_OVERHEAD = 0.05  # seconds that a trial takes in addition to its training
_WEIGHT = 0.5  # weight of the last trial in the running mean of durations


class TrialGroups:
    """Forms groups of a session's trials if they are short."""

    def __init__(self, proposals: TrialSource, *, may_share: bool = False, slots: int = 1):
        """Create the groups. Without `may_share` each trial has its own call; `slots` calls run at once."""
        self.proposals = proposals
        self.may_share = may_share
        self.slots = slots
        self._ready: deque[PlannedTrial] = deque()
        self._single_trials: deque[PlannedTrial] = deque()
        self._open: dict[str, tuple[PlannedTrial, int]] = {}  # running trials, and their groups
        self.group_number = 0  # of the last group
        self._seconds = math.inf

    @property
    def is_finished(self) -> bool:
        """Whether no trial is left to start now or later. False while a started trial may be queued again."""
        return self.proposals.is_finished and not (self._ready or self._single_trials or self._open)

    def next_group(self) -> list[PlannedTrial]:
        """Return the next trials; none if a running trial must end first, or if `is_finished`."""
        if self._single_trials:
            group = [self._single_trials.popleft()]
        else:
            size = self._size()
            while len(self._ready) < size * (self.slots if size > 1 else 1):
                trial = self.proposals.next_trial()
                if trial is None:
                    break
                self._ready.append(trial)
            count = min(size, -(-len(self._ready) // self.slots))  # leave work for the other slots
            group = [self._ready.popleft() for _ in range(count)]
        self.group_number += 1
        self._open |= {trial.key: (trial, self.group_number) for trial in group}
        return group

    def _size(self) -> int:
        """Return the number of trials that fill a group's duration; 1 until the first trial has ended."""
        if not self.may_share:
            return 1
        return min(max(int(_GROUP_SECONDS / (self._seconds + _OVERHEAD)), 1), _MAX_TRIALS)

    def is_open(self, key: str, group_number: int) -> bool:
        """Return whether a trial was started with this group and has neither ended nor been queued again."""
        return key in self._open and self._open[key][1] == group_number

    def close(self, key: str, seconds: float | None = None) -> None:
        """Record that a trial ended or paused, after `seconds` of training if it finished."""
        self._open.pop(key, None)
        if seconds is not None:
            mean = self._seconds if math.isfinite(self._seconds) else seconds
            self._seconds = mean + _WEIGHT * (seconds - mean)

    def requeue(self, keys: Iterable[str], *, alone: bool) -> None:
        """Queue again the trials that have not started; with `alone`, each then gets its own call."""
        trials = [self._open.pop(key)[0] for key in keys if key in self._open]
        (self._single_trials if alone else self._ready).extendleft(reversed(trials))
