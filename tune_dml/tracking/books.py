"""What has been pushed to MLflow, remembered in <sweep>/mlflow.json. A convenience: losing it costs a replay, nothing more.

{"uri": ..., "experiment": ..., "experiment_id": ..., "runs": {"parent": run, "cell-" + digest: run, key: run, ...},
 "rows": {key: evaluations pushed}, "ended": {key: time of the end that was pushed}, "sessions": attached,
 "evidence": {key: time of the end whose files were pushed}, "opened": {key: of the end whose test metrics were}}
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


def cell_key(cell: Cell) -> str:
    """What a cell's run goes by beside the keys of trials."""
    return CELL + cell.digest


class Books:
    """The bookkeeping of one sweep in one store; another store starts with empty books, so that nothing is missed there."""

    def __init__(self, path: Path, uri: str, experiment: str):
        self._path = path
        self._where = {"uri": uri, "experiment": experiment}
        self._saved = ""
        self.experiment_id = ""
        self.runs: dict[str, str] = {}
        self.rows: dict[str, int] = {}
        self.ended: dict[str, float] = {}
        self.evidence: dict[str, float] = {}
        self.opened: dict[str, float] = {}
        self.sessions = 0
        self._load()

    def _load(self) -> None:
        try:
            text = self._path.read_text()
            raw = json.loads(text)
            if any(raw.get(name) != value for name, value in self._where.items()):
                return
            self.experiment_id, self.runs = str(raw["experiment_id"]), dict(raw["runs"])
            self.rows, self.ended, self.sessions = dict(raw["rows"]), dict(raw["ended"]), int(raw["sessions"])
            self.evidence = dict(raw.get("evidence", {}))  # older books know of none
            self.opened = dict(raw.get("opened", {}))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # missing or damaged: MLflow itself is asked what it has
        self._saved = text

    def save(self) -> None:
        """Write it, atomically, if anything changed."""
        names = ("experiment_id", "runs", "rows", "ended", "sessions", "evidence", "opened")
        text = json.dumps({**self._where, **{name: getattr(self, name) for name in names}}) + "\n"
        if text == self._saved or not self.runs:
            return
        write_whole(self._path, text)
        self._saved = text

    def adopt(self, experiment_id: str, present: Mapping[str, MlflowRun], trials: Mapping[str, TrialRun]) -> None:
        """Take what MLflow has as the truth, and mark the trials that it does not show as the ledger has them."""
        if self.experiment_id != experiment_id or self.runs.get(PARENT) not in {None, present[PARENT].id}:
            self.sessions = 0
        self.experiment_id = experiment_id
        before, self.runs = self.runs, {key: run.id for key, run in present.items()}
        for key in [key for key in {*self.rows, *self.ended} if self.runs.get(key) != before.get(key)]:
            self.rows.pop(key, None)
            self.ended.pop(key, None)
            self.evidence.pop(key, None)
            self.opened.pop(key, None)
        for key, trial in trials.items():
            if self.runs.get(key) != before.get(key):  # gone, or new to us: from the beginning
                trial.forget()
            ended = trial.state.ended
            known = ended is not None and self.ended.get(key) == trial.state.settled
            trial.settled = known and present[key].status == trial.status(final=False)
            trial.shown = trial.state.version if trial.settled else 0

    def forget(self, trial: TrialRun) -> None:
        """The store lacks something of a trial: push it from the beginning, files and all."""
        for known in (self.rows, self.ended, self.evidence, self.opened):
            known.pop(trial.key, None)
        trial.forget()
        trial.shown, trial.settled = 0, False

    def skip_known_rows(self, trial: TrialRun) -> None:
        """Before a trial's first push in this process: pass over what an earlier process pushed."""
        if not trial.history.offset:
            trial.skip(self.rows.get(trial.key, 0))

    def pushed(self, trial: TrialRun, version: int, rows: int) -> None:
        """Remember that MLflow shows this version of a trial, after `rows` more evaluations."""
        ended = trial.state.ended
        self.rows[trial.key] = self.rows.get(trial.key, 0) + rows
        self.ended.pop(trial.key, None)
        if ended is not None:
            self.ended[trial.key] = trial.state.settled
        trial.shown, trial.settled = version, ended is not None

    def lacks_evidence(self, trial: TrialRun) -> bool:
        """Whether a trial has ended and the files it left are not known to be in the store."""
        return self._lacks(trial, self.evidence, trial.state.ended.time if trial.state.ended else 0.0)

    def lacks_opened(self, trial: TrialRun) -> bool:
        """Whether a trial has ended and its opened test metrics are not known to be in the store."""
        return self._lacks(trial, self.opened, trial.state.settled)

    def _lacks(self, trial: TrialRun, pushed: Mapping[str, float], moment: float) -> bool:
        return trial.state.ended is not None and trial.key in self.runs and pushed.get(trial.key) != moment

    def evidence_pushed(self, trial: TrialRun) -> None:
        """Remember that they are."""
        if trial.state.ended is not None:
            self.evidence[trial.key] = trial.state.ended.time

    def opened_pushed(self, trial: TrialRun) -> None:
        """Remember that they are."""
        if trial.state.ended is not None:
            self.opened[trial.key] = trial.state.settled
