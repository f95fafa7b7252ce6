"""Where the sweeps on a cluster read of each other: a line for each in the key-value store that Ray's head keeps anyway.

    with Board(claim, ClusterStore()) as board:
        board.post(claim)           # in the driver's loop: it lives, and wants this
        board.view                  # what the others want

No process of its own, so nothing that could die but the cluster. A thread brings our line there and the others' here, once
a second: the driver's loop never waits for it, and a head that does not answer ends nothing. A line is heeded as long as its
driver's loop renews it and Ray has not seen that driver end, by our own clock alone.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Protocol, Self

import ray

from tune_dml.running import ray_internals
from tune_dml.running.priorities import Claim, Node

_PACE = 1.0
"""Seconds between two looks at the board."""
_SILENCE = 30.0
"""Seconds after which a line that is not renewed counts no more: a driver that stands still, a head that does not answer."""
_PARTING = 2.0


class Store(Protocol):
    """What the board needs of a cluster."""

    def put(self, key: str, line: bytes) -> None:
        """Write a line."""

    def read(self) -> Mapping[str, bytes]:
        """Every line."""

    def remove(self, key: str) -> None:
        """Take a line away."""

    def has_ended(self, job: str) -> bool:
        """Whether a driver is known to be no more."""

    def nodes(self) -> tuple[Node, ...]:
        """What the nodes have; none where that cannot be asked."""


class ClusterStore:
    """The store of the cluster that this process is connected to."""

    put = staticmethod(ray_internals.put_line)
    read = staticmethod(ray_internals.read_lines)
    remove = staticmethod(ray_internals.remove_line)
    has_ended = staticmethod(ray_internals.has_ended)

    @staticmethod
    def nodes() -> tuple[Node, ...]:
        """What the nodes have."""
        return tuple(Node(total, free) for total, free in ray_internals.resources_of_nodes())


@dataclass(frozen=True)
class View:
    """What was read of the others, and of the nodes where there are others."""

    claims: tuple[Claim, ...] = ()
    nodes: tuple[Node, ...] = ()
    silent: tuple[Claim, ...] = ()
    """Of drivers that have stopped renewing theirs, and have not ended: what Ray has given them they keep."""


@dataclass
class _Line:
    """Another sweep's."""

    claim: Claim
    renewed: int
    """Grows as long as its driver's loop goes round."""
    at: float
    """When we saw it grow."""


@dataclass
class Board:
    """Our line, and what we know of the others'."""

    claim: Claim
    store: Store
    clock: Callable[[], float] = time.monotonic
    _renewed: int = 0
    _key: str = field(default_factory=lambda: uuid.uuid4().hex)
    _lines: dict[str, _Line] = field(default_factory=dict)
    _view: View = field(default_factory=View)
    _seen: float = 0.0
    _is_over: bool = False
    _wake: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        with contextlib.suppress(Exception):
            self.exchange()
        self._thread = threading.Thread(target=self._keep_up, daemon=True, name="board")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._wake.set()
        self._thread.join(_PARTING)  # what is not taken away is not renewed either

    def post(self, claim: Claim) -> None:
        """What our sweep wants now; the others hear at once when it begins to wait for room, or no longer does."""
        changes = (claim.waiting > 0) != (self.claim.waiting > 0)
        self.claim, self._renewed = claim, self._renewed + 1
        if changes:
            self._wake.set()

    @property
    def view(self) -> View:
        """As it was last seen; nothing where that is long ago."""
        return self._view if self.clock() - self._seen < _SILENCE else View()

    def exchange(self) -> None:
        """Bring our line there and the others' here; raises whatever the store does."""
        self.store.put(self._key, json.dumps({"renewed": self._renewed, **asdict(self.claim)}).encode())
        now, known = self.clock(), self._lines
        silent = {key: line for key, line in known.items() if now - line.at >= _SILENCE}  # of which none may be there
        self._lines = {key: line for key, line in silent.items() if not self.store.has_ended(line.claim.job)}
        for key, text in self.store.read().items():
            line = _read(text, now)
            if key == self._key or line is None:
                continue
            before = known.get(key)
            if before is not None and before.renewed == line.renewed:
                line.at = before.at
                has_ended = self.store.has_ended(line.claim.job)
                if has_ended or now - line.at >= _SILENCE:
                    self.store.remove(key)  # whoever only stood still writes it again
                if has_ended:
                    continue
            self._lines[key] = line
        heeded = {key: line.claim for key, line in self._lines.items() if now - line.at < _SILENCE}
        stand_still = tuple(line.claim for key, line in self._lines.items() if key not in heeded)
        nodes = self.store.nodes() if heeded else ()
        self._view, self._seen = View(tuple(heeded.values()), nodes, stand_still), now

    def _keep_up(self) -> None:
        while True:
            self._wake.wait(_PACE)
            self._wake.clear()
            if self._is_over:
                break
            with contextlib.suppress(Exception):  # what we know grows old, and then counts no more
                self.exchange()
        with contextlib.suppress(Exception):
            self.store.remove(self._key)


def _read(text: bytes, now: float) -> _Line | None:
    """A line; None where another version of this program wrote it."""
    try:
        body = json.loads(text)
        return _Line(renewed=body.pop("renewed"), claim=Claim(**body), at=now)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def our_job() -> str:
    """Ray's name of this process as a driver."""
    return str(ray.get_runtime_context().get_job_id())
