"""A terminal that a shell shares out among its jobs: who may draw on it, and what is done before Ctrl-Z stops a process.

A picture that is redrawn in place moves the cursor up and erases lines: in the background those are the shell's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO


def is_ours(output: IO[str]) -> bool:
    """Whether nobody else draws on a terminal: we, or who began us, are the job that its shell has in the foreground."""
    try:
        front = os.tcgetpgrp(output.fileno())
    except (OSError, ValueError):  # no terminal of this session, so of no shell of it
        return True
    return front <= 0 or front in {os.getpgrp(), os.getpgid(os.getppid())}


@contextmanager
def told_of_ctrl_z(before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """Ctrl-Z stops this process once `before` is done; `after` comes when it goes on, in the foreground or not.

    Both are called in a thread of their own: the main one may hold what they wait for.
    """
    if threading.current_thread() is not threading.main_thread() or not _has_a_shell():
        yield
        return

    def stop() -> None:
        before()
        os.kill(os.getpid(), signal.SIGSTOP)
        after()

    def begin(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=stop, daemon=True, name="ctrl-z").start()

    known = signal.signal(signal.SIGTSTP, begin)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, known)


def _has_a_shell() -> bool:
    """Whether somebody is there to set us going again: without, as in a container, the kernel lets no Ctrl-Z stop us."""
    parent = os.getppid()
    try:
        return parent > 0 and os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp()
    except OSError:  # it has just ended
        return False
