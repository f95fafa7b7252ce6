"""Check that a local Ray can start, and explain why one did not.

Ray's daemons end silently, or the driver waits for them for ever.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainables.errors import Problem
from tune_dml.record.origin.provenance import mask
from tune_dml.text import one_line, shortened

_THREADS, _THREADS_A_PLACE = 130, 30
"""Threads of the driver and Ray's daemons, and of each training process: the least that is enough.

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
_USUAL = {"-u": 4096, "-n": 1024}
"""Limits that every machine has; only lower ones are reported."""
_REASON = 240
"""Characters of Ray's own message that are shown."""
_SOCKET = "ray/session_1999-12-31_23-59-59_999999_{}/sockets/plasma_store"
"""Longest socket path of Ray, below its temporary folder; the argument is the process id."""
_LONGEST_SOCKET = 107
"""Bytes of a socket's path that Linux allows."""


def start_problems(places: int) -> list[Problem]:
    """Return why a Ray with this many training processes cannot start here."""
    return [*_switch_problems(), *_folder_problems(), *_thread_problems(places)]


def not_started(error: Exception) -> Problem:
    """Return the problem of a Ray that did not start, with what may be to blame."""
    logs = _folder() / "ray" / "session_latest" / "logs"
    rule = f"a Ray of this machine must start ({shortened(one_line(mask(str(error))), _REASON)})"
    needs = "it needs room there (RAY_TMPDIR names another place) and in /dev/shm, and no tight limits"
    limits = f": {', '.join(tight)}" if (tight := tight_limits()) else " (`ulimit -a`)"
    return Problem("Ray", rule, None, f"Its logs are in {logs}; {needs}{limits}.")


def tight_limits() -> list[str]:
    """Return the limits that were set for this process: `ulimit -f` is 20 MB."""
    tight = []
    for letter, (name, unit, suffix) in _LIMITS.items():
        limit = resource.getrlimit(getattr(resource, name))[0]
        if limit != resource.RLIM_INFINITY and limit < _USUAL.get(letter, sys.maxsize):
            tight.append(f"`ulimit {letter}` is {limit // unit}{suffix}")
    return tight


def _switch_problems() -> Iterator[Problem]:
    """Yield switches of Python under which Ray or MLflow cannot be imported."""
    if sys.flags.optimize > 1:
        rule = "Ray needs the docstrings that python -OO (PYTHONOPTIMIZE=2) leaves out"
        yield Problem("PYTHONOPTIMIZE", rule, None, "Unset it, or set it to 1.")
    warnings = os.environ.get("PYTHONWARNINGS", "")
    if any(item.strip().rstrip(":") == "error" for item in warnings.split(",")):
        rule = "warnings must not be errors: processes of Ray and MLflow warn as they start, and would end"
        yield Problem("PYTHONWARNINGS", rule, warnings, "Unset it, or name the warnings: error::UserWarning.")


def _folder_problems() -> Iterator[Problem]:
    """Yield why Ray's sockets cannot lie in the folder of temporary files."""
    folder = str(_folder())
    remedy = "Set RAY_TMPDIR to another one, such as /tmp."
    room = _LONGEST_SOCKET - len(os.fsencode(os.path.join("/", _SOCKET.format(os.getpid()))))
    if (length := len(os.fsencode(folder))) > room:
        rule = f"the folder of Ray's temporary files may have a name of {room} bytes, for its sockets lie in it, not of {length}"
        yield Problem("Ray", rule, folder, remedy)
    elif not folder.isascii():
        rule = "the folder of Ray's temporary files must have a name of ASCII letters"
        yield Problem("Ray", rule, folder, remedy)


def _folder() -> Path:
    """Return the folder of Ray's temporary files."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or tempfile.gettempdir())


def _thread_problems(places: int) -> Iterator[Problem]:
    """Yield the limits that leave too few threads; processes that get none are aborted."""
    need = _THREADS + _THREADS_A_PLACE * places
    for place, left, remedy in _threads_left():
        if left < need:
            rule = f"Ray and {places} training processes need at least {need} free threads"
            yield Problem(place, rule, left, remedy)


def _threads_left(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> Iterator[tuple[str, int, str]]:
    """Yield each limit of threads, how many are left, and how to raise it."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit != resource.RLIM_INFINITY and os.getuid() != 0 and proc.is_dir():  # root has none
        yield (
            "ulimit -u",
            limit - _threads_of(os.getuid(), proc),
            "Raise it (`ulimit -u`, or /etc/security/limits.conf).",
        )
    for line in _lines(proc / "self" / "cgroup"):
        _, kind, path = line.split(":", 2)
        if kind in {"", "pids"}:  # cgroups v2 and v1
            root = groups / kind
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                numbers = [*_lines(folder / "pids.max"), *_lines(folder / "pids.current")]
                if folder.is_relative_to(root) and len(numbers) > 1 and numbers[0].isdigit():
                    remedy = "Give the container more (`docker run --pids-limit`, a pod's podPidsLimit, TasksMax of systemd)."
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
