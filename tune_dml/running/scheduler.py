"""Replacements for Tune's scheduler, its reporter and its fixed number of concurrent trials."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ray.tune import Callback
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import ConcurrencyLimiter

from tune_dml.running.ray_internals import (
    actor_being_created,
    cancel_actor_reset,
    drop_finished,
    end_with_trial,
    is_placed,
    mark_paused,
)
from tune_dml.running.trials.messages import read_message

_PACE = 5.0
"""Seconds between two counts of the cluster's nodes."""
_LONG_WAIT = 30.0
"""Seconds without resources for any trial before a sweep reports it: nodes may join, other sweeps' trials may end."""


class NullReporter(TrialProgressCallback):  # type: ignore[misc]
    """Reports nothing, and keeps no trial."""

    def on_trial_result(self, *_: Any, **info: Any) -> None:
        """Do nothing."""

    def on_trial_error(self, *_: Any, **info: Any) -> None:
        """Do nothing."""

    def on_trial_complete(self, *_: Any, **info: Any) -> None:
        """Do nothing."""


class TuneScheduler(FIFOScheduler):  # type: ignore[misc]
    """First come, first served; drops finished trials, and reports when no trial has resources.

    Tune counts the loss of an actor that is about to take over a trial twice, the second time as the trial's end, and
    waits for the lost actor to answer. This class undoes both.
    """

    def __init__(
        self,
        on_process: Callable[[TuneTrial, Any, bool], None],
        on_wait: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Create the scheduler.

        Args:
            on_process: called with a trial, the process that is to run it, and whether that process is new.
            on_wait: called with what the trials wait for, and with an empty text when they no longer wait; None reports nothing.
            clock: returns monotonic seconds.
        """
        super().__init__()
        self.on_process = on_process
        self.on_wait = on_wait
        self._clock = clock
        self._without_room_since: float | None = None
        self._is_waiting = False
        self.lost: set[TuneTrial] = set()

    def choose_trial_to_run(self, tune_controller: Any) -> TuneTrial | None:
        """Return the next waiting trial, those without an actor first.

        The actor of the trial that just ended is given to the returned one. A trial that already has an actor would have to
        end that one first: two starts for one.
        """
        for trial in [trial for trial in tune_controller.get_trials() if trial.is_finished()]:
            drop_finished(tune_controller, trial)
        tune_controller.update_max_pending_trials()  # the limit of trials at once grows as nodes join
        waiting, live = [], tune_controller.get_live_trials()
        for trial in live:
            if trial.status == TuneTrial.PENDING:
                handed_over, created = trial.temporary_state.ray_actor, actor_being_created(tune_controller, trial)
                if (process := handed_over or created) is not None:
                    self.on_process(trial, process, process is created)
            if trial.status in {TuneTrial.PENDING, TuneTrial.PAUSED}:
                waiting.append(trial)
        self._report_waiting(bool(live) and not any(is_placed(tune_controller, trial) for trial in live))
        return min(waiting, key=lambda trial: is_placed(tune_controller, trial), default=None)

    def _report_waiting(self, lacks_room: bool) -> None:
        """Report once that no trial has had resources for half a minute, and once that one has them again."""
        if self.on_wait is None:
            return
        now = self._clock()
        if not lacks_room:
            self._without_room_since = None
        elif self._without_room_since is None:
            self._without_room_since = now
        since = self._without_room_since
        is_waiting = since is not None and now - since >= _LONG_WAIT
        if is_waiting != self._is_waiting:
            self._is_waiting = is_waiting
            self.on_wait("resources: the present nodes have too few for a trial" if is_waiting else "")

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, object]) -> str:
        """End a trial with its closing report; Tune would ask its actor for one more result."""
        message = read_message(result)
        if "spent" in message:
            end_with_trial(tune_controller, trial)
        return str(self.STOP if "ended" in message or "over" in message else self.CONTINUE)

    def on_trial_error(self, tune_controller: Any, trial: TuneTrial) -> None:
        """Stop waiting for a lost actor that was about to take over the trial."""
        if cancel_actor_reset(tune_controller, trial):
            self.lost.add(trial)

    def on_trial_add(self, tune_controller: Any, trial: TuneTrial) -> None:
        """Pause a trial whose next actor was lost, so that the second report of the loss does not end it."""
        if trial in self.lost:
            self.lost.discard(trial)
            mark_paused(tune_controller, trial)


class GrowingConcurrency(Callback):  # type: ignore[misc]
    """Raises the number of concurrent trials as nodes join; trials of a lost node wait.

    Tune fixes that number at the start. A thread counts the nodes, so that no unresponsive head blocks Tune's loop.
    """

    def __init__(self, limiter: ConcurrencyLimiter, fits: Callable[[], int], on_growth: Callable[[int], None]):
        """Take Tune's limiter, a count of trials that fit now, and a callback for growth."""
        self.limiter, self.fits, self.on_growth = limiter, fits, on_growth
        self.room = int(limiter.max_concurrent)
        self._over = threading.Event()

    def __getstate__(self) -> dict[str, object]:
        return {}

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._keep_up, daemon=True, name="concurrency")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Raise the limit before Tune asks for trials."""
        if self.room > self.limiter.max_concurrent:
            self.limiter.set_max_concurrency(self.room)
            self.on_growth(self.room)

    def look(self) -> None:
        """Count the trials that fit now; may raise errors of Ray's."""
        self.room = self.fits()

    def _keep_up(self) -> None:
        while not self._over.wait(_PACE):
            with contextlib.suppress(Exception):  # the head does not answer: try again later
                self.look()


def silence_tune() -> None:
    """Turn off Tune's screen, files and snapshots: the ledger and our live view replace them."""
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1000000")
    os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")  # we print one line per lost process
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_RESULT_BUFFER_LENGTH", "1")
    # This warning raises an error while a sweep waits without any trial.
    for name in ("", "_AUTOSCALER"):
        os.environ.setdefault(f"TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S{name}", "1000000000")
    logging.getLogger("ray").setLevel(logging.ERROR)
    # Do not report a failed last snapshot, as on a full disk.
    logging.getLogger("ray.tune.tune").setLevel(logging.CRITICAL)
