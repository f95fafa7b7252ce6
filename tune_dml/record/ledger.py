"""Append events to the ledger of a sweep, the file from which everything else is derived, and read them.

    <sweep>/plan.json            the plan
    <sweep>/ledger.jsonl         one line for each event (`record.events`)
    <sweep>/looks.jsonl          looks at the sweep, which any process may append (`record.judging.looks`)
    <sweep>/trials/<key>/        history.jsonl (one row for each evaluation), checkpoint*.pt while unfinished, sealed.json,
                                 or untested.pt until `open` (`record.held_out.untested`), hits_*.npz and
                                 embeddings_*.npz (`trainables.evidence.stored`), network.pt2
                                 (`trainables.models.export`)

`record.state` folds the events into the state of the sweep. Readers ignore an incomplete last line (kill -9, full
disk); the next writer moves it to `ledger.unreadable`. Any other unreadable line stays and is skipped, with a note in
status and report. The one writer locks both `lock` and the ledger, because people delete `lock` files by hand.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from filelock import FileLock, Timeout

from trainables.errors import ConfigError, Problem
from trainables.files import missing_folder_error, retry_storage
from trainables.option_names import option_problem
from tune_dml.text import TIME_LIMIT

if TYPE_CHECKING:
    from tune_dml.record.events import Event, JsonRow

LEDGER = "ledger.jsonl"
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}  # file systems without locks: Lustre without `-o flock`
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}  # errors of a folder that is not writable
READ_ONLY = "Make the sweep's folder writable, or copy it to a storage folder that is."
"""Remedy for a sweep's folder that is not writable."""
_UNREADABLE_FILE = "ledger.unreadable"
_LOCK = "lock"
_START = 512  # bytes by which ledgers differ: the first event's kind, time and text
_NUMBER_LIMIT = 2**63  # whole numbers of a row are smaller than this

HistoryRow = dict[str, float]  # one evaluation of a trial: step, time and figures


def trial_folder(sweep: Path, key: str) -> Path:
    """Return the folder of a trial's files."""
    return sweep / "trials" / key


@dataclass
class GrowingFile:
    """A growing file of JSON lines, which is read from the offset at which the last reading stopped."""

    path: Path
    offset: int = 0
    is_row: Callable[[JsonRow], bool] = lambda row: True  # other lines are unreadable

    @property
    def has_grown(self) -> bool:
        """Whether there are unread bytes."""
        return self._size > self.offset

    @property
    def is_intact(self) -> bool:
        """Whether the file still has all bytes that were read."""
        return self._size >= self.offset

    @property
    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read_new(self) -> Iterator[tuple[int, JsonRow]]:
        """Yield (end offset, row) of every readable line after `offset`, which the caller must advance."""
        return ((end, row) for _, end, row in self.read_lines() if row is not None)

    def read_lines(self) -> Iterator[tuple[int, int, JsonRow | None]]:
        """Yield (start, end, row) of every complete line after `offset`; the row of an unreadable line is None."""
        if not self.has_grown:
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            end = self.offset
            for line in file:
                if not line.endswith(b"\n"):  # incomplete, or not written completely yet
                    return
                start, end, row = end, end + len(line), _parse_row(line)
                yield start, end, row if row is not None and self.is_row(row) else None


def _parse_row(line: bytes) -> JsonRow | None:
    """Return the JSON object of a line, which may follow an incomplete one; None if there is none."""
    for start in (0, line.rfind(b'{"kind"')):
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line[max(start, 0) :])
            if isinstance(row, dict) and b"\\ud" in line.lower():  # a lone surrogate, which cannot be encoded
                row = json.loads(json.dumps(row, ensure_ascii=False).encode(errors="replace"))
            if isinstance(row, dict):
                return row
    return None


def history_file(sweep: Path, key: str) -> GrowingFile:
    """Return the file of a trial's evaluations, to be read from its start."""
    return GrowingFile(trial_folder(sweep, key) / "history.jsonl", is_row=_is_evaluation)


def _is_evaluation(row: JsonRow) -> bool:
    """Return whether a row has a step, a time and only numbers. A damaged row must not replace a valid one."""
    numbers = [row.get("step"), row.get("time"), *(value for name, value in row.items() if "/" in name)]
    are_numbers = all(isinstance(n, float) or (isinstance(n, int) and abs(n) < _NUMBER_LIMIT) for n in numbers)
    return are_numbers and abs(row["step"]) < _NUMBER_LIMIT and 0 <= row["time"] <= TIME_LIMIT


def read_events(sweep: Path, start: int = 0, on_garbage: Callable[[str], None] = lambda text: None) -> list[Event]:
    """Return the events of the ledger from the offset `start`, in order.

    `on_garbage` is called with a sentence about each line that is skipped because it is not an event.
    """
    from tune_dml.record.events import read_event  # imports pydantic, which `--help` does not need

    events = []
    for begin, end, row in GrowingFile(sweep / LEDGER, start).read_lines():
        reason = ""
        if row is not None:
            try:
                events.append(replace(read_event(row), end_offset=end))
                continue
            except ValueError as error:
                reason = f" ({error})"
        on_garbage(
            f"{LEDGER}: the {end - begin} bytes from {begin} cannot be read{reason} and are skipped; "
            "a trial whose end they recorded runs again"
        )
    return events


