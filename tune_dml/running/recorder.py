"""Ray Tune callback: append trial events to the ledger, then update the live view and MLflow."""

import contextlib
import json
import os
import socket
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import ray.cloudpickle
from ray.tune import Callback
from ray.tune.experiment import Trial as TuneTrial

from tune_dml.record import events
from tune_dml.record.fetching import TrialFileCollector
from tune_dml.running.cluster.placement import OrphanedPlacements
from tune_dml.running.driver import Driver
from tune_dml.running.failures import TRIAL_RETRIES, Failure, classify
from tune_dml.running.search.groups import TrialGroups
from tune_dml.running.search.proposals import diverged_value, proposals_for, value_of
from tune_dml.running.trials.limits import BudgetStopper, StallDetector
from tune_dml.running.trials.messages import Message, TrialRequest, parse_message, requests_of, split_messages

_LOST = "its process was lost"


class _Hosts(WeakKeyDictionary[Any, str]):
    """Maps each actor to its host, which Tune learns only with the first report."""

    def host_of(self, process: Any) -> str:
        if process not in self:
            try:
                self[process], _ = ray.get(process.get_current_ip_pid.remote(), timeout=5.0)
            except ray.exceptions.RayError:  # the actor died; Tune will report it
                return socket.gethostname()
        return self[process]

    def suffix(self, process: Any) -> str:
        """Return ` on 10.0.0.7` if an actor is on another node than the driver, otherwise an empty string."""
        host = process and self.get(process)
        return f" on {host}" if host and host != ray.util.get_node_ip_address() else ""


class _GroupCalls:
    """Maps each call of the trial function to its trials that have not ended.

    The key of a call is the key of its first trial.
    """

    def __init__(self) -> None:
        self._open: dict[str, dict[str, TrialRequest]] = {}

    def trials(self, config: TrialRequest) -> dict[str, TrialRequest]:
        call = config["key"]
        if call not in self._open:
            self._open[call] = {request["key"]: request for request in requests_of(config)}
        return self._open[call]

    def end(self, call: str) -> None:
        self._open.pop(call, None)

    def drop_later_trials(self, config: TrialRequest) -> list[str]:
        """Keep only the running trial in a call and its configuration; return the keys of the later trials."""
        (_, running), *later = self.trials(config).items()
        self.end(config["key"])
        own_request = {name: value for name, value in running.items() if name != "more"}
        config.clear()  # type: ignore[attr-defined]
        config.update(own_request)  # type: ignore[typeddict-item]
        return [key for key, _ in later]


