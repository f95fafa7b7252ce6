"""Collect the files of ended trials: delete checkpoints, and fetch files from object storage into the sweep's folder.

The next session collects trials without a `fetched` event. Only files with known names are fetched.
"""

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

_FETCHED_NAMES = re.compile(rf"sealed\.json|untested\.pt|network\.pt2|(hits|embeddings)_\w+\.npz|{EVIDENCE}/\w[\w.]*")
_Result = TypeVar("_Result")
_THREADS = 4
_SESSION_ENDED = "the session has ended"


def trial_storage(storage: Path | str, key: str) -> Path | str:
    """Return the folder, or the address in object storage, of one trial's files."""
    return storage / key if isinstance(storage, Path) else str(Address.read(storage) / key)


class TrialFileCollector:
    """Collects the files of finished trials. Not thread-safe.

    Each trial has its files below `storage`, a folder or an address. `say` is called from any thread.
    """

    def __init__(self, ledger: Ledger, storage: Path | str, say: Callable[[str], None]):
        self._ledger, self._storage, self._say = ledger, storage, say
        self._pool = ThreadPoolExecutor(_THREADS, "fetch")
        self._session_ended = Event()
        self._fetches: dict[str, Future[None]] = {}

    def resume(self, state: SweepState) -> None:
        """Collect the ended trials whose files earlier sessions have not fetched."""
        for key in state.unfetched_keys:
            self.collect(key)

    def collect(self, key: str) -> None:
        """Delete an ended trial's checkpoints; if its files are in object storage, start to fetch them."""
        if isinstance(self._storage, Path):
            for path in (self._storage / key).glob("checkpoint*"):
                path.unlink(missing_ok=True)
        else:
            self._fetches[key] = self._pool.submit(self._fetch, key)

    def _fetch(self, key: str) -> None:
        """Copy a trial's files into the sweep's folder, then delete all files at its address."""
        remote = BucketFiles(str(trial_storage(self._storage, key)))
        local = FolderFiles(trial_folder(self._ledger.sweep, key))
        for name in filter(_FETCHED_NAMES.fullmatch, self._patiently(remote.names, remote.storage)):
            content = self._patiently(partial(remote.get, name), remote.storage)
            if content is not None:
                private = not name.startswith(EVIDENCE)
                self._patiently(partial(local.put, name, content, private=private), local.storage)
        self._patiently(remote.clear, remote.storage)

    def _patiently(self, action: Callable[[], _Result], storage: str) -> _Result:
        def check_session() -> None:
            if self._session_ended.is_set():
                raise TimeoutError(_SESSION_ENDED)

        return retry_storage(action, storage, self._say, check_session)

    def record_fetched(self) -> None:
        """Append a `fetched` event for each complete trial, and report each failure."""
        for key in [key for key, fetch in self._fetches.items() if fetch.done()]:
            fetch = self._fetches.pop(key)
            error = TimeoutError(_SESSION_ENDED) if fetch.cancelled() else fetch.exception()
            if error is None:
                self._ledger.write(FilesFetched(key=key))
            else:
                reason = one_line(mask(str(error)))
                self._say(f"the files of trial {key} could not be fetched ({reason}); the next session tries again")

    def finish(self, state: SweepState, seconds: float = PATIENCE) -> None:
        """Wait up to `seconds` for running fetches. Clear the storage if no trial has files there."""
        wait(self._fetches.values(), seconds)
        self._session_ended.set()
        self._pool.shutdown(cancel_futures=True)
        self.record_fetched()
        state.update()
        if isinstance(self._storage, str) and not any(trial.has_remote_files for trial in state.trial_states.values()):
            try:
                BucketFiles(self._storage).clear()
            except (OSError, ConfigError) as error:
                self._say(f"the files left at {self._storage} could not be deleted: {one_line(mask(str(error)))}")


def fetch_remaining_files(state: SweepState) -> None:
    """Fetch the files that ended trials still have in object storage, if there are any.

    Raise ConfigError if files could not be fetched, or another process runs the sweep.
    """
    if state.trial_files is None or not state.unfetched_keys:
        return
    messages: list[str] = []
    with Ledger(state.folder) as ledger:
        collector = TrialFileCollector(ledger, state.trial_files, messages.append)
        collector.resume(state)
        collector.finish(state)
    if state.unfetched_keys:
        rule = f"the files of its trials must be fetched from object storage first: {messages[-1]}"
        raise ConfigError(option_problem("sweep", rule, None, "Try again when the store answers."))


def delete_remaining_files(state: SweepState) -> None:
    """Delete the files that trials still have in object storage. Raise ConfigError if that fails."""
    if state.trial_files is not None and any(trial.has_remote_files for trial in state.trial_states.values()):
        try:
            BucketFiles(state.trial_files).clear()
        except OSError as error:
            rule = f"the files of its trials must be deleted from object storage first: {error.strerror}"
            raise ConfigError(option_problem("sweep", rule, None, "Try again when the store answers.")) from error