def read_history(sweep: Path, key: str) -> list[HistoryRow]:
    """Return a trial's evaluations in order of step. If a step was reported twice, the first row counts."""
    rows: dict[int, HistoryRow] = {}
    for _, row in history_file(sweep, key).read_new():
        rows.setdefault(int(row["step"]), row)
    return [rows[step] for step in sorted(rows)]


class Ledger:
    """Writes the ledger of a sweep. Raises ConfigError if another process writes it."""

    def __init__(self, sweep: Path):
        self.sweep = sweep
        self._lock = FileLock(sweep / _LOCK, timeout=0)  # the kernel releases it when its process dies
        self._file: BinaryIO | None = None
        self._size = 0
        self._steps: dict[str, set[int]] = {}
        self._batch: list[JsonRow] | None = None

    def __enter__(self) -> Self:
        self.sweep.mkdir(parents=True, exist_ok=True)
        lock = self.sweep / _LOCK
        # Read first: some versions of filelock empty the file.
        holder = lock.read_text(errors="replace").strip() if lock.exists() else ""
        try:
            with lock.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_UN)  # filelock would not fail on file systems without locks
            self._lock.acquire()
            torn_line = self._open()
            lock.write_text(str(os.getpid()))
        except (Timeout, BlockingIOError):
            self._lock.release()
            raise _already_running(self.sweep, holder) from None
        except OSError as error:
            self.__exit__()
            if error.errno in _NO_LOCKS:
                raise _without_locks(self.sweep.parent, error) from error
            if error.errno in _NOT_WRITABLE:
                rule = f"must be a folder that can be written: {error.strerror}"
                raise ConfigError(option_problem("sweep", rule, str(self.sweep), READ_ONLY)) from error
            error.filename = error.filename or str(self.sweep)
            raise
        if torn_line:
            text = f"{LEDGER}: its last {len(torn_line)} bytes were incomplete; they are kept in {_UNREADABLE_FILE}"
            self.write(_note(text))
        return self

    def _open(self) -> bytes:
        """Open and lock the ledger. Keep its incomplete last line in another file, and return it."""
        file = (self.sweep / LEDGER).open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if torn_line := _torn_line(file):
                with (self.sweep / _UNREADABLE_FILE).open("ab") as unreadable:
                    unreadable.write(torn_line + b"\n")
                file.truncate(os.fstat(file.fileno()).st_size - len(torn_line))
        except OSError:
            file.close()
            raise
        self._file, self._size = file, os.fstat(file.fileno()).st_size
        if not self._size:
            os.fchmod(file.fileno(), 0o600)  # it holds the command line
        return torn_line

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._lock.release()

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Write the events of the block together at its end, with one sync of the disk."""
        self._batch = []
        try:
            yield
        finally:
            batch, self._batch = self._batch, None
            if batch:
                self._append(batch)

    def write(self, event: Event) -> None:
        """Write an event, with the present time if it has none, and sync it to disk."""
        if self._file is None:
            raise RuntimeError("the ledger is not open")
        row = event.to_row(event.time or time.time())
        if self._batch is None:
            self._append([row])
        else:
            self._batch.append(row)
        if event.kind == "ended":
            self._steps.pop(event.key, None)

    def _append(self, rows: list[JsonRow]) -> None:
        assert self._file is not None  # noqa: S101 - `write` has checked
        rows = [*self._restore(self._file), *rows]
        if (lost := self._size - os.fstat(self._file.fileno()).st_size) > 0:  # truncated by another program
            text = f"{LEDGER}: {lost} bytes were lost while it was written; a trial whose end they recorded runs again"
            rows.insert(0, _note(text).to_row(time.time()))
        append_rows(self._file, *rows)
        self._size = os.fstat(self._file.fileno()).st_size

    def _restore(self, replaced_file: BinaryIO) -> list[JsonRow]:
        """If another program replaced or deleted the ledger, open the new file and append the lines that it lacks.

        Editors and backups replace a file, whose writer then writes to one without a name. Return a note.
        """
        path = self.sweep / LEDGER
        with contextlib.suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(replaced_file.fileno())):
                return []
        if not self._has_own_folder():
            return []
        replaced_file.seek(0)
        lines = replaced_file.read().splitlines(keepends=True)
        try:
            self._open()
        except OSError:  # another process writes there, or it cannot be opened yet
            return []
        assert self._file is not None  # noqa: S101 - `_open` has set it
        present = set(path.read_bytes().splitlines(keepends=True))
        lost = [line for line in lines if line not in present]
        _append_bytes(self._file, b"".join(lost))
        self._size = os.fstat(self._file.fileno()).st_size
        replaced_file.close()
        text = f"{LEDGER} was replaced or deleted while it was written; the {len(lost)} lines that it lost are restored"
        return [_note(text).to_row(time.time())]

    def _has_own_folder(self) -> bool:
        """Return whether the folder is there, and does not hold another sweep that was started under the same name."""
        try:
            with (self.sweep / LEDGER).open("rb") as file:
                start = file.read(_START)
        except OSError:  # deleted; or the folder is gone, or the empty one below a mount
            return (self.sweep / "plan.json").is_file()
        return self._file is None or os.pread(self._file.fileno(), _START, 0).startswith(start)

    def restore_trials(self) -> None:
        """Create the folder of all trials again if someone deleted it, since trials only wait for it."""
        if self._has_own_folder():
            with contextlib.suppress(OSError):
                (self.sweep / "trials").mkdir(exist_ok=True)

    def _require_own_folder(self) -> None:
        if not self._has_own_folder():
            raise missing_folder_error(self.sweep)

    def report(self, key: str, *rows: Mapping[str, float]) -> list[HistoryRow]:
        """Append rows to a trial's history, without steps that it already has. Return the appended rows."""
        history = history_file(self.sweep, key)
        path = history.path
        retry_storage(self._require_own_folder, self.sweep)
        if (known_steps := self._steps.get(key)) and not path.exists():
            text = f"{path.relative_to(self.sweep)} was deleted, with the rows of {len(known_steps)} steps"
            self.write(_note(text))
            del self._steps[key]
        if key not in self._steps:
            rows_before = [row for _, _, row in history.read_lines()]
            self._steps[key] = {int(row["step"]) for row in rows_before if row is not None}
            if unreadable := rows_before.count(None):
                self.write(_note(f"{path.relative_to(self.sweep)}: {unreadable} lines cannot be read and are skipped"))
        new_rows = []
        for row in rows:
            if row["step"] not in self._steps[key]:
                self._steps[key].add(int(row["step"]))
                new_rows.append({**row, "time": row.get("time", time.time())})
        if not new_rows:
            return []

        def open_history() -> BinaryIO:
            self._require_own_folder()
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                return open_for_append(path)
            except FileNotFoundError as error:
                raise missing_folder_error(path.parent) from error

        with retry_storage(open_history, self.sweep) as file:
            append_rows(file, *new_rows)
        return new_rows


