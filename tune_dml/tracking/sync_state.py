"""Record which part of a sweep MLflow has, in <sweep>/mlflow.json; without the file everything is pushed again.

{"uri": ..., "experiment": ..., "experiment_id": ..., "runs": {"parent": run, "cell-" + digest: run, key: run, ...},
 "rows": {key: rows pushed}, "ended": {key: time of the end that was pushed}, "sessions": number attached,
 "evidence": {key: time of the end whose files were pushed}, "opened": {key: time of the end whose test metrics were}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from trainables.files import write_whole
from tune_dml.planning.cells import Cell
from tune_dml.tracking.client import MlflowRun
from tune_dml.tracking.projection import TrialRun

PARENT = "parent"
CELL = "cell-"
_BY_TRIAL = ("rows", "ended", "evidence", "opened")
_SAVED = ("experiment_id", "runs", "sessions", *_BY_TRIAL)


def cell_key(cell: Cell) -> str:
    """Return the key of a cell's run, beside the keys of trials."""
    return CELL + cell.digest


class SyncState:
    """The part of a sweep that one store has. It starts empty for another store."""

    def __init__(self, path: Path, uri: str, experiment: str):
        self._path = path
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
            self.experiment_id, self.sessions = str(raw["experiment_id"]), int(raw["sessions"])
            self.runs, self.rows, self.ended = dict(raw["runs"]), dict(raw["rows"]), dict(raw["ended"])
            self.evidence = dict(raw.get("evidence", {}))  # absent in older files
            self.opened = dict(raw.get("opened", {}))  # absent too
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # missing or damaged: the runs are read from MLflow
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
