"""The sweep's own record on disk: append-only, written by the driver alone, the single source of truth.

    <sweep>/plan.json            what the sweep is
    <sweep>/ledger.jsonl         one line an event: cells proposed, trials begun, ended, retried; notes; a race's blocks;
                                 test metrics opened, seeds to confirm with
    <sweep>/looks.jsonl          who looked at it, which any process may write (`tune_dml.record.looks`)
    <sweep>/trials/<key>/        history.jsonl (one row an evaluation), checkpoint.pt while unfinished, sealed.json

`tune_dml.record.state` folds the events into where the sweep stands. A line is either whole or absent: a torn last line
(kill -9, full disk) is cut off when the ledger is opened for writing, and ignored when it is read.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

from filelock import FileLock, Timeout

from trainables.errors import ConfigError, Problem

LEDGER = "ledger.jsonl"

TrialKind = Literal["started", "retry", "ended", "reset"]
RaceKind = Literal["race", "block", "judged", "settled", "reopened", "race_over"]
Kind = TrialKind | RaceKind | Literal["cell", "note", "session", "opened", "confirm"]


@dataclass(frozen=True)
class Event:
    """One line of the ledger."""

    kind: Kind
    time: float
    """Seconds since the epoch, fixed when the event happened: replays reuse it."""
    key: str = ""
    """The trial, where the event is about one."""
    body: Mapping[str, Any] = field(default_factory=dict)
    behind: int = 0
    """Where its line ends in the ledger."""


def trial_folder(sweep: Path, key: str) -> Path:
    """Where a trial keeps its history, log and checkpoint."""
    return sweep / "trials" / key


@dataclass
class GrowingFile:
    """A file of JSON lines that is appended to, read from where the last reading stopped."""

    path: Path
    offset: int = 0
    """How much of it has been read."""

    @property
    def grown(self) -> bool:
        """Whether there is something unread."""
        try:
            return self.path.stat().st_size > self.offset
        except FileNotFoundError:
            return False

    def unread(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(offset behind it, row) of every whole unread line; `offset` stays until the reader moves it."""
        if not self.grown:
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            behind = self.offset
            for line in file:
                if not line.endswith(b"\n"):  # torn: its writer died, or is at work
                    return
                behind += len(line)
                yield behind, json.loads(line)


def history_file(sweep: Path, key: str) -> GrowingFile:
    """The evaluations of a trial, unread."""
    return GrowingFile(trial_folder(sweep, key) / "history.jsonl")


def read_events(sweep: Path, start: int = 0) -> list[Event]:
    """Every whole event of the ledger from `start`, where an earlier reading ended, in order."""
    return [Event(**row, behind=behind) for behind, row in GrowingFile(sweep / LEDGER, start).unread()]


def read_history(sweep: Path, key: str) -> list[dict[str, Any]]:
    """A trial's evaluations in order of step; a row reported twice (retry, replay) appears once, as first written."""
    rows: dict[int, dict[str, Any]] = {}
    for _, row in history_file(sweep, key).unread():
        rows.setdefault(int(row["step"]), row)
    return [rows[step] for step in sorted(rows)]


class Ledger:
    """The writer. One process at a time: a second one is refused with the pid of the first."""

    def __init__(self, sweep: Path):
        self.sweep = sweep
        self._lock = FileLock(sweep / "lock", timeout=0)  # the kernel's: it is free when its process has died
        self._file: BinaryIO | None = None
        self._steps: dict[str, set[int]] = {}

    def __enter__(self) -> Self:
        self.sweep.mkdir(parents=True, exist_ok=True)
        lock = self.sweep / "lock"
        holder = lock.read_text().strip() if lock.exists() else ""  # first: some filelocks empty the file as they try
        try:
            self._lock.acquire()
        except Timeout:
            rule = f"one process at a time may run a sweep; process {holder or '?'} is running this one"
            remedy = f"Follow it with `tune-dml status {self.sweep.name}`, or stop it first."
            raise ConfigError(Problem(self.sweep.name, rule, None, remedy)) from None
        lock.write_text(str(os.getpid()))
        self._file = open_whole(self.sweep / LEDGER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._lock.release()

    def append(self, kind: Kind, key: str = "", /, **body: Any) -> None:
        """Write one event and force it to disk."""
        if self._file is None:
            raise RuntimeError("the ledger is not open")
        write_row(self._file, {"kind": kind, "time": time.time(), "key": key, "body": body})

    def report(self, key: str, row: Mapping[str, Any]) -> None:
        """Append one evaluation to a trial's history; a step already there is not written again."""
        path = history_file(self.sweep, key).path
        path.parent.mkdir(parents=True, exist_ok=True)
        if key not in self._steps:
            self._steps[key] = {int(old["step"]) for _, old in GrowingFile(path).unread()}
        if row["step"] in self._steps[key]:
            return
        self._steps[key].add(int(row["step"]))
        with open_whole(path) as file:
            write_row(file, {**row, "time": row.get("time", time.time())})


def is_running(sweep: Path) -> bool:
    """Whether a process of this machine, or of one that shares the folder, runs the sweep now: it holds the lock."""
    try:
        with (sweep / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def write_row(file: BinaryIO, row: Mapping[str, Any]) -> None:
    """Append one JSON line and force it to disk."""
    file.write(json.dumps(row, allow_nan=True).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def open_whole(path: Path) -> BinaryIO:
    """Open for appending after cutting off a torn last line."""
    file = path.open("a+b")
    if size := file.seek(0, os.SEEK_END):
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
    return file
