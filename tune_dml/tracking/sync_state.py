"""Record which part of a sweep MLflow has, in <sweep>/mlflow.json; without the file everything is pushed again.

{"uri": ..., "experiment": ..., "experiment_id": ..., "runs": {"parent": run, "cell-" + digest: run, key: run, ...},
 "rows": {key: rows pushed}, "ended": {key: time of the end that was pushed}, "sessions": number attached,
 "evidence": {key: time of the end whose files were pushed}, "opened": {key: time of the end whose test metrics were}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

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
_BY_TRIAL = ("rows", "ended", "evidence", "opened")
_SAVED = ("experiment_id", "runs", "sessions", *_BY_TRIAL)


def cell_key(cell: Cell) -> str:
    """Return the key of a cell's run, beside the keys of trials."""
    return CELL + cell.digest


def with_last_store(session: Session, folder: Path) -> Session:
    """Return the session with the store and experiment that the sweep in a folder used last.

    A store named by flag or environment comes first. A store whose address holds a secret is not recorded in full, and
    the database of a copied sweep may be on another machine: then the session stays as it is.
    """
    if session.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"):
        return session
    try:
        raw = json.loads((folder / _FILE).read_text())
        uri, experiment = str(raw["uri"]), str(raw["experiment"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return session  # missing or damaged
    database = local_database(uri)
    if STARS in uri or (database is not None and not database.parent.is_dir()):
        return session
    named = session.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    return replace(session, tracking_uri=uri, experiment=named or experiment)


class SyncState:
    """The part of a sweep that one store has. It starts empty for another store."""

    def __init__(self, folder: Path, uri: str, experiment: str):
        self._path = folder / _FILE
        self._store = {"uri": uri, "experiment": experiment}
        self._saved = ""
        self.experiment_id = ""
        self.runs: dict[str, str] = {}
        self.sessions = 0
        self.rows: dict[str, int] = {}
        self.ended: dict[str, float] = {}
        self.evidence: dict[str, float] = {}
        self.opened: dict[str, float] = {}
        self._load()

    def _load(self) -> None:
        try:
            text = self._path.read_text()
            raw = json.loads(text)
            if any(raw.get(name) != value for name, value in self._store.items()):
                return
            runs = {str(key): str(run) for key, run in raw["runs"].items()}
            rows = {str(key): int(count) for key, count in raw["rows"].items()}
            ended, evidence, opened = (
                {str(key): float(time) for key, time in times.items()}
                for times in (raw["ended"], raw.get("evidence", {}), raw.get("opened", {}))  # absent in older files
            )
            experiment_id, sessions = str(raw["experiment_id"]), int(raw["sessions"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return  # missing or damaged: the runs are read from MLflow
        self.experiment_id, self.sessions, self.runs, self.rows = experiment_id, sessions, runs, rows
        self.ended, self.evidence, self.opened = ended, evidence, opened
        self._saved = text

    def save(self) -> None:
        """Write the file atomically, if anything changed."""
        text = json.dumps({**self._store, **{name: getattr(self, name) for name in _SAVED}}) + "\n"
        if text != self._saved and self.runs:
            write_whole(self._path, text)
            self._saved = text

    def adopt(self, experiment_id: str, present: Mapping[str, MlflowRun], trials: Mapping[str, TrialRun]) -> None:
        """Take over the runs that MLflow has, and find the trials that it shows differently from the ledger."""
        if self.experiment_id != experiment_id or self.runs.get(PARENT) not in {None, present[PARENT].id}:
            self.sessions = 0
        self.experiment_id = experiment_id
        before, self.runs = self.runs, {key: run.id for key, run in present.items()}
        for key in [key for key in {*self.rows, *self.ended} if self.runs.get(key) != before.get(key)]:
            self._forget(key)
        for key, trial in trials.items():
            if self.runs.get(key) != before.get(key):  # deleted, or unknown so far
                trial.forget()
            known = trial.state.ended is not None and self.ended.get(key) == trial.state.figures_time
            trial.complete = known and present[key].status == trial.status(final=False)
            trial.shown = trial.state.version if trial.complete else 0

    def _forget(self, key: str) -> None:
        for name in _BY_TRIAL:
            getattr(self, name).pop(key, None)

    def forget(self, trial: TrialRun) -> None:
        """Push a trial again from the beginning, files included, because the store lacks part of it."""
        self._forget(trial.key)
        trial.forget()
        trial.shown, trial.complete = 0, False

    def skip_pushed_rows(self, trial: TrialRun) -> None:
        """Skip the rows that an earlier process pushed, before this process's first push of a trial."""
        if not trial.history.offset:
            trial.skip(self.rows.get(trial.key, 0))

    def pushed(self, trial: TrialRun, version: int, rows: int) -> None:
        """Record that MLflow shows this version of a trial, after `rows` more evaluations."""
        self.rows[trial.key] = self.rows.get(trial.key, 0) + rows
        self.ended.pop(trial.key, None)
        trial.shown, trial.complete = version, trial.state.ended is not None
        if trial.complete:
            self.ended[trial.key] = trial.state.figures_time

    def lacks_evidence(self, trial: TrialRun) -> bool:
        """Whether a trial has ended and its files are not known to be in the store."""
        ended = trial.state.ended
        return ended is not None and trial.key in self.runs and self.evidence.get(trial.key) != ended.time

    def lacks_opened(self, trial: TrialRun) -> bool:
        """Whether a trial has ended and its opened test metrics are not known to be in the store."""
        ended = trial.state.ended
        return ended is not None and trial.key in self.runs and self.opened.get(trial.key) != trial.state.figures_time

    def evidence_pushed(self, trial: TrialRun) -> None:
        """Record that the store has a trial's files."""
        if trial.state.ended is not None:
            self.evidence[trial.key] = trial.state.ended.time

    def opened_pushed(self, trial: TrialRun) -> None:
        """Record that the store has a trial's opened test metrics."""
        if trial.state.ended is not None:
            self.opened[trial.key] = trial.state.figures_time
