"""Ctrl-Z: a sweep stands still with all that it has begun on this machine, until `fg`, `bg` or a signal sets it going.

The driver and Ray's processes have process groups of their own, so a terminal's Ctrl-Z reaches only who typed the command:
trials would train on, and their driver draw over what the shell says meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_PARTING = 2.0
"""Seconds that a driver has to take its picture away."""


def stand_still(driver: int) -> None:
    """Stop the driver, what it has begun, and this process; when this one goes on, they do.

    Nodes of a cluster that the driver has joined were begun by others and go on; a trial there waits for its driver as it ends.
    """
    stopped = _stopped(driver)
    known = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)  # where no shell is there the kernel does nothing, and all go on at once
    signal.signal(signal.SIGTSTP, known)
    for pid in reversed(stopped):  # the driver last: it looks whether the others are well
        _send(pid, signal.SIGCONT)


def _stopped(driver: int) -> list[int]:
    """Whom it has stopped: the driver first, so that it begins nothing more."""
    _send(driver, signal.SIGTSTP)
    deadline = time.monotonic() + _PARTING
    how = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    while time.monotonic() < deadline and os.waitid(os.P_PID, driver, how) is None:
        time.sleep(0.01)
    stopped: list[int] = []
    left = [driver]
    while left:
        for pid in left:
            _send(pid, signal.SIGSTOP)
        stopped += left
        left = [pid for pid in _descendants(driver) if pid not in stopped]
    return stopped


def _descendants(ancestor: int) -> list[int]:
    """Processes that a process has begun, and those that these have; none where there is no /proc."""
    begun_by: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parent = int(place.read_text().rpartition(")")[2].split()[1])
            begun_by.setdefault(parent, []).append(int(place.parent.name))
    found = list(begun_by.get(ancestor, ()))
    for pid in found:  # which grows
        found += begun_by.get(pid, ())
    return found


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
