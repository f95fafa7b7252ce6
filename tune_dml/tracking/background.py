"""Sync in a background thread: soon after a notification, at intervals, and seldom while the store is unreachable.

After each sync the thread waits, so that it uses only a small share of a processor.
"""

import threading
import time
from collections.abc import Callable

_INTERVAL = 2.0  # seconds between syncs without a notification
_NOTIFY_DELAY = 0.2  # seconds from a notification to the sync, which joins many notifications
_SHARE = 0.02  # fraction of one processor that syncs may use
_MAX_WAIT = 60.0  # seconds, after a long sync or while the store is unreachable
STOP_TIMEOUT = 60.0  # seconds that `stop` waits for a running sync


class SyncThread:
    """Calls `sync` in the background; `sync` returns whether it succeeded."""

    def __init__(self, sync: Callable[[], bool]):
        self._sync = sync
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
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
        """Stop after the running sync. Return False if it does not end within `STOP_TIMEOUT`."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def _loop(self) -> None:
        wait, has_synced = 0.0, False
        self._wake.wait(_INTERVAL)  # the first trials start in the meantime; `stop` also ends this wait
        while not self._stopping.wait(_NOTIFY_DELAY if wait == 0 else wait):
            began = time.thread_time()
            if self._sync():
                busy = time.thread_time() - began if has_synced else 0.0  # the first sync imports MLflow
                wait, has_synced = min(busy / _SHARE, _MAX_WAIT), True
                self._wake.wait(_INTERVAL)
            else:  # an unreachable server: notifications also wait
                wait = min(max(2 * wait, _INTERVAL), _MAX_WAIT)
            self._wake.clear()
