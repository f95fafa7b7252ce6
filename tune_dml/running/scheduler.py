"""Replacements for Tune's scheduler, its reporter and its fixed number of concurrent trials."""

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from ray.tune import Callback
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import ConcurrencyLimiter

from tune_dml.running import ray_internals
from tune_dml.running.trials.messages import parse_message

_COUNT_INTERVAL = 5.0  # seconds between two counts of the cluster's nodes
_LONG_WAIT = 30.0
"""Seconds without resources for any trial before the sweep reports it: nodes may join, other sweeps may end."""

_QUIET_TUNE = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # we print one line per lost process
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    # These warnings of Tune raise an error while a sweep has no trial.
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1000000000",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S_AUTOSCALER": "1000000000",
}


class NullReporter(TrialProgressCallback):  # type: ignore[misc]
    """Replaces Tune's progress reporter; reports nothing and stores no trial."""

    def on_trial_result(self, *_: Any, **info: Any) -> None:
        """Do nothing."""

    on_trial_error = on_trial_complete = on_trial_result


class TuneScheduler(FIFOScheduler):  # type: ignore[misc]
    """Starts trials in order, drops finished ones, and reports when no trial has resources.

    If an actor is lost when it is about to take over a trial, Tune reports the loss twice, the second time as the
    trial's end, and waits for the lost actor's answer. This class prevents both.
    """

    def __init__(
        self,
        on_process: Callable[[TuneTrial, Any, bool], None],
        on_wait: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Create the scheduler. `on_process` gets a trial, the actor that will run it, and whether the actor is new.

        `on_wait` gets the resource that all trials wait for, and an empty string when the wait ends.
        """
        super().__init__()
        self.on_process = on_process
        self.on_wait = on_wait
        self._clock = clock
        self._waiting_since = math.inf  # infinite while a trial has resources
        self._is_waiting = False
        self.lost_resets: set[TuneTrial] = set()

    def choose_trial_to_run(self, tune_controller: Any) -> TuneTrial | None:
        """Return the next waiting trial, those without an actor first.

        Tune gives the returned trial the actor of the trial that just ended. A trial that already has an actor would
        first end that actor, which costs a second start.
        """
        for trial in [trial for trial in tune_controller.get_trials() if trial.is_finished()]:
            ray_internals.drop_finished(tune_controller, trial)
        tune_controller.update_max_pending_trials()  # the number of concurrent trials grows as nodes join
        waiting, live = [], tune_controller.get_live_trials()
        for trial in live:
            if trial.status == TuneTrial.PENDING:
                new_actor = ray_internals.actor_being_created(tune_controller, trial)
                if (actor := trial.temporary_state.ray_actor or new_actor) is not None:
                    self.on_process(trial, actor, actor is new_actor)
            if trial.status in {TuneTrial.PENDING, TuneTrial.PAUSED}:
                waiting.append(trial)
        self._report_waiting(bool(live) and not any(ray_internals.is_placed(tune_controller, trial) for trial in live))
        return min(waiting, key=lambda trial: ray_internals.is_placed(tune_controller, trial), default=None)

    def _report_waiting(self, lacks_resources: bool) -> None:
        if self.on_wait is None:
            return
        now = self._clock()
        self._waiting_since = min(self._waiting_since, now) if lacks_resources else math.inf
        is_waiting = now - self._waiting_since >= _LONG_WAIT
        if is_waiting != self._is_waiting:
            self._is_waiting = is_waiting
            self.on_wait("resources: the present nodes have too few for a trial" if is_waiting else "")

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, object]) -> str:
        """Stop a trial at its closing report, because Tune would ask its actor for one more result."""
        message = parse_message(result)
        if "spent" in message:
            ray_internals.end_with_trial(tune_controller, trial)
        return str(self.STOP if "ended" in message or "over" in message else self.CONTINUE)

    def on_trial_error(self, tune_controller: Any, trial: TuneTrial) -> None:
        """Stop waiting for a lost actor that was about to take over the trial."""
        if ray_internals.cancel_actor_reset(tune_controller, trial):
            self.lost_resets.add(trial)

    def on_trial_add(self, tune_controller: Any, trial: TuneTrial) -> None:
        """Pause a trial whose next actor was lost, so that the second report of the loss does not end it."""
        if trial in self.lost_resets:
            self.lost_resets.discard(trial)
            ray_internals.mark_paused(tune_controller, trial)


class GrowingConcurrency(Callback):  # type: ignore[misc]
    """Raises the number of concurrent trials as nodes join. After the loss of a node its trials wait.

    Tune fixes this number at the start. A thread counts the nodes, so that an unresponsive head does not block Tune.
    """

    def __init__(self, limiter: ConcurrencyLimiter, fits: Callable[[], int], on_growth: Callable[[int], None]):
        """Create the callback. `fits` counts the trials that fit on the cluster now."""
        self.limiter, self.fits, self.on_growth = limiter, fits, on_growth
        self.concurrent = int(limiter.max_concurrent)
        self._over = threading.Event()

    def __getstate__(self) -> dict[str, object]:
        return {}

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._count_repeatedly, daemon=True, name="concurrency")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Raise the limit before Tune asks for trials."""
        if self.concurrent > self.limiter.max_concurrent:
            self.limiter.set_max_concurrency(self.concurrent)
            self.on_growth(self.concurrent)

    def count(self) -> None:
        """Count the trials that fit now; may raise errors of Ray."""
        self.concurrent = self.fits()

    def _count_repeatedly(self) -> None:
        while not self._over.wait(_COUNT_INTERVAL):
            with contextlib.suppress(Exception):  # the head does not answer: try again later
                self.count()


def silence_tune() -> None:
    """Turn off Tune's output, files and snapshots, which the ledger and our live view replace."""
    for name, value in _QUIET_TUNE.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray").setLevel(logging.ERROR)
    # Do not report a failed last snapshot, as on a full disk.
    logging.getLogger("ray.tune.tune").setLevel(logging.CRITICAL)
