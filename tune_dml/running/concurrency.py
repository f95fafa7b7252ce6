"""How many trials run at once: as many as fit on the cluster, on nodes that join while a sweep runs too."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ray.tune import Callback
from ray.tune.search import ConcurrencyLimiter

_PACE = 5.0
"""Seconds between two looks at the cluster."""


class Concurrency(Callback):  # type: ignore[misc]
    """Tune is told a number of trials at the start, and keeps to it; this one grows as nodes join.

    It never shrinks: trials of a node that is gone wait for room. A thread asks the cluster, so that the driver's loop waits for
    no head that does not answer.
    """

    def __init__(self, limiter: ConcurrencyLimiter, fits: Callable[[], int], on_growth: Callable[[int], None]):
        """`limiter` is what Tune asks, `fits` what the cluster has room for now; `on_growth` is told of more."""
        self.limiter, self.fits, self.on_growth = limiter, fits, on_growth
        self.room = int(limiter.max_concurrent)
        self._over = threading.Event()

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: see `CellSearcher.__getstate__`."""
        return {}

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._keep_up, daemon=True, name="concurrency")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """In each round of Tune's loop, before it asks for trials."""
        if self.room > self.limiter.max_concurrent:
            self.limiter.set_max_concurrency(self.room)
            self.on_growth(self.room)

    def look(self) -> None:
        """Ask the cluster once; raises whatever it raises."""
        self.room = self.fits()

    def _keep_up(self) -> None:
        while not self._over.wait(_PACE):
            with contextlib.suppress(Exception):  # of a head that is away: asked again
                self.look()
