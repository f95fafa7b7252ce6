"""How many trials a sweep may begin now, beside the other sweeps on its cluster.

with turn_of("eta1", 10, resources, most=8, is_finished=..., on_wait=...) as turn:
    turn.allowed(placed=3, waiting=2, begun=0)        # Allowance(trials=None): as many as there are
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tune_dml.planning.request import Resources
from tune_dml.running.board import Board, ClusterStore, View, our_job
from tune_dml.running.priorities import Claim, ahead, room

_MOMENT = 0.5
"""Seconds for which a trial must have waited for room before others heed it: one that takes over a process waits less."""
_LONG = 10.0
"""Seconds for which a trial must have waited for room before a driver that stands still is named: it may be another's room."""
_HALF_A_MINUTE = 30.0
"""Seconds after which a sweep says that none of its trials finds room: others' short trials end, and nodes come, before that."""
_PACE = 0.1
"""Seconds of a round of the driver's loop in which nothing can happen but on the board."""


@dataclass(frozen=True)
class Allowance:
    """What a sweep may begin."""

    trials: int | None
    """That may ask for room and have none yet; None: as many as there are."""
    held: bool = False
    """Whether another sweep goes before: what is not placed steps back."""


@dataclass
class Turn:
    """Told by the driver's loop what has room and what waits, it says what may begin."""

    board: Board
    most: int
    """Trials at once."""
    places_late: bool
    """Whether a trial's workers find room only after it has begun (engine `train`): it cannot step back then."""
    is_finished: Callable[[], bool]
    """Whether no trial is left to propose."""
    on_wait: Callable[[str], None]
    """Told what is waited for (a sweep, room that one may keep, room at all), and nothing when nothing is any more."""
    _view: View | None = None
    _awaited: str = ""
    _room: int = 0
    _placed: int = 0
    """The most that were placed since that room was counted."""
    _lacks_since: float | None = None
    """Since when trials wait and none has room."""
    _had_all: float = -math.inf
    """When no trial waited for room, last."""
    _base: int = 0
    """How many were when it was."""

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: see `CellSearcher.__getstate__`."""
        return {}

    def allowed(self, *, placed: int, waiting: int, begun: int) -> Allowance:
        """What may begin.

        Args:
            placed: trials that have room.
            waiting: trials that have none.
            begun: those of them that have begun, and cannot step back.
        """
        view = self.board.view
        before = ahead(self.board.claim, view.claims)
        limited = bool(before or (self.places_late and view.claims))
        wants = waiting
        if before or (limited and waiting):  # what is not even asked for
            wants = waiting if self.is_finished() else max(waiting, self.most - placed)
        now = self.board.clock()
        if not wants:
            self._had_all = now
        self.board.post(replace(self.board.claim, waiting=wants if now - self._had_all >= _MOMENT else 0))
        # Where workers are placed late, half a minute passes before they begin though there is room.
        if placed or before or not waiting or self.places_late:
            self._lacks_since = None
        elif self._lacks_since is None:
            self._lacks_since = now
        self._tell(before if wants else (), view.silent if now - self._had_all >= _LONG else (), now)
        if not limited:
            self._view = None
            return Allowance(None)
        if view is not self._view:
            self._view, self._base, self._placed = view, placed, placed
            # One more where nobody goes before: it shows that there is no room.
            self._room = room(self.board.claim, before, view.nodes) + (not before)
        self._placed = max(self._placed, placed)
        if before and not placed:
            time.sleep(_PACE)  # with nothing to wait for, Tune's loop would not pause
        return Allowance(max(self._room - (self._placed - self._base) - begun, 0), held=bool(before))

    def _tell(self, before: Sequence[Claim], silent: Sequence[Claim], now: float) -> None:
        awaited = ""
        if before:
            awaited = f"sweep {before[0].sweep} of priority {before[0].priority}"
        elif silent:
            names = ", ".join(sorted({claim.sweep for claim in silent}))
            awaited = f"room, which sweep {names} may keep: its driver stands still (`tune-dml cancel` ends it)"
        elif self._lacks_since is not None and now - self._lacks_since >= _HALF_A_MINUTE:
            awaited = "room: the nodes that are there have none for a trial"
        if awaited != self._awaited:
            self._awaited = awaited
            self.on_wait(awaited)


@contextmanager
def turn_of(
    sweep: str,
    priority: int,
    resources: Resources,
    *,
    most: int,
    is_finished: Callable[[], bool],
    on_wait: Callable[[str], None],
) -> Iterator[Turn]:
    """A sweep's turn on the cluster that this process is connected to.

    Args:
        sweep: its name.
        priority: against those of others.
        resources: what each trial needs.
        most: trials at once.
        is_finished: whether no trial is left to propose.
        on_wait: told what is waited for, and nothing when nothing is any more.
    """
    needs = {"CPU": float(resources.cpus_per_worker), "GPU": resources.share}
    ours = Claim(
        sweep, priority, resources.workers, {what: amount for what, amount in needs.items() if amount}, our_job()
    )
    with Board(ours, ClusterStore()) as board:
        yield Turn(board, most, resources.engine == "train", is_finished, on_wait)
