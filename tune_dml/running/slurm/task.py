"""A task of an array: train a group of trials one after the other, without Ray.

<sweep>/slurm/round.json             the groups of this round
<sweep>/trials/<key>/array.jsonl     messages of a trial, one per line, for the collecting job
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tune_dml.planning.request import Resources
from tune_dml.programs.command import Program
from tune_dml.record.events import JsonRow
from tune_dml.record.ledger import append_rows, open_whole, trial_folder
from tune_dml.running.trials.messages import Message, TrialRequest

_INTERRUPTED = 130


class _TimeIsUp(BaseException):
    """SLURM's signal: the time is up, or the job is preempted or cancelled."""


@dataclass(frozen=True)
class Round:
    """The trials of one array."""

    groups: tuple[tuple[TrialRequest, ...], ...]
    cache_dir: str
    cpus: int
    gpus: float | None
    """None means those that SLURM gives."""
    micro_batch: int | None
    digests: Mapping[str, Mapping[str, str]]
    """Settings of data -> digests of the data sets (`planning.checks.data.known_digests`)."""
    metric: str
    program: Program | None = None
    """The user's program that trains each trial."""

    def to_json(self) -> JsonRow:
        """Return the fields."""
        return {**vars(self), "program": vars(self.program) if self.program else None}

    @classmethod
    def read(cls, folder: Path) -> Round:
        """Return the round that a sweep's folder has."""
        found = json.loads((folder / "slurm" / "round.json").read_text(encoding="utf-8"))
        program = found["program"] and Program(**{**found["program"], "command": tuple(found["program"]["command"])})
        return cls(**{**found, "groups": tuple(map(tuple, found["groups"])), "program": program})


class TrialLog:
    """The messages of a trial, in its folder; the task writes them, the collecting job reads them."""

    def __init__(self, folder: Path, key: str):
        self.path = trial_folder(folder, key) / "array.jsonl"

    def write(self, message: Mapping[str, object]) -> None:
        """Append a message."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open_whole(self.path) as file:
            append_rows(file, json.loads(json.dumps(message, default=float)))

    def post(self, message: Message) -> None:
        """Append a message of a trial, its rows with the time."""
        rows = [{**row, "time": time.time()} for row in message.get("rows", ())]
        if message:  # an empty one is only a sign of life
            self.write({**message, **({"rows": rows} if rows else {})})

    def read(self) -> Iterator[JsonRow]:
        """Yield whole messages."""
        from tune_dml.record.ledger import GrowingFile

        for _, message in GrowingFile(self.path).unread():
            yield message

    @property
    def has_ended(self) -> bool:
        """Whether the trial's end is among them."""
        return any("ended" in message for message in self.read())


def run_task(folder: Path, number: int) -> int:
    """Train the trials of a task that have not ended; return 130 if SLURM interrupts it."""
    round_ = Round.read(folder)
    signal.signal(signal.SIGUSR1, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    for request in round_.groups[number]:
        log = TrialLog(folder, request["key"])
        if log.has_ended:
            continue
        requeued = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
        log.write({"began": {"host": socket.gethostname(), "time": time.time(), "requeued": requeued}})
        try:
            _train(folder, request, round_, log)
        except _TimeIsUp:
            log.write({"cut": time.time()})
            return _INTERRUPTED
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _TimeIsUp


def _train(folder: Path, request: TrialRequest, round_: Round, log: TrialLog) -> None:
    """Train one trial, or run its program; write its rows and end into its log. Raise _TimeIsUp if SLURM interrupts it."""
    from tune_dml.running.failures import classify
    from tune_dml.running.trials.trial import TrialRuntime, run_request

    gpus = round_.gpus if round_.gpus is not None else float(gpus_given(os.environ) > 0)
    runtime = TrialRuntime(
        folder,
        folder / "trials",
        Resources(cpus_per_worker=round_.cpus, gpus_per_worker=gpus, micro_batch=round_.micro_batch),
        Path(round_.cache_dir),
        digests=round_.digests,
        program=round_.program,
        metric=round_.metric,
    )
    try:
        run_request(request, runtime, log.post)
    except Exception as error:  # a retry may help
        log.write({"note": classify(error).reason})


def gpus_given(environment: Mapping[str, str]) -> int:
    """Return the number of GPUs that SLURM gave to this process."""
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return len(visible) if environment.get("SLURM_JOB_GPUS") or environment.get("SLURM_STEP_GPUS") else 0
