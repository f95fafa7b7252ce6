"""Handle signals and garbage collection in a driver's process."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

RELAXED = 100_000
"""Allocations between two collections. Imports allocate a million objects, none of them garbage."""
_MOMENT = 0.05
"""Seconds before a dropped Ctrl-C is sent again; destructors take less."""


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM, which schedulers and spot machines send as a notice, interrupt a session as Ctrl-C does.

    Enter it within a Ray connection, because it replaces Ray's handler, which ends the process. On exit it also restores
    the handlers that Tune replaced: Tune's would swallow the caller's next Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if len(told) == 1:  # a second one, as a process tree gets, must not force an immediate end
            signal.raise_signal(signal.SIGINT)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not installed from Python
                signal.signal(number, handler)


@contextlib.contextmanager
def resend_dropped_interrupts() -> Iterator[None]:
    """Send a Ctrl-C again if Python dropped it because it came during a destructor."""
    known = sys.unraisablehook

    def send_again(dropped: UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            # Later, or it would be dropped too; a real signal wakes the waiting main thread.
            again = (threading.main_thread().ident, signal.SIGINT)
            timer = threading.Timer(_MOMENT, signal.pthread_kill, again)
            timer.daemon = True
            timer.start()
        else:
            known(dropped)

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = known


@contextlib.contextmanager
def relaxed_gc() -> Iterator[None]:
    """Run Python's garbage collector less often."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], RELAXED) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