def _note(text: str) -> Event:
    from tune_dml.record.events import Note

    return Note(text=text)


def _without_locks(storage: Path, error: OSError) -> ConfigError:
    rule = f"must be on a file system with locks, so that one process at a time runs a sweep ({error.strerror})"
    remedy = "Choose a folder on another file system, or have this one mounted with locks (Lustre: `-o flock`)."
    return ConfigError(option_problem("storage", rule, str(storage), remedy))


def _already_running(sweep: Path, holder: str) -> ConfigError:
    rule = f"one process at a time may run a sweep; process {holder or '?'} is running this one"
    sweeps = sweep.absolute().parent
    is_default = Path("sweeps").is_dir() and sweeps.samefile("sweeps")
    storage_option = "" if is_default else f" --storage {shlex.quote(str(sweeps))}"
    remedy = f"Follow it with `tune-dml status {sweep.name}{storage_option}`, or stop it first."
    return ConfigError(Problem(sweep.name, rule, None, remedy))


def is_running(sweep: Path) -> bool:
    """Return whether a process runs the sweep, on this machine or on one that shares the folder."""
    ledger = sweep / LEDGER
    return _is_locked(sweep / _LOCK) or (os.access(ledger, os.R_OK) and _is_locked(ledger))


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in {*_NO_LOCKS, errno.ENOENT}  # without locks or files, no sweep can run
    return False


def append_rows(file: BinaryIO, *rows: Mapping[str, object]) -> None:
    """Append a JSON line for each row and sync them to disk; wait while the disk is full."""
    _append_bytes(file, b"".join(json.dumps(row, allow_nan=True).encode() + b"\n" for row in rows))


def _append_bytes(file: BinaryIO, unwritten: bytes) -> None:
    def append() -> None:
        nonlocal unwritten
        while unwritten:
            unwritten = unwritten[os.write(file.fileno(), unwritten) :]
        os.fsync(file.fileno())

    retry_storage(append, Path(file.name).parent)


def open_for_append(path: Path) -> BinaryIO:
    """Open a file for appending, after removing an incomplete last line."""
    file = path.open("a+b")
    if torn_line := _torn_line(file):
        file.truncate(os.fstat(file.fileno()).st_size - len(torn_line))
    return file


def _torn_line(file: BinaryIO) -> bytes:
    """Return the incomplete last line of a file, or nothing."""
    file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
    if file.read(1) in {b"", b"\n"}:
        return b""
    file.seek(0)
    return file.read().rpartition(b"\n")[2]
