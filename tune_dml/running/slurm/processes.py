"""End the descendants of this process, and no other process."""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_SUBREAPER = 36  # `PR_SET_CHILD_SUBREAPER` of Linux's prctl
_TERM_SECONDS = 5.0  # seconds between SIGTERM and SIGKILL


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent exits, so that they stay descendants of this process."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents.setdefault(int(after_name[1]), []).append(int(entry.name))
    descendants = list(parents.get(pid, []))
    for child in descendants:
        descendants += parents.get(child, [])
    return descendants


def end_descendants() -> None:
    """End all descendants: SIGTERM first, then SIGKILL."""
    until = time.monotonic() + _TERM_SECONDS
    signalled: set[int] = set()
    while descendants := _descendants(os.getpid()):
        signal_number = signal.SIGTERM if time.monotonic() < until else signal.SIGKILL
        for child in descendants:
            if signal_number == signal.SIGKILL or child not in signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal_number)
                signalled.add(child)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)
