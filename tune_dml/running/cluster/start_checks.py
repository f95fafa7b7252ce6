"""Check that a local Ray can start, and explain why it did not.

Otherwise Ray's daemons exit silently, or the driver waits for them forever.
"""

import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainables.errors import Problem
from tune_dml.record.origin.provenance import mask
from tune_dml.text import one_line, shortened

_THREADS, _THREADS_PER_PROCESS = 130, 30
"""Smallest sufficient number of threads, for the driver with Ray's daemons and for each training process.

With two training processes a limit of 180 lost trials, and one of 200 did not.
"""
_LIMITS = {
    "-u": ("RLIMIT_NPROC", 1, ""),
    "-n": ("RLIMIT_NOFILE", 1, ""),
    "-v": ("RLIMIT_AS", 1 << 20, " MB"),
    "-d": ("RLIMIT_DATA", 1 << 20, " MB"),
    "-f": ("RLIMIT_FSIZE", 1 << 20, " MB"),
}
"""Letter of `ulimit` -> name, bytes per unit, unit."""
_USUAL_LIMITS = {"-u": 4096, "-n": 1024}  # usual limits; only lower ones are reported
_REASON = 240  # number of characters of Ray's message that are shown
_SOCKET = "ray/session_1999-12-31_23-59-59_999999_{}/sockets/plasma_store"
"""Longest socket path of Ray below its temporary folder; `{}` is the process id."""
_MAX_SOCKET_PATH = 107  # longest socket path that Linux allows, in bytes


def start_problems(processes: int) -> list[Problem]:
    """Return the problems that prevent a local Ray with this number of training processes."""
    return [*_folder_problems(), *_thread_problems(processes)]


def start_failure(error: Exception) -> Problem:
    """Return the problem of a Ray that did not start, with likely causes."""
    logs = _folder() / "ray" / "session_latest" / "logs"
    rule = f"a Ray of this machine must start ({shortened(one_line(mask(str(error))), _REASON)})"
    needs = "it needs disk space there (RAY_TMPDIR names another folder) and in /dev/shm, and no low limits"
    limits = f": {', '.join(low)}" if (low := low_limits()) else " (`ulimit -a`)"
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    busy = f" {load:.0f} processes share {cpus} CPUs now: try again when fewer do." if load > 2 * cpus else ""
    return Problem("Ray", rule, None, f"Its logs are in {logs}; {needs}{limits}.{busy}")


def low_limits() -> list[str]:
    """Return the limits of this process that are lower than usual, such as "`ulimit -f` is 20 MB"."""
    limits = []
    for letter, (name, unit, suffix) in _LIMITS.items():
        limit = resource.getrlimit(getattr(resource, name))[0]
        if limit != resource.RLIM_INFINITY and limit < _USUAL_LIMITS.get(letter, sys.maxsize):
            limits.append(f"`ulimit {letter}` is {limit // unit}{suffix}")
    return limits


def _folder_problems() -> Iterator[Problem]:
    """Yield why Ray cannot create its sockets in the folder of temporary files."""
    folder = str(_folder())
    remedy = "Set RAY_TMPDIR to another folder, such as /tmp."
    max_length = _MAX_SOCKET_PATH - len(os.fsencode(os.path.join("/", _SOCKET.format(os.getpid()))))
    if (length := len(os.fsencode(folder))) > max_length:
        rule = (
            f"the path of Ray's temporary folder may have {max_length} bytes, because of its sockets; it has {length}"
        )
        yield Problem("Ray", rule, folder, remedy)
    elif not folder.isascii():
        rule = "the path of Ray's temporary folder must consist of ASCII characters"
        yield Problem("Ray", rule, folder, remedy)


def _folder() -> Path:
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or tempfile.gettempdir())


def _thread_problems(processes: int) -> Iterator[Problem]:
    """Yield the limits that allow too few threads. A process that gets no thread is aborted."""
    needed = _THREADS + _THREADS_PER_PROCESS * processes
    for limit_name, free, remedy in _free_threads():
        if free < needed:
            rule = f"Ray and {processes} training processes need at least {needed} free threads"
            yield Problem(limit_name, rule, free, remedy)


def _free_threads(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Iterator[tuple[str, int, str]]:
    """Yield each limit of threads, the number of free threads, and how to raise the limit."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit != resource.RLIM_INFINITY and os.getuid() != 0 and proc.is_dir():  # root has no limit
        yield "ulimit -u", limit - _threads_of(os.getuid(), proc), "Raise it (/etc/security/limits.conf)."
    for line in _lines(proc / "self" / "cgroup"):
        _, kind, path = line.split(":", 2)
        if kind in {"", "pids"}:  # cgroups v2 and v1
            root = cgroups / kind
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                numbers = [*_lines(folder / "pids.max"), *_lines(folder / "pids.current")]
                if folder.is_relative_to(root) and len(numbers) > 1 and numbers[0].isdigit():
                    remedy = "Raise it (`docker run --pids-limit`, a pod's podPidsLimit, or systemd's TasksMax)."
                    yield str(folder / "pids.max"), int(numbers[0]) - int(numbers[1]), remedy


def _threads_of(user: int, proc: Path) -> int:
    count = 0
    for process in proc.iterdir():
        try:
            if process.name.isdigit() and process.stat().st_uid == user:
                count += sum(1 for _ in (process / "task").iterdir())
        except OSError:  # the process has ended
            continue
    return count


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
