"""Run a program, and end it with every process that it started, even if the trial's process is killed."""

import contextlib
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired
from typing import Self

_FIRST_BYTES, _LAST_BYTES = 1_000_000, 64_000
"""Number of bytes of a program's output that are kept, from the beginning and from the end."""
_CHUNK = 65_536
_GRACE = 2.0  # seconds to wait for the end of the output, whose pipe another process may keep open

# Reads the program's process id, waits until the trial's process exits, then kills the program. It detaches itself,
# because Ray kills a worker's children.
_GUARD = """
import os, signal, sys
if os.fork():
    os._exit(0)
os.setsid()
group, _ = sys.stdin.buffer.readline(), sys.stdin.buffer.read()
try:
    if group:
        os.killpg(int(group), signal.SIGKILL)
except ProcessLookupError:
    pass
"""


class Output:
    """Keeps a program's output: the beginning in a file, and the end in memory until `close`."""

    def __init__(self, path: Path):
        self.path, self.size = path, 0
        self._file = path.open("wb", buffering=0)
        self._file_bytes = 0
        self._end: deque[bytes] = deque()
        self._end_bytes = 0

    def append(self, chunk: bytes) -> None:
        """Store a chunk, then add its length to `size`, which another thread reads."""
        if not self._end and self._file_bytes < _FIRST_BYTES and self._write(chunk):
            self._file_bytes += len(chunk)
        else:
            self._end.append(chunk)
            self._end_bytes += len(chunk)
            while self._end_bytes - len(self._end[0]) > _LAST_BYTES:
                self._end_bytes -= len(self._end.popleft())
        self.size += len(chunk)

    def close(self) -> None:
        """Append the end to the file, after a line with the number of omitted bytes."""
        if self._file.closed:
            return
        if omitted := self.size - self._file_bytes - self._end_bytes:
            self._write(f"\n... {omitted} bytes are left out ...\n".encode())
        self._write(b"".join(self._end))
        self._file.close()

    def _write(self, content: bytes) -> bool:
        """Write to the file; return False if the disk is full. The program must not block on its output."""
        try:
            return self._file.write(content) == len(content)
        except OSError:
            return False

    def tail(self, characters: int) -> str:
        """Return the last characters of the output; call it after `close`."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - 4 * characters))
            return file.read().decode(errors="replace")[-characters:]


class ProgramProcess:
    """A running program. Leaving the `with` block kills it and every process that it started."""

    def __init__(self, words: Sequence[str], folder: str, environment: Mapping[str, str], output: Output, mark: str):
        """Start a program in its own process group. Raise OSError if it cannot be started.

        `mark` names a variable in `environment` by which the processes that inherit it are found.
        """
        watch = [sys.executable, "-S", "-c", _GUARD]
        guard = Popen(watch, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, bufsize=0)  # noqa: S603
        guard.wait()
        assert guard.stdin is not None  # noqa: S101 - it is a pipe
        self._lifeline = guard.stdin  # when it closes, the guard kills the program
        self._process = Popen(  # noqa: S603 - running the user's command is the task
            words, cwd=folder, env=dict(environment), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        with contextlib.suppress(BrokenPipeError):  # the guard could not start
            self._lifeline.write(f"{self._process.pid}\n".encode())
        self.output, self._mark = output, f"{mark}={environment[mark]}"
        self.left_running = 0  # processes that the program left running; set when the block ends
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._kill_group()
            self._process.wait()
        else:
            self.left_running = len(_marked_processes(self._mark))
            self._kill_group()
        for pid in _marked_processes(self._mark):  # it left the group, as a daemon does
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._lifeline.close()
        self._reader.join(_GRACE)
        self.output.close()

    def wait(self, seconds: float) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        try:
            return self._process.wait(seconds)
        except TimeoutExpired:
            return None

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None  # noqa: S101
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            while chunk := os.read(pipe.fileno(), _CHUNK):
                self.output.append(chunk)


def _marked_processes(mark: str) -> list[int]:
    """Return the ids of running processes with `NAME=value` in their environment; none without /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found
