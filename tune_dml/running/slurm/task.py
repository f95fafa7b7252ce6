"""A task of an array: train a group of trials one after the other, without Ray.

<sweep>/slurm/round.json             the groups of this round
<sweep>/trials/<key>/array.jsonl     what a trial said, one message a line, for the job that collects it
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
from typing import Any

from tune_dml.record.ledger import append_rows, open_whole, trial_folder
from tune_dml.running.trials.messages import Message, TrialRequest

_INTERRUPTED = 130


@dataclass(frozen=True)
class Round:
    """The trials of one array."""

    groups: tuple[tuple[TrialRequest, ...], ...]
    cache_dir: str
    threads: int
    micro_batch: int | None
    digests: Mapping[str, Mapping[str, str]]
    """Settings of data -> digests of the data sets (`planning.data.known_digests`)."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return dict(vars(self))

    @classmethod
    def read(cls, folder: Path) -> Round:
        """Return the round that a sweep's folder has."""
        found = json.loads((folder / "slurm" / "round.json").read_text(encoding="utf-8"))
        return cls(**{**found, "groups": tuple(tuple(group) for group in found["groups"])})


class TrialLog:
    """The messages of a trial, in its folder; the task writes them, the collecting job reads them."""

    def __init__(self, folder: Path, key: str):
        self.path = trial_folder(folder, key) / "array.jsonl"

    def write(self, message: Mapping[str, object]) -> None:
        """Append a message."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open_whole(self.path) as file:
            append_rows(file, json.loads(json.dumps(message, default=float)))

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield whole messages."""
        from tune_dml.record.ledger import GrowingFile

        for _, message in GrowingFile(self.path).unread():
            yield message

    @property
    def has_ended(self) -> bool:
        """Whether the trial's end is among them."""
        return any("ended" in message for message in self.read())


def run_task(folder: Path, number: int) -> int:
    """Train the trials of a task that have not ended; 130 where SLURM's time was up before."""
    round_ = Round.read(folder)
    signal.signal(signal.SIGUSR1, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    for request in round_.groups[number]:
        log = TrialLog(folder, request["key"])
        if log.has_ended:
            continue
        log.write({"began": {"host": socket.gethostname(), "time": time.time(), "job": os.environ.get("SLURM_JOB_ID")}})
        try:
            _train(folder, request, round_, log)
        except KeyboardInterrupt:
            log.write({"cut": time.time()})
            return _INTERRUPTED
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _train(folder: Path, request: TrialRequest, round_: Round, log: TrialLog) -> None:
    """Train one trial; its rows and end go into its log. Raises KeyboardInterrupt where SLURM interrupts it."""
    import torch

    from trainables.context import FolderContext
    from trainables.registries import foreign_code
    from tune_dml.planning.checks.data import of_data
    from tune_dml.record.events import TrialEnd
    from tune_dml.running.failures import classify
    from tune_dml.running.trials.trial import run_trial

    settings = json.loads(request["settings"])
    code = foreign_code(settings)
    if round_.micro_batch is not None:
        settings["training.micro_batch"] = round_.micro_batch
    context = FolderContext(
        trial_folder(folder, request["key"]),
        torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        threads=round_.threads,
        sink=lambda row: log.write({"rows": [{**row, "time": time.time()}]}),
        say=lambda text: log.write({"note": text}),
        on_resume=lambda step: log.write({"resumed": step}),
        digests=round_.digests.get(of_data(settings), {}),
    )
    try:
        end = run_trial(settings, context, Path(round_.cache_dir))
    except Exception as error:  # one that a retry may help
        message: Message = {"note": classify(error).reason}
        log.write(message)
        return
    from dataclasses import replace

    ended: TrialEnd = replace(end, code=code)
    log.write({"ended": ended.to_json(), "time": time.time()})