class Recorder(Callback):  # type: ignore[misc]
    """Appends trial events to the ledger, then updates the live view and MLflow."""

    def __init__(self, driver: Driver):
        self.driver = driver
        self.ledger, self.progress, self.tracker = driver.ledger, driver.progress, driver.tracker
        resources, session, state = driver.resources, driver.session, driver.state
        self.started: dict[str, float] = {}
        self.processes: dict[str, object] = {}  # key -> the Ray actor that runs the trial or will run it
        self.hosts = _Hosts()
        self.micro_batch = resources.micro_batch
        self.spending = BudgetStopper(driver.share, session.gpu_hours)
        self.stall_detector = StallDetector(session.stall_limit, session.start_limit)
        self.storage = session.trial_files or state.folder / "trials"  # below it each trial keeps its files
        self.files = TrialFileCollector(self.ledger, self.storage, self.progress.note)
        self.stall_failures: dict[str, Failure] = {}  # why we killed its actor, until Ray reports the loss
        self.placement_groups: set[str] = set()
        """Placement groups of workers. Ray Train leaves them if a trial's process is killed and no dashboard runs."""
        self.calls = _GroupCalls()
        self.orphaned_placements = OrphanedPlacements(resources)
        self.losses: Counter[str] = Counter()  # lost processes, without losses by preemption
        self.diverged = diverged_value(state, driver.plan)
        self.proposals = proposals_for(state, driver.plan, self.ledger.write, self.progress, self.stop)
        self.groups = TrialGroups(self.proposals)

    def __getstate__(self) -> dict[str, object]:
        return {}

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Record that a call and its first trial start or restart."""
        call = trial.config["key"]
        self.processes[call] = trial.temporary_state.ray_actor
        trial.run_metadata.num_failures = self.losses[call]
        self.spending.begin(call)
        self.stall_detector.watch(call, has_stepped=False)
        self._begin(trial, next(iter(self.calls.trials(trial.config).values())))
        self.tracker.notify()

    def _begin(self, trial: TuneTrial, request: TrialRequest, seconds_ago: float = 0.0) -> None:
        key, host = request["key"], self.hosts.host_of(trial.temporary_state.ray_actor)
        self.started[key] = time.monotonic() - seconds_ago
        away, began = isinstance(self.storage, str), time.time() - seconds_ago
        self.ledger.write(events.TrialStarted(key=key, time=began, host=host, away=away, micro_batch=self.micro_batch))
        steps = json.loads(request["settings"]).get("training.steps")  # a program's parameter may have this name
        steps = steps if isinstance(steps, int) else 0
        self.progress.started(key, request["label"], request["seed"], steps, ago=seconds_ago)

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, object], **info: Any
    ) -> None:
        """Record the rows, notes and ends of a call's trials."""
        call, message = trial.config["key"], parse_message(result)
        if "placed" in message:  # not a training step
            self.placement_groups.add(message["placed"])
            return
        self.stall_detector.watch(call, has_stepped=True)
        messages = split_messages(message)
        with self.ledger.batch() if len(messages) > 1 else contextlib.nullcontext():
            for trial_message in messages:
                self._record_message(trial, trial_message)
        if "over" in message or not self.calls.trials(trial.config):
            self._end_call(call)
        self.tracker.notify()

    def _record_message(self, trial: TuneTrial, message: Message) -> None:
        call = trial.config["key"]
        key = message.get("key", call)
        request = self.calls.trials(trial.config).get(key, trial.config)
        if (ago := message.get("begun")) is not None:
            self._begin(trial, request, ago)
        if (step := message.get("resumed")) is not None:
            self.ledger.write(events.TrialResumed(key=key, step=step))
        if rows := message.get("rows"):
            self.ledger.report(key, *rows)
            self.progress.report(key, rows[-1])
        if note := message.get("note"):
            self.ledger.restore_trials()  # the trial may wait for it
            where = self.hosts.suffix(self.processes.get(call))
            self.driver.note(f"{request['label']} seed {request['seed']}{where}: {note}")
        if ended := message.get("ended"):
            end = events.TrialEnd.from_json(ended)
            self.calls.trials(trial.config).pop(key, None)
            if end.status == "paused":
                self._pause(key, end.seconds or 0.0)
            else:
                self._end(key, end, time.time() - message.get("age", 0.0))

    def on_trial_recover(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Record a lost process. Tune restarts the running trial from its checkpoint; later ones are proposed again."""
        call = trial.config["key"]
        failure = self.stall_failures.pop(call, None) or _last_failure(trial)
        self.groups.requeue(self.calls.drop_later_trials(trial.config), alone=True)
        self._end_call(call)
        key = trial.config["key"]
        self.losses[key] += failure.kind != "preempted"
        trial.run_metadata.num_failures = self.losses[key]  # Tune compares it with the retries
        why = "its node was taken away" if failure.kind == "preempted" else failure.reason
        why = _LOST if failure.is_process_lost else why.removeprefix("infrastructure: ").rstrip(".")
        self.ledger.write(events.TrialRetried(key=key))
        self.driver.note(f"{trial.config['label']} seed {trial.config['seed']}: {why}; retrying from the checkpoint")

    def on_process(self, trial: TuneTrial, process: Any, new: bool) -> None:
        """Start waiting for the answer of a trial's actor, with which the trial starts."""
        key = trial.config["key"]
        if self.processes.get(key) is not process:
            self.processes[key] = process
            self.stall_detector.watch(key, has_stepped=not new)

    def on_step_end(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        """Kill the actors of stalled trials and remove orphaned placement groups, several times a second."""
        self.files.record_fetched()
        for key, failure in self.stall_detector.find_stalled().items():
            self.stall_failures[key] = failure
            self.stall_detector.end(key)
            if (process := self.processes.pop(key, None)) is not None:
                ray.kill(process)
        self.orphaned_placements.remove_placement_groups()

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Record a trial that failed after its last retry."""
        call = trial.config["key"]
        failure = self.stall_failures.pop(call, None) or _last_failure(trial)
        is_loss = failure.is_process_lost or failure.kind in {"stalled", "preempted"}
        reason = f"{'lost' if is_loss else 'failed'} {TRIAL_RETRIES + 1} times: {failure.reason}"
        self.groups.requeue(self.calls.drop_later_trials(trial.config), alone=True)
        self._end_call(call)
        self._end(trial.config["key"], events.TrialEnd("failed", reason, kind=failure.kind))

    def on_experiment_end(self, trials: list[TuneTrial], **info: Any) -> None:
        """Change to the sweep's folder if the working directory was deleted, because Tune and MLflow need one."""
        try:
            Path.cwd()
        except FileNotFoundError:
            os.chdir(self.ledger.sweep)

    def wait(self, resource: str) -> None:
        """Print and record the resource that the sweep waits for; an empty string ends the wait."""
        self.ledger.write(events.Waiting(text=resource))
        self.progress.waiting(f"waits for {resource}" if resource else "continues: it has resources")

    def stop(self, key: str, end: events.TrialEnd, at: float = 0.0) -> None:
        """Record a trial's end, at the present time by default, and delete its checkpoint."""
        self.ledger.write(events.TrialEnded(key=key, time=at, end=end))
        self.files.collect(key)
        self.progress.ended(key, end.status, end.metrics, end.reason, ago=time.time() - at if at else 0.0)

    def _pause(self, key: str, seconds: float) -> None:
        """Record that a trial waits at a rung without an actor."""
        self.groups.close(key)
        self.started.pop(key, None)
        self.ledger.write(events.TrialPaused(key=key, seconds=seconds))
        self.proposals.record_pause(key)
        self.progress.paused(key)

    def _end(self, key: str, end: events.TrialEnd, at: float = 0.0) -> None:
        began = self.started.pop(key, None)
        if end.seconds is None:
            end = replace(end, seconds=0.0 if began is None else time.monotonic() - began)
        self.groups.close(key, end.seconds if end.status == "finished" else None)
        self.stop(key, end, at)
        self.proposals.record_value(key, value_of(end, self.proposals.plan.metric, self.diverged))

    def _end_call(self, call: str) -> None:
        self.calls.end(call)
        self.processes.pop(call, None)
        self.spending.end(call)
        self.stall_detector.end(call)


def _last_failure(trial: TuneTrial) -> Failure:
    """Classify a trial's last error: the pickled error, else its text, else a lost process."""
    with contextlib.suppress(Exception):  # a user's error may not unpickle
        return classify(ray.cloudpickle.loads(Path(trial.pickled_error_file).read_bytes()))
    try:
        return classify(Path(trial.error_file).read_text().rpartition("Failure # ")[2])
    except (OSError, TypeError):
        return Failure("infrastructure", _LOST, is_process_lost=True)
