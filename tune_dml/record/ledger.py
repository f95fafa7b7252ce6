"""The sweep's own record on disk: append-only, written by the driver alone, the single source of truth.

    <sweep>/plan.json            what the sweep is
    <sweep>/ledger.jsonl         one line an event: cells proposed, trials started, ended, retried; notes said aloud
    <sweep>/trials/<key>/        history.jsonl (one row an evaluation), checkpoint.pt while unfinished, trial.log

Resume, MLflow and the report all read this. A line is either whole or absent: a torn last line (kill -9, full disk) is cut
off when the ledger is opened for writing, and ignored when it is read.
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
from typing import Any, Literal, Self, TextIO

from trainables.errors import ConfigError, Problem

Status = Literal["finished", "diverged", "failed"]
Kind = Literal["cell", "started", "retry", "ended", "reset", "note", "session"]


@dataclass(frozen=True)
class Event:
    """One line of the ledger."""

    kind: Kind
    time: float
    """Seconds since the epoch, fixed when the event happened: replays reuse it."""
    key: str = ""
    """The trial, where the event is about one."""
    body: Mapping[str, Any] = field(default_factory=dict)


def trial_folder(sweep: Path, key: str) -> Path:
    """Where a trial keeps its history, log and checkpoint."""
    return sweep / "trials" / key


def read_events(sweep: Path) -> list[Event]:
    """Every whole event of the ledger, in order."""
    return [Event(**row) for row in _rows(sweep / "ledger.jsonl")]


def read_history(sweep: Path, key: str) -> list[dict[str, Any]]:
    """A trial's evaluations in order of step; a row reported twice (retry, replay) appears once, as first written."""
    rows: dict[int, dict[str, Any]] = {}
    for row in _rows(trial_folder(sweep, key) / "history.jsonl"):
        rows.setdefault(int(row["step"]), row)
    return [rows[step] for step in sorted(rows)]


class Ledger:
    """The writer. One process at a time: a second one is refused with the pid of the first."""

    def __init__(self, sweep: Path):
        self.sweep = sweep
        self._lock: TextIO | None = None
        self._file: TextIO | None = None
        self._steps: dict[str, set[int]] = {}

    def __enter__(self) -> Self:
        self.sweep.mkdir(parents=True, exist_ok=True)
        self._lock = (self.sweep / "lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            pid = self._lock.read().strip()
            self._lock.close()
            rule = f"one process at a time may run a sweep; process {pid or '?'} is running this one"
            remedy = f"Follow it with `tune-dml status {self.sweep.name}`, or stop it first."
            raise ConfigError(Problem(self.sweep.name, rule, None, remedy)) from None
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        self._file = _open_whole(self.sweep / "ledger.jsonl")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._file, self._lock):
            if file is not None:
                file.close()
        self._file = self._lock = None

    def append(self, kind: Kind, key: str = "", /, **body: Any) -> Event:
        """Write one event and force it to disk."""
        if self._file is None:
            raise RuntimeError("the ledger is not open")
        event = Event(kind, time.time(), key, body)
        row = {"kind": kind, "time": event.time, "key": key, "body": body}
        _write(self._file, row)
        return event

    def report(self, key: str, row: Mapping[str, Any]) -> None:
        """Append one evaluation to a trial's history; a step already there is not written again."""
        path = trial_folder(self.sweep, key) / "history.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        seen = self._steps.setdefault(key, set()) or {int(old["step"]) for old in _rows(path)}
        if row["step"] in seen:
            return
        self._steps[key] = seen | {int(row["step"])}
        with _open_whole(path) as file:
            _write(file, {**row, "time": row.get("time", time.time())})


def _write(file: TextIO, row: Mapping[str, Any]) -> None:
    file.write(json.dumps(row, allow_nan=True) + "\n")
    file.flush()
    os.fsync(file.fileno())


def _open_whole(path: Path) -> TextIO:
    """Open for appending after cutting off a torn last line."""
    file = path.open("a+", encoding="utf-8")
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        file.truncate(data.rfind(b"\n") + 1)
    return file


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)
