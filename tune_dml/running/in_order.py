"""What Tune is given in place of its scheduler and its screen, which look through all trials that ever were, and keep them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from ray.tune.experiment import Trial as TuneTrial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler

from tune_dml.running.messages import read_message
from tune_dml.running.ray_internals import (
    being_created,
    forget,
    has_a_place,
    let_idle_processes_go,
    no_longer_handed_over,
    not_handed_on,
    set_aside,
    withdraw,
)
from tune_dml.running.turn import Turn

_NONE = -1  # to Tune 0 is no number: it puts its own in place
_FREE = 0.1
"""Seconds for which a sweep that nobody goes before need not look again; Tune asks with every event, of all its trials."""


class Silent(TrialProgressCallback):  # type: ignore[misc]
    """Says nothing of a trial, and keeps none."""

    def on_trial_result(self, *_: Any, **info: Any) -> None:
        """Nothing."""

    def on_trial_error(self, *_: Any, **info: Any) -> None:
        """Nothing."""

    def on_trial_complete(self, *_: Any, **info: Any) -> None:
        """Nothing."""


class InOrder(FIFOScheduler):  # type: ignore[misc]
    """First come, first served; trials that have ended are let go; where others go before, those that have no place step back.

    Tune hands a process from trial to trial. A process that is lost just then it counts twice, the second time as the
    trial's end, and it goes on to wait for the lost process to answer: both are undone here.
    """

    def __init__(self, on_process: Callable[[TuneTrial, Any, bool], None], turn: Turn | None = None):
        """`turn`: of a sweep that shares its cluster with others."""
        super().__init__()
        self.on_process = on_process
        self.turn = turn
        self.with_workers: WeakSet[Any] = WeakSet()
        """Processes whose Ray Train workers have found room."""
        self._free_until = 0.0
        self.lost: set[TuneTrial] = set()

    def choose_trial_to_run(self, tune_controller: Any) -> TuneTrial | None:
        """A trial that waits, of those that have not ended; first one without a place.

        The process of a trial that has just ended is given to the one that is chosen. A trial whose own process is about to
        begin would leave that to be ended, once it has begun, before another may take its place: two starts for one.
        """
        for trial in [trial for trial in tune_controller.get_trials() if trial.is_finished()]:
            forget(tune_controller, trial)
        waiting = []
        for trial in tune_controller.get_live_trials():
            if trial.status == TuneTrial.PENDING:
                handed_over, created = trial.temporary_state.ray_actor, being_created(tune_controller, trial)
                if (process := handed_over or created) is not None:
                    self.on_process(trial, process, process is created)
            if trial.status in {TuneTrial.PENDING, TuneTrial.PAUSED}:
                waiting.append(trial)
        chosen = min(waiting, key=lambda trial: has_a_place(tune_controller, trial), default=None)
        return chosen if self.turn is None or self._may_begin(tune_controller, self.turn) else None

    def _may_begin(self, controller: Any, turn: Turn) -> bool:
        """Whether trials begin as they come; where others go before, Tune begins none but those that may still ask for room."""
        if self._free_until > time.monotonic():
            return True
        live = controller.get_live_trials()
        without = [trial for trial in live if not self._has_room(controller, trial, turn)]
        begun = sum(trial.status == TuneTrial.RUNNING for trial in without)
        may = turn.allowed(placed=len(live) - len(without), waiting=len(without), begun=begun)
        if may.held:
            asking = [
                trial for trial in without if trial.status == TuneTrial.PENDING and not has_a_place(controller, trial)
            ]
            for trial in asking[may.trials :]:
                withdraw(controller, trial)
            let_idle_processes_go(controller)
        elif may.trials is None:
            self._free_until = time.monotonic() + _FREE
        limit = turn.most if may.trials is None else may.trials
        controller.update_max_pending_trials(limit or _NONE)
        return not may.held

    def _has_room(self, controller: Any, trial: TuneTrial, turn: Turn) -> bool:
        if turn.places_late:
            return trial.temporary_state.ray_actor in self.with_workers
        return has_a_place(controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:
        """The closing report ends a trial, whatever becomes of its process: Tune would ask that for one more."""
        message = read_message(result)
        if "placed" in message:
            self.with_workers.add(trial.temporary_state.ray_actor)
        if "spent" in message:
            not_handed_on(tune_controller, trial)
        return str(self.STOP if "ended" in message else self.CONTINUE)

    def on_trial_error(self, tune_controller: Any, trial: TuneTrial) -> None:
        """The process is lost that a trial was about to take over: nobody waits for its answer."""
        if no_longer_handed_over(tune_controller, trial):
            self.lost.add(trial)

    def on_trial_add(self, tune_controller: Any, trial: TuneTrial) -> None:
        """Such a trial is to be tried again: the same loss, told again, ends no trial that is paused."""
        if trial in self.lost:
            self.lost.discard(trial)
            set_aside(tune_controller, trial)


def silence_tune() -> None:
    """Tune's own screen, files and snapshots: the ledger and our live view replace them."""
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1000000")
    os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")  # tracebacks of lost processes, which we say in a line
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_RESULT_BUFFER_LENGTH", "1")
    # A warning that we would not show, and that fails while a sweep waits without any trial.
    for name in ("", "_AUTOSCALER"):
        os.environ.setdefault(f"TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S{name}", "1000000000")
    logging.getLogger("ray").setLevel(logging.ERROR)
    # A last snapshot that fails, as on a full disk of Ray's.
    logging.getLogger("ray.tune.tune").setLevel(logging.CRITICAL)
