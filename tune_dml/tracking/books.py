"""What has been pushed to MLflow, remembered in <sweep>/mlflow.json. A convenience: losing it costs a replay, nothing more.

{"uri": ..., "experiment": ..., "experiment_id": ..., "runs": {"parent": run, key: run, ...},
 "rows": {key: evaluations pushed}, "ended": {key: time of the end that was pushed}, "sessions": attached,
 "evidence": {key: time of the end whose files were pushed}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tune_dml.tracking.projection import TrialState

PARENT = "parent"


@dataclass
class Run:
    """A run as MLflow has it."""

    id: str
    status: str
    tags: dict[str, str]
    params: frozenset[str]
    """Names alone: a logged parameter cannot change."""


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
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # missing or damaged: MLflow itself is asked what it has
        self._saved = text

    def save(self) -> None:
        """Write it, atomically, if anything changed."""
        names = ("experiment_id", "runs", "rows", "ended", "sessions", "evidence")
        text = json.dumps({**self._where, **{name: getattr(self, name) for name in names}}) + "\n"
        if text == self._saved or not self.runs:
            return
        temporary = self._path.with_suffix(".json.tmp")
        temporary.write_text(text)
        temporary.replace(self._path)
        self._saved = text

    def adopt(self, experiment_id: str, found: Mapping[str, Run], states: Mapping[str, TrialState]) -> None:
        """Take what MLflow has as the truth, and mark the trials that it does not show as the ledger has them."""
        if self.experiment_id != experiment_id or self.runs.get(PARENT) not in {None, found[PARENT].id}:
            self.sessions = 0
        self.experiment_id = experiment_id
        before, self.runs = self.runs, {key: run.id for key, run in found.items()}
        for key in [key for key in {*self.rows, *self.ended} if self.runs.get(key) != before.get(key)]:
            self.rows.pop(key, None)
            self.ended.pop(key, None)
            self.evidence.pop(key, None)
        for key, state in states.items():
            if self.runs.get(key) != before.get(key):  # gone, or new to us: from the beginning
                state.forget()
            known = state.ended is not None and self.ended.get(key) == state.ended.time
            state.settled = known and found[key].status == state.status(final=False)
            state.changed = not state.settled

    def skip_known_rows(self, state: TrialState) -> None:
        """Before a trial's first push in this process: pass over what an earlier process pushed."""
        if not state.history.offset:
            state.skip(self.rows.get(state.key, 0))

    def pushed(self, state: TrialState, rows: int) -> None:
        """Remember that a trial is up to date, after `rows` more evaluations."""
        self.rows[state.key] = self.rows.get(state.key, 0) + rows
        self.ended.pop(state.key, None)
        if state.ended is not None:
            self.ended[state.key] = state.ended.time
        state.changed, state.settled = False, state.ended is not None

    def lacks_evidence(self, state: TrialState) -> bool:
        """Whether a trial has ended and the files it left are not known to be in the store."""
        if state.ended is None or state.key not in self.runs:
            return False
        return self.evidence.get(state.key) != state.ended.time

    def evidence_pushed(self, state: TrialState) -> None:
        """Remember that they are."""
        if state.ended is not None:
            self.evidence[state.key] = state.ended.time
