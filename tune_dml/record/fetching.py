"""What ended trials have left: their checkpoints go; what lies in object storage comes into the sweep's own folder.

    leavings = Leavings(ledger, place, say)
    leavings.ended(key)           # in the background, where it takes time
    leavings.write_down()         # what has come meanwhile
    leavings.finish()             # all of it is here, or why not has been said

The ledger says `fetched` of a trial when it has left nothing elsewhere; until then the next session takes it up. Only files
that a trial may leave are fetched, whatever else lies there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

from trainables.bucket import Address, BucketFiles
from trainables.context import EVIDENCE
from trainables.errors import ConfigError, Problem
from trainables.files import PATIENCE, patiently
from trainables.trial_files import FolderFiles
from tune_dml.record.events import FilesFetched
from tune_dml.record.ledger import Ledger, trial_folder
from tune_dml.record.provenance import mask
from tune_dml.record.state import SweepState
from tune_dml.text import one_line

_LEFT = re.compile(rf"sealed\.json|network\.pt2|(hits|embeddings)_\w+\.npz|{EVIDENCE}/\w[\w.]*")
_Result = TypeVar("_Result")
_AT_ONCE = 4
"""Trials that are fetched at the same time."""
_OVER = "the session has ended"


def trial_place(place: Path | str, key: str) -> Path | str:
    """Where one of the trials keeps its files: its folder, or its address."""
    return place / key if isinstance(place, Path) else str(Address.read(place) / key)


class Leavings:
    """What the ended trials of one sweep have left; used from one thread."""

    def __init__(self, ledger: Ledger, place: Path | str, say: Callable[[str], None]):
        """Does nothing yet.

        Args:
            ledger: the sweep's, open.
            place: folder or address below which each trial has its files.
            say: told, from any thread, what a person should know.
        """
        self._ledger, self._place, self._say = ledger, place, say
        self._pool = ThreadPoolExecutor(_AT_ONCE, "fetch")
        self._over = Event()
        self._under_way: dict[str, Future[None]] = {}

    def take_up(self, state: SweepState) -> None:
        """What an earlier session has not fetched."""
        for key in state.unfetched:
            self.ended(key)

    def ended(self, key: str) -> None:
        """A trial has ended."""
        if isinstance(self._place, Path):
            for path in (self._place / key).glob("checkpoint*"):
                path.unlink(missing_ok=True)
        else:
            self._under_way[key] = self._pool.submit(self._fetch, key)

    def _fetch(self, key: str) -> None:
        """Bring a trial's files into the sweep's folder, then delete all it has left."""
        there = BucketFiles(str(trial_place(self._place, key)))
        here = FolderFiles(trial_folder(self._ledger.sweep, key))
        for name in filter(_LEFT.fullmatch, self._patiently(there.names, there.place)):
            content = self._patiently(partial(there.get, name), there.place)
            if content is not None:
                private = not name.startswith(EVIDENCE)
                self._patiently(partial(here.put, name, content, private=private), here.place)
        self._patiently(there.clear, there.place)

    def _patiently(self, act: Callable[[], _Result], place: str) -> _Result:
        """Until the session is over."""

        def look() -> None:
            if self._over.is_set():
                raise TimeoutError(_OVER)

        return patiently(act, place, self._say, look)

    def write_down(self) -> None:
        """Record what has come; say what has not and why."""
        for key in [key for key, fetching in self._under_way.items() if fetching.done()]:
            fetching = self._under_way.pop(key)
            error = TimeoutError(_OVER) if fetching.cancelled() else fetching.exception()
            if error is None:
                self._ledger.write(FilesFetched(key=key))
            else:
                why = one_line(mask(str(error)))
                self._say(f"the files of trial {key} could not be fetched ({why}); the next session tries again")

    def finish(self, state: SweepState, seconds: float = PATIENCE) -> None:
        """Wait for what is under way, so long. Where no trial is left then, whatever still lies there is nobody's and goes."""
        wait(self._under_way.values(), seconds)
        self._over.set()
        self._pool.shutdown(cancel_futures=True)
        self.write_down()
        state.update()
        if isinstance(self._place, str) and not any(trial.away for trial in state.recorded.values()):
            try:
                BucketFiles(self._place).clear()
            except (OSError, ConfigError) as error:
                self._say(f"what is left at {self._place} could not be deleted: {one_line(mask(str(error)))}")


def fetch_rest(state: SweepState) -> None:
    """Fetch what ended trials have left elsewhere; contacts nothing where there is nothing to fetch.

    Raises ConfigError where not all of it comes, and while another process runs the sweep.
    """
    if state.trial_files is None or not state.unfetched:
        return
    said: list[str] = []
    with Ledger(state.folder) as ledger:
        leavings = Leavings(ledger, state.trial_files, said.append)
        leavings.take_up(state)
        leavings.finish(state)
    if state.unfetched:
        rule = f"what its trials have left in object storage must be fetched first: {said[-1]}"
        raise ConfigError(Problem("SWEEP", rule, None, "Try again when the store answers."))


def delete_rest(state: SweepState) -> None:
    """Delete what trials have left elsewhere; raises ConfigError where the store does not."""
    if state.trial_files is not None and any(trial.away for trial in state.recorded.values()):
        try:
            BucketFiles(state.trial_files).clear()
        except OSError as error:
            rule = f"what its trials have left in object storage must be deleted first: {error.strerror}"
            raise ConfigError(Problem("SWEEP", rule, None, "Try again when the store answers.")) from error
