"""Run one task of a SLURM array: train a group of trials one after the other, without Ray.

<sweep>/slurm/round.json             the groups of this round
<sweep>/trials/<key>/array.jsonl     messages of a trial, one per line, for the collecting job
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tune_dml.planning.request import Resources
from tune_dml.programs.command import Program
from tune_dml.record.events import JsonRow
from tune_dml.record.ledger import GrowingFile, append_rows, open_for_append, trial_folder
from tune_dml.running.trials.messages import Message, TrialRequest

_INTERRUPTED = 130


class _TaskInterrupted(BaseException):
    """Raised if the job's time or a budget is exhausted, or if SLURM preempts or cancels the job."""


_CHECK_BUDGET = 60.0
"""Fewest seconds between two checks of the budget. Each check reads the logs of all trials."""


@dataclass(frozen=True)
class Round:
    """The trials of one array."""

    groups: tuple[tuple[TrialRequest, ...], ...]
    cache_dir: str | None  # `--cache-dir`; None for the default of each node
    cpus: int
    gpus: float | None  # GPUs per worker; None for one if SLURM allocated any
    micro_batch: int | None
    digests: Mapping[str, Mapping[str, str]]  # `planning.checks.data.known_digests`
    metric: str
    program: Program | None = None  # the user's program that runs as each trial
    until: float | None = None  # time at which `--time-budget` is exhausted, in seconds since the epoch
    seconds: float | None = None  # of training in this round: the remaining `--gpu-hours`
    began: float = 0.0  # time of the submission that the round belongs to

    def to_json(self) -> JsonRow:
        """Return the fields as JSON data."""
        return {**vars(self), "program": vars(self.program) if self.program else None}

    @classmethod
    def read(cls, folder: Path) -> Round:
        """Read the round from a sweep's folder."""
        stored = json.loads((folder / "slurm" / "round.json").read_text(encoding="utf-8"))
        program = stored["program"] and Program(**{**stored["program"], "command": tuple(stored["program"]["command"])})
        return cls(**{**stored, "groups": tuple(map(tuple, stored["groups"])), "program": program})


class TrialLog:
    """Log of a trial's messages in the trial's folder. The task writes it; the collecting job reads it."""

    def __init__(self, folder: Path, key: str):
        self.path = trial_folder(folder, key) / "array.jsonl"

    def write(self, message: Mapping[str, object]) -> None:
        """Append a message."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open_for_append(self.path) as file:
            append_rows(file, json.loads(json.dumps(message, default=float)))

    def post(self, message: Message) -> None:
        """Append a trial's message, with the time in it and in its rows."""
        rows = [{**row, "time": time.time()} for row in message.get("rows", ())]
        if message:  # an empty message only shows that the trial is at work
            self.write({**message, **({"rows": rows} if rows else {}), "time": time.time()})

    def read(self) -> Iterator[JsonRow]:
        """Yield the complete messages; skip torn ones."""
        for _, message in GrowingFile(self.path).read_new():
            yield message

    def new_messages(self) -> list[JsonRow]:
        """Return the messages that no job has collected yet."""
        messages: list[JsonRow] = []
        for message in self.read():
            if "collected" in message:
                messages.clear()
            else:
                messages.append(message)
        return messages

    @property
    def has_ended(self) -> bool:
        """Whether the trial has ended in this round."""
        return any("ended" in message for message in self.new_messages())


def attempts_of(messages: Iterable[JsonRow]) -> list[list[JsonRow]]:
    """Split messages into attempts; each starts with a message `began`."""
    attempts: list[list[JsonRow]] = []
    for message in messages:
        if "began" in message:
            attempts.append([message])
        elif attempts:
            attempts[-1].append(message)
    return attempts


def span_of(attempt: list[JsonRow]) -> tuple[float, float]:
    """Return the times of an attempt's start and of its last message."""
    began = float(attempt[0]["began"]["time"])
    times = [message.get("time") or message.get("cut") for message in attempt]
    times += [row["time"] for message in attempt for row in message.get("rows", ())]
    return began, max([began, *(time for time in times if time)])


