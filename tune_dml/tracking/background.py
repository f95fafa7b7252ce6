"""The thread that keeps syncing: soon after something happened, now and then by itself, rarely while the store is away.

It works beside the trials, whose processor it takes: after each sync it rests for as long as keeps its share small.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_INTERVAL = 2.0  # seconds between syncs that nothing asked for
_SPACING = 0.2  # seconds between syncs that were asked for: a burst of reports is one sync
_SHARE = 0.02
"""Of the time, that syncs may keep a processor busy."""
_LONGEST_WAIT = 60.0  # seconds between syncs that take long, or attempts while the store is away
PATIENCE = 60.0  # seconds that `stop` waits for a sync under way


class SyncThread:
    """Calls `sync`, which says whether it succeeded, in the background."""

    def __init__(self, sync: Callable[[], bool]):
        self._sync = sync
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._thread is not None

    def start(self) -> None:
        """Begin; nothing where it runs already."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._loop, name="mlflow-sync", daemon=True)
            self._thread.start()

    def notify(self) -> None:
        """Sync soon. Costs nothing."""
        self._wake.set()

    def stop(self) -> bool:
        """End after the sync under way; False where that does not end in time."""
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
        self._wake.wait(_INTERVAL)  # while the first trials' processes start; `stop` wakes it too
        while not self._stopping.wait(_SPACING if wait == 0 else wait):
            began = time.thread_time()
            if self._sync():
                busy = time.thread_time() - began if synced else 0.0  # the first one imports MLflow
                wait, synced = min(busy / _SHARE, _LONGEST_WAIT), True
                self._wake.wait(_INTERVAL)
            else:  # notifications wait too: they must not hammer a server that is away
                wait = min(max(2 * wait, _INTERVAL), _LONGEST_WAIT)
            self._wake.clear()
