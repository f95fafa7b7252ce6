"""Signals and garbage collection of a driver's process."""

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
"""New objects between two looks: imports make a million, none of them garbage, and a third of their time goes there."""
_MOMENT = 0.05
"""Seconds after which a Ctrl-C that was dropped is sent again: an object is torn down in less."""


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a session as Ctrl-C does: a scheduler's or a spot machine's word before it kills.

    Within a Ray connection: where Ray has put a handler of its own, which ends the process, this one stands in its place.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if len(told) == 1:  # whoever ends a tree of processes may tell us twice, which would be "at once"
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def resend_dropped_interrupts() -> Iterator[None]:
    """A Ctrl-C counts wherever it comes.

    One that comes while Python tears an object down (in `__del__`, or a weak reference's callback, as SQLAlchemy has one for each
    row) is dropped by it, with a traceback; it is sent again.
    """
    known = sys.unraisablehook

    def send_again(dropped: UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            # Not at once, or it would be dropped as well; a true signal, which wakes the main thread where it waits.
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
    """Meanwhile garbage is looked for rarely; no more often afterwards than before."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], RELAXED) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