def run_task(folder: Path, number: int) -> int:
    """Train a task's unfinished trials. Return 0, or 130 if a budget is exhausted or SLURM interrupts the task."""
    round_ = Round.read(folder)
    for signal_number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGALRM):
        signal.signal(signal_number, _interrupt)
    budget = _Budget(folder, round_)
    for request in round_.groups[number]:
        log = TrialLog(folder, request["key"])
        try:  # a signal may come between two trials
            if log.has_ended:
                continue
            if budget.is_exhausted():
                return _INTERRUPTED
            requeued = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
            log.write({"began": {"host": socket.gethostname(), "time": time.time(), "requeued": requeued}})
            budget.start_timer()
            _train(folder, request, round_, log, budget)
        except _TaskInterrupted:
            log.write({"cut": time.time()})
            return _INTERRUPTED
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    for signal_number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGALRM):
        signal.signal(signal_number, lambda number, frame: None)  # SIG_IGN would make Python warn about pending signals
    raise _TaskInterrupted


class _Budget:
    """Checks the remaining budgets of a command, which all tasks of an array share."""

    def __init__(self, folder: Path, round_: Round):
        self._round = round_
        self._logs = [TrialLog(folder, request["key"]) for group in round_.groups for request in group]
        self._checked_at = time.monotonic()

    def start_timer(self) -> None:
        if self._round.until is not None:
            signal.setitimer(signal.ITIMER_REAL, max(self._round.until - time.time(), 0.001))

    def is_exhausted(self) -> bool:
        now = time.time()
        if self._round.until is not None and now >= self._round.until:
            return True
        if self._round.seconds is None:
            return False
        return sum(_training_seconds(log.new_messages(), now) for log in self._logs) >= self._round.seconds

    def check(self) -> None:
        """Interrupt this process if a budget is exhausted; check once a minute, less often in large arrays."""
        if self._round.seconds is None or time.monotonic() - self._checked_at < max(_CHECK_BUDGET, len(self._logs)):
            return
        self._checked_at = time.monotonic()
        if self.is_exhausted():
            os.kill(os.getpid(), signal.SIGUSR1)


def _training_seconds(messages: list[JsonRow], now: float) -> float:
    """Return the total seconds of a trial's attempts; an unfinished one counts up to `now`."""
    attempts = attempts_of(messages)
    spans = [span_of(attempt) for attempt in attempts]
    if attempts and not attempts[-1][-1].keys() & {"cut", "ended", "lost"}:
        spans[-1] = (spans[-1][0], now)
    return sum(end - began for began, end in spans)


def _train(folder: Path, request: TrialRequest, round_: Round, log: TrialLog, budget: _Budget) -> None:
    """Train one trial, or run the user's program; log its rows and end. SLURM may interrupt it."""
    from tune_dml.running.failures import classify
    from tune_dml.running.trials.trial import TrialRuntime, run_request

    gpus = round_.gpus if round_.gpus is not None else float(allocated_gpus(os.environ) > 0)
    runtime = TrialRuntime(
        folder,
        folder / "trials",
        Resources(cpus_per_worker=round_.cpus, gpus_per_worker=gpus, micro_batch=round_.micro_batch),
        Path(round_.cache_dir) if round_.cache_dir else None,
        digests=round_.digests,
        program=round_.program,
        metric=round_.metric,
    )

    def post(message: Message) -> None:
        log.post(message)
        if "ended" not in message:
            budget.check()

    try:
        run_request(request, runtime, post)
    except Exception as error:  # a retryable error: the next round repeats the trial
        log.write({"note": classify(error).reason, "time": time.time(), "lost": True})


def allocated_gpus(environment: Mapping[str, str]) -> int:
    """Return the number of GPUs that SLURM gave to this process."""
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return len(visible) if environment.get("SLURM_JOB_GPUS") or environment.get("SLURM_STEP_GPUS") else 0
