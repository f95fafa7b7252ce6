"""Handle signals, garbage collection and memory of a process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

RELAXED_THRESHOLD = 100_000
"""Allocations between two collections. Imports allocate a million objects, none of them garbage."""
_RESEND_DELAY = 0.05  # seconds before a dropped Ctrl-C is sent again; destructors take less


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM interrupt a session as Ctrl-C does. Schedulers and spot machines send it as a notice.

    Enter it within a Ray connection: it replaces Ray's handler, which ends the process. On exit it also replaces Tune's
    handlers by the original ones, because Tune's would ignore the next Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:  # one kill of a process tree may send two; the second must not force an immediate end
            signal.raise_signal(signal.SIGINT)

    original = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        for number, handler in original.items():
            if handler is not None:  # None: it was not installed from Python
                signal.signal(number, handler)


@contextlib.contextmanager
def resend_dropped_interrupts() -> Iterator[None]:
    """Send a Ctrl-C again that Python dropped because it came during a destructor."""
    original_hook = sys.unraisablehook

    def send_again(dropped: UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            # Wait, or this one would be dropped too. A real signal wakes the waiting main thread.
            timer = threading.Timer(_RESEND_DELAY, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
            timer.daemon = True
            timer.start()
        else:
            original_hook(dropped)

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = original_hook


@contextlib.contextmanager
def relaxed_gc() -> Iterator[None]:
    """Run Python's garbage collector less often."""
    original = gc.get_threshold()
    gc.set_threshold(max(original[0], RELAXED_THRESHOLD) if original[0] else 0, *original[1:])
    try:
        yield
    finally:
        gc.set_threshold(*original)


def return_freed_memory() -> None:
    """Return memory that Python and torch have freed to the system.

    glibc keeps it for the process: 880 MB after a trial of a pretrained network on CPU, of which 700 MB were free.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):  # other C libraries
        trim(0)
