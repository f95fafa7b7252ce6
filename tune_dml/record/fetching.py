"""Collect the files of ended trials: delete checkpoints, and fetch from object storage into the sweep's folder.

    collector = TrialFileCollector(ledger, storage, say)
    collector.ended(key)                # starts fetching in the background
    collector.record_fetched()          # writes `fetched` for each trial that is complete
    collector.finish(state)             # waits for the rest

A trial that the ledger does not list as `fetched` is collected by the next session. Only known files of trials are fetched.
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
from trainables.errors import ConfigError
from trainables.files import PATIENCE, retry_storage
from trainables.option_names import option_problem
from trainables.trial_files import FolderFiles
from tune_dml.record.events import FilesFetched
from tune_dml.record.ledger import Ledger, trial_folder
from tune_dml.record.origin.provenance import mask
from tune_dml.record.state import SweepState
from tune_dml.text import one_line

_FETCHED = re.compile(rf"sealed\.json|untested\.pt|network\.pt2|(hits|embeddings)_\w+\.npz|{EVIDENCE}/\w[\w.]*")
_Result = TypeVar("_Result")
_THREADS = 4
_OVER = "the session has ended"


def trial_storage(storage: Path | str, key: str) -> Path | str:
    """Return the folder, or the address in object storage, of one trial's files."""
    return storage / key if isinstance(storage, Path) else str(Address.read(storage) / key)


class TrialFileCollector:
    """Collects the files of finished trials. Not thread-safe.

    Args:
        ledger: the sweep's ledger, open.
        storage: folder or address below which each trial has its files.
        say: called from any thread with a message for the user.
    """

    def __init__(self, ledger: Ledger, storage: Path | str, say: Callable[[str], None]):
        self._ledger, self._storage, self._say = ledger, storage, say
        self._pool = ThreadPoolExecutor(_THREADS, "fetch")
        self._over = Event()
        self._fetches: dict[str, Future[None]] = {}

    def resume(self, state: SweepState) -> None:
        """Collect the trials that an earlier session has not fetched."""
        for key in state.unfetched:
            self.ended(key)

    def ended(self, key: str) -> None:
        """Delete the checkpoints of an ended trial, or start to fetch its files."""
        if isinstance(self._storage, Path):
            for path in (self._storage / key).glob("checkpoint*"):
                path.unlink(missing_ok=True)
        else:
            self._fetches[key] = self._pool.submit(self._fetch, key)

    def _fetch(self, key: str) -> None:
        """Copy a trial's files into the sweep's folder, then delete everything at its address."""
        there = BucketFiles(str(trial_storage(self._storage, key)))
        here = FolderFiles(trial_folder(self._ledger.sweep, key))
        for name in filter(_FETCHED.fullmatch, self._patiently(there.names, there.storage)):
            content = self._patiently(partial(there.get, name), there.storage)
            if content is not None:
                private = not name.startswith(EVIDENCE)
                self._patiently(partial(here.put, name, content, private=private), here.storage)
        self._patiently(there.clear, there.storage)

    def _patiently(self, act: Callable[[], _Result], storage: str) -> _Result:
        def check_session() -> None:
            if self._over.is_set():
                raise TimeoutError(_OVER)

        return retry_storage(act, storage, self._say, check_session)

    def record_fetched(self) -> None:
        """Write `fetched` for each trial that is complete, and report each that failed."""
        for key in [key for key, fetch in self._fetches.items() if fetch.done()]:
            fetch = self._fetches.pop(key)
            error = TimeoutError(_OVER) if fetch.cancelled() else fetch.exception()
            if error is None:
                self._ledger.write(FilesFetched(key=key))
            else:
                why = one_line(mask(str(error)))
                self._say(f"the files of trial {key} could not be fetched ({why}); the next session tries again")

    def finish(self, state: SweepState, seconds: float = PATIENCE) -> None:
        """Wait up to `seconds` for fetches under way. Clear the storage if no trial needs it any more."""
        wait(self._fetches.values(), seconds)
        self._over.set()
        self._pool.shutdown(cancel_futures=True)
        self.record_fetched()
        state.update()
        if isinstance(self._storage, str) and not any(trial.away for trial in state.recorded.values()):
            try:
                BucketFiles(self._storage).clear()
            except (OSError, ConfigError) as error:
                self._say(f"the files left at {self._storage} could not be deleted: {one_line(mask(str(error)))}")


def fetch_remaining_files(state: SweepState) -> None:
    """Fetch the files that ended trials still have in object storage. Contact no store if there are none.

    Raises:
        ConfigError: if files could not be fetched, or another process runs the sweep.
    """
    if state.trial_files is None or not state.unfetched:
        return
    said: list[str] = []
    with Ledger(state.folder) as ledger:
        collector = TrialFileCollector(ledger, state.trial_files, said.append)
        collector.resume(state)
        collector.finish(state)
    if state.unfetched:
        rule = f"the files of its trials must be fetched from object storage first: {said[-1]}"
        raise ConfigError(option_problem("sweep", rule, None, "Try again when the store answers."))


def delete_remaining_files(state: SweepState) -> None:
    """Delete the files that trials still have in object storage. Raise ConfigError if that fails."""
    if state.trial_files is not None and any(trial.away for trial in state.recorded.values()):
        try:
            BucketFiles(state.trial_files).clear()
        except OSError as error:
            rule = f"the files of its trials must be deleted from object storage first: {error.strerror}"
            raise ConfigError(option_problem("sweep", rule, None, "Try again when the store answers.")) from error
