"""The sweep's own record on disk: append-only, written by the driver alone, the single source of truth.

    <sweep>/plan.json            what the sweep is
    <sweep>/ledger.jsonl         one line an event: cells proposed, trials begun, paused, ended, fetched, retried, rescored;
                                 notes; a race's blocks; test metrics opened, seeds to confirm with
    <sweep>/looks.jsonl          who looked at it, which any process may write (`tune_dml.record.looks`)
    <sweep>/trials/<key>/        history.jsonl (one row an evaluation), checkpoint*.pt while unfinished, sealed.json,
                                 hits_*.npz and embeddings_*.npz (`trainables.evidence.stored`), network.pt2
                                 (`trainables.models.exported`)

`tune_dml.record.state` folds the events into where the sweep stands. A line is either whole or absent: a torn last line
(kill -9, full disk) is moved to `ledger.unreadable` when the ledger is opened for writing, and ignored when it is read. A
line that cannot be read stays where it is, is skipped, and said aloud wherever the sweep is shown.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from filelock import FileLock, Timeout

from trainables.errors import ConfigError, Problem
from trainables.files import existing, gone, patiently
from trainables.option_names import option_problem

if TYPE_CHECKING:
    from tune_dml.record.events import Event

LEDGER = "ledger.jsonl"
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
"""What a file system without locks answers, such as a Lustre that was not mounted with `-o flock`."""
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}
"""What a folder answers that cannot be written to."""
READ_ONLY = "Make the sweep's folder writable, or copy it to a storage folder that is."
"""What helps where a sweep's folder cannot be written to."""
_UNREADABLE = "ledger.unreadable"

Located = tuple[int, dict[str, Any]]
"""Where a row ends in its file, and the row."""


def trial_folder(sweep: Path, key: str) -> Path:
    """Where a trial keeps its history, log and checkpoint."""
    return sweep / "trials" / key


@dataclass
class GrowingFile:
    """A file of JSON lines that is appended to, read from where the last reading stopped."""

    path: Path
    offset: int = 0
    """How much of it has been read."""
    is_row: Callable[[Mapping[str, Any]], bool] = lambda row: True
    """Whether an object is what this file holds; a line with another one is skipped as garbage is."""

    @property
    def grown(self) -> bool:
        """Whether there is something unread."""
        return self._size > self.offset

    @property
    def is_whole(self) -> bool:
        """Whether what has been read is there still."""
        return self._size >= self.offset

    @property
    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def unread(self, on_garbage: Callable[[int, bytes], None] = lambda at, line: None) -> Iterator[Located]:
        """(offset behind it, row) of every whole unread line; `offset` stays until the reader moves it.

        A line that is no JSON object is skipped; `on_garbage` is told where it begins.
        """
        if not self.grown:
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            behind = self.offset
            for line in file:
                if not line.endswith(b"\n"):  # torn: its writer died, or is at work
                    return
                behind += len(line)
                if (row := _row(line)) is not None and self.is_row(row):
                    yield behind, row
                else:
                    on_garbage(behind - len(line), line)


