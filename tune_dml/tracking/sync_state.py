"""Record which part of a sweep is in MLflow, in <sweep>/mlflow.json. Without the file, everything is pushed again.

{"uri": ..., "experiment": ..., "experiment_id": ..., "runs": {"parent": run, "cell-" + digest: run, key: run, ...},
 "rows": {key: number of pushed rows}, "ended": {key: time of the pushed end}, "sessions": number of attached sessions,
 "evidence": {key: time of the end whose files were pushed}, "opened": {key: time of the pushed test metrics}}
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field

from trainables.files import write_whole
from tune_dml.planning.cells import Cell
from tune_dml.planning.request import Session
from tune_dml.record.origin.provenance import STARS
from tune_dml.tracking.client import MlflowRun
from tune_dml.tracking.projection import TrialRun
from tune_dml.tracking.store import local_database

_FILE = "mlflow.json"
PARENT = "parent"
CELL = "cell-"
_PER_TRIAL = ("rows", "ended", "evidence", "opened")
_ALWAYS_STORED = {"experiment_id", "runs", "sessions", "rows", "ended"}  # by older versions too, unless damaged


def cell_key(cell: Cell) -> str:
    """Return the key of a cell's run, which differs from the keys of trials."""
    return CELL + cell.digest


def with_last_store(session: Session, folder: Path) -> Session:
    """Return the session with the store and experiment that a sweep used last.

    A store from the flag or the environment takes precedence. The session is returned unchanged if the address of the
    store holds a secret, or if the folder of its database is missing, as after copying a sweep.
    """
    if session.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"):
        return session
    try:
        stored = json.loads((folder / _FILE).read_text())
        uri, experiment = str(stored["uri"]), str(stored["experiment"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return session  # the file is missing or damaged
    database = local_database(uri)
    if STARS in uri or (database is not None and not database.parent.is_dir()):
        return session
    experiment_name = session.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    return replace(session, tracking_uri=uri, experiment=experiment_name or experiment)


class SyncState(BaseModel):
    """The part of a sweep that is in one store. It is empty if the file is damaged or about another store."""

    experiment_id: str = ""
    runs: dict[str, str] = Field(default_factory=dict)
    sessions: int = 0
    rows: dict[str, int] = Field(default_factory=dict)
    ended: dict[str, float] = Field(default_factory=dict)
    evidence: dict[str, float] = Field(default_factory=dict)
    opened: dict[str, float] = Field(default_factory=dict)
    _path: Path
    _store: dict[str, str]
    _saved: str = ""

    @classmethod
    def read(cls, folder: Path, uri: str, experiment: str) -> Self:
        """Read the file of a sweep. Without a usable one, the runs are read from MLflow."""
        path, store, state = folder / _FILE, {"uri": uri, "experiment": experiment}, cls()
        with suppress(OSError, ValueError, RecursionError, AttributeError):
            stored = json.loads(text := path.read_text())
            if store.items() <= stored.items() and stored.keys() >= _ALWAYS_STORED:
                state = cls.model_validate(stored)
                state._saved = text
        state._path, state._store = path, store
        return state

    def save(self) -> None:
        """Write the file atomically, if anything changed and the sweep's folder has not gone."""
        text = json.dumps({**self._store, **self.model_dump()}) + "\n"
        if text != self._saved and self.runs and self._path.parent.is_dir():
            write_whole(self._path, text)
            self._saved = text

    def adopt(self, experiment_id: str, runs_in_store: Mapping[str, MlflowRun], trials: Mapping[str, TrialRun]) -> None:
        """Record the runs in the store, and mark the trials whose ends it shows."""
        if self.experiment_id != experiment_id or self.runs.get(PARENT) not in {None, runs_in_store[PARENT].id}:
            self.sessions = 0
        self.experiment_id = experiment_id
        earlier_runs, self.runs = self.runs, {key: run.id for key, run in runs_in_store.items()}
        for key in [key for key in {*self.rows, *self.ended} if self.runs.get(key) != earlier_runs.get(key)]:
            self._forget(key)
        for key, trial in trials.items():
            if self.runs.get(key) != earlier_runs.get(key):  # the run was deleted, or is new to this file
                trial.reset()
            is_end_pushed = trial.state.ended is not None and self.ended.get(key) == trial.state.figures_time
            trial.is_complete = is_end_pushed and runs_in_store[key].status == trial.status(final=False)
            trial.pushed_version = trial.state.version if trial.is_complete else 0

    def _forget(self, key: str) -> None:
        for name in _PER_TRIAL:
            getattr(self, name).pop(key, None)

    def push_again(self, trial: TrialRun) -> None:
        """Forget what was pushed of a trial, so that all of it is pushed again."""
        self._forget(trial.key)
        trial.reset()
        trial.pushed_version, trial.is_complete = 0, False

    def record_push(self, trial: TrialRun, version: int, rows: int) -> None:
        """Record that this version of a trial was pushed, with `rows` new evaluations."""
        self.rows[trial.key] = self.rows.get(trial.key, 0) + rows
        self.ended.pop(trial.key, None)
        trial.pushed_version, trial.is_complete = version, trial.state.ended is not None
        if trial.is_complete:
            self.ended[trial.key] = trial.state.figures_time

    def lacks_evidence(self, trial: TrialRun) -> bool:
        """Return whether a trial has ended and its files have not been pushed."""
        ended = trial.state.ended
        return ended is not None and trial.key in self.runs and self.evidence.get(trial.key) != ended.time

    def lacks_opened(self, trial: TrialRun) -> bool:
        """Return whether a trial has ended and its test metrics have not been pushed."""
        ended = trial.state.ended
        return ended is not None and trial.key in self.runs and self.opened.get(trial.key) != trial.state.figures_time
