"""What a signal means to a session."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def ends_by_sigterm() -> Iterator[None]:
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
