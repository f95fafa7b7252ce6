"""Sync in a background thread: soon after a notification, at intervals, and rarely while the store is unreachable.

After each sync the thread waits, so that it uses only a small share of a processor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_INTERVAL = 2.0  # seconds between syncs without a notification
_SPACING = 0.2  # seconds before a notified sync, so that a burst of reports causes one sync
_SHARE = 0.02
"""Share of one processor that syncs may use."""
_LONGEST_WAIT = 60.0  # seconds, after a long sync or while the store is unreachable
PATIENCE = 60.0  # seconds that `stop` waits for a running sync


class SyncThread:
    """Calls `sync` in the background; `sync` returns whether it succeeded."""

    def __init__(self, sync: Callable[[], bool]):
        self._sync = sync
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether the thread was started and not stopped."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._loop, name="mlflow-sync", daemon=True)
            self._thread.start()

    def notify(self) -> None:
        """Request a sync; return at once."""
        self._wake.set()

    def stop(self) -> bool:
        """Stop after the running sync. Return False if it does not end within `PATIENCE`."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def _loop(self) -> None:
        wait, synced = 0.0, False
        self._wake.wait(_INTERVAL)  # while the first trials start; `stop` also wakes it
        while not self._stopping.wait(_SPACING if wait == 0 else wait):
            began = time.thread_time()
            if self._sync():
                busy = time.thread_time() - began if synced else 0.0  # the first one imports MLflow
                wait, synced = min(busy / _SHARE, _LONGEST_WAIT), True
                self._wake.wait(_INTERVAL)
            else:  # notifications wait as well, to spare an unreachable server
                wait = min(max(2 * wait, _INTERVAL), _LONGEST_WAIT)
            self._wake.clear()