def _row(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; of one that follows torn bytes on the same line, the object alone."""
    for start in (0, line.rfind(b'{"kind"')):
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line[max(start, 0) :])
            if isinstance(row, dict):
                return row
    return None


def history_file(sweep: Path, key: str) -> GrowingFile:
    """The evaluations of a trial, unread."""
    return GrowingFile(trial_folder(sweep, key) / "history.jsonl", is_row=_is_evaluation)


def _is_evaluation(row: Mapping[str, Any]) -> bool:
    """Whether it has a step, its time and figures: half a row must not stand for the whole one, which comes again."""
    numbers = [row.get("step"), row.get("time"), *(value for name, value in row.items() if "/" in name)]
    return all(isinstance(number, int | float) for number in numbers) and math.isfinite(row["step"])


def read_events(sweep: Path, start: int = 0, on_garbage: Callable[[str], None] = lambda text: None) -> list[Event]:
    """Return the events of the ledger from `start`, in order.

    Args:
        sweep: the sweep's folder.
        start: offset where an earlier reading ended.
        on_garbage: called with a sentence for each line that is no event and is skipped.
    """
    from tune_dml.record.events import read_event  # with pydantic, which `--help` does not need

    events = []
    why = ""

    def is_event(row: Mapping[str, Any]) -> bool:
        nonlocal why
        try:
            events.append(read_event(row))
        except ValueError as error:
            why = f" ({error})"
            return False
        return True

    def skip(at: int, line: bytes) -> None:
        nonlocal why
        on_garbage(
            f"{LEDGER}: the {len(line)} bytes from {at} cannot be read{why} and are skipped; "
            "a trial whose end they told of runs again"
        )
        why = ""

    offsets = [end for end, _ in GrowingFile(sweep / LEDGER, start, is_event).unread(skip)]
    return [replace(event, end_offset=end) for event, end in zip(events, offsets, strict=True)]


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
        self._size = 0
        """Bytes, after what was last written."""
        self._steps: dict[str, set[int]] = {}

    def __enter__(self) -> Self:
        self.sweep.mkdir(parents=True, exist_ok=True)
        lock = self.sweep / "lock"
        # Before anything else: some filelocks empty the file as they try.
        holder = lock.read_text(errors="replace").strip() if lock.exists() else ""
        try:
            with lock.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_UN)  # without locks filelock would leave a file that passes for one
            self._lock.acquire()
        except Timeout:
            rule = f"one process at a time may run a sweep; process {holder or '?'} is running this one"
            sweeps = self.sweep.absolute().parent
            is_default = Path("sweeps").is_dir() and sweeps.samefile("sweeps")
            there = "" if is_default else f" --storage {shlex.quote(str(sweeps))}"
            remedy = f"Follow it with `tune-dml status {self.sweep.name}{there}`, or stop it first."
            raise ConfigError(Problem(self.sweep.name, rule, None, remedy)) from None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise _without_locks(self.sweep.parent, error) from error
            if error.errno in _REFUSED:
                rule = f"must be a folder that can be written: {error.strerror}"
                raise ConfigError(option_problem("sweep", rule, str(self.sweep), READ_ONLY)) from error
            raise
        lock.write_text(str(os.getpid()))
        torn = _torn_end(self.sweep / LEDGER)
        if torn:
            with (self.sweep / _UNREADABLE).open("ab") as aside:
                aside.write(torn + b"\n")
        self._file = open_whole(self.sweep / LEDGER)
        self._size = os.fstat(self._file.fileno()).st_size
        if torn:
            self.write(_note(f"{LEDGER}: its last {len(torn)} bytes were torn; they are kept in {_UNREADABLE}"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._lock.release()

    def write(self, event: Event) -> None:
        """Write an event at the present time and force it to disk."""
        if self._file is None:
            raise RuntimeError("the ledger is not open")
        rows = [event.to_row(time.time())]
        if (lost := self._size - os.fstat(self._file.fileno()).st_size) > 0:  # somebody else cut it
            text = f"{LEDGER}: {lost} bytes were lost while it was written; a trial whose end they told of runs again"
            rows.insert(0, _note(text).to_row(time.time()))
        append_rows(self._file, *rows)
        self._size = os.fstat(self._file.fileno()).st_size
        if event.kind == "ended":
            self._steps.pop(event.key, None)  # should a row come after all, they are read again

    def report(self, key: str, *rows: Mapping[str, Any]) -> None:
        """Append evaluations to a trial's history; a step already there is not written again."""
        history = history_file(self.sweep, key)
        path = history.path
        patiently(lambda: existing(self.sweep), self.sweep)
        if (known := self._steps.get(key)) and not path.exists():
            text = f"{path.relative_to(self.sweep)} is gone, and with it the rows of {len(known)} steps"
            self.write(_note(text))
            del self._steps[key]
        if key not in self._steps:
            spoilt: list[int] = []
            old = history.unread(lambda at, line: spoilt.append(len(line)))
            self._steps[key] = {int(row["step"]) for _, row in old}
            if spoilt:
                text = f"{path.relative_to(self.sweep)}: {len(spoilt)} lines cannot be read and are skipped"
                self.write(_note(text))
        new = []
        for row in rows:
            if row["step"] not in self._steps[key]:
                self._steps[key].add(int(row["step"]))
                new.append({**row, "time": row.get("time", time.time())})
        if not new:
            return

        def opened() -> BinaryIO:
            existing(self.sweep)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                return open_whole(path)
            except FileNotFoundError as error:  # since it was looked for
                raise gone(path.parent) from error

        with patiently(opened, self.sweep) as file:
            append_rows(file, *new)


def _note(text: str) -> Event:
    from tune_dml.record.events import Note

    return Note(text=text)


def _without_locks(storage: Path, error: OSError) -> ConfigError:
    rule = f"must lie where files can be locked, so that one process at a time runs a sweep ({error.strerror})"
    remedy = "Choose a folder on another file system, or have this one mounted with locks (Lustre: `-o flock`)."
    return ConfigError(option_problem("storage", rule, str(storage), remedy))


def is_running(sweep: Path) -> bool:
    """Whether a process of this machine, or of one that shares the folder, runs the sweep now: it holds the lock."""
    try:
        with (sweep / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno not in _NO_LOCKS  # where no sweep can be run either
    return False


def append_rows(file: BinaryIO, *rows: Mapping[str, Any]) -> None:
    """Append a JSON line each and force them to disk; a disk that is full halfway through a line gets the rest later."""
    rest = b"".join(json.dumps(row, allow_nan=True).encode() + b"\n" for row in rows)

    def append() -> None:
        nonlocal rest
        while rest:
            rest = rest[os.write(file.fileno(), rest) :]
        os.fsync(file.fileno())

    patiently(append, Path(file.name).parent)


def _torn_end(path: Path) -> bytes:
    """What stands behind the last whole line."""
    try:
        return path.read_bytes().rpartition(b"\n")[2]
    except FileNotFoundError:
        return b""


def open_whole(path: Path) -> BinaryIO:
    """Open for appending after cutting off a torn last line."""
    file = path.open("a+b")
    if size := file.seek(0, os.SEEK_END):
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
    return file
