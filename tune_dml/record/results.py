"""A sweep as one tidy table, one row per trial: what compare and report read. Read from the ledger, never from MLflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from trainables.context import EVIDENCE
from trainables.evidence.record import Evidence
from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, Trial
from tune_dml.planning.request import Resources
from tune_dml.record.ledger import Ledger, read_history, trial_folder
from tune_dml.record.looks import Look
from tune_dml.record.race import Race
from tune_dml.record.state import SweepState, TrialState, TrialStatus, load_state, read_state

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TrialResult:
    """One trial as it stands."""

    key: str
    cell: Cell
    seed: int
    status: TrialStatus
    reason: str = ""
    """Why it failed or diverged; empty otherwise."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Validation (`val/...`) and training (`train/...`) figures at the evaluation that counts; empty until finished.

    Test metrics (`test/...`) are sealed: `open_test_metrics` alone hands them out.
    """
    seconds: float = 0.0
    """Training time over all attempts."""
    attempts: int = 0
    host: str = ""
    run_id: str = ""
    """The trial's MLflow run; empty until it is logged."""
    step: int = 0


@dataclass(frozen=True)
class Results:
    """Everything known about a sweep."""

    folder: Path
    plan: Plan
    trials: tuple[TrialResult, ...]
    provenance: Mapping[str, Any]
    """Of the first session: commit, versions, hardware, command line."""
    notes: tuple[str, ...]
    """What had to be said aloud: retries, fallbacks, dropped settings."""
    parent_run_id: str = ""
    """The sweep's own MLflow run; empty until it is logged."""
    resources: Resources = field(default_factory=Resources)
    """What a trial of the last session was given."""
    looks: tuple[Look, ...] = ()
    """Who has looked at it, in order: the last one saw these results, or some of them."""
    race: Race | None = None
    """Of a sweep that stops when it is decided."""

    @classmethod
    def of(cls, state: SweepState) -> Self:
        """The results as they stand now."""
        runs = _run_ids(state.folder)
        trials = (_trial_result(trial, state.trial(key), runs.get(key, "")) for key, trial in state.trials.items())
        provenance = state.sessions[0].get("provenance", {}) if state.sessions else {}
        parent = runs.get("parent", "")
        return cls(
            state.folder,
            state.plan,
            tuple(trials),
            provenance,
            tuple(state.notes),
            parent,
            state.resources,
            tuple(state.looks),
            state.race,
        )

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.plan.name

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, planned and proposed, in order."""
        return tuple({trial.cell.digest: trial.cell for trial in self.trials}.values())

    def history(self, key: str) -> list[dict[str, Any]]:
        """A trial's evaluations, in order of step, without test metrics."""
        return [_unsealed(row) for row in read_history(self.folder, key)]

    def evidence(self, key: str) -> Evidence | None:
        """What a trial left to look at; None where it left nothing that can be read."""
        return Evidence.read(trial_folder(self.folder, key) / EVIDENCE)

    @property
    def incomplete(self) -> bool:
        """Whether trials are left that were asked for, or a race is under way."""
        left = self.count("missing") + self.count("running") > 0
        return left or (self.race is not None and not self.race.over)

    def count(self, status: TrialStatus) -> int:
        """How many trials have a status."""
        return sum(trial.status == status for trial in self.trials)

    def table(self) -> pd.DataFrame:
        """One row per trial: identity, knobs (dotted), status, metrics, cost, run id. No test metrics."""
        import pandas as pd

        rows = []
        for trial in self.trials:
            row: dict[str, Any] = {"cell": trial.cell.label, "seed": trial.seed, "status": trial.status}
            row.update(trial.cell.knobs)
            row.update(trial.metrics)
            row.update(seconds=trial.seconds, attempts=trial.attempts, reason=trial.reason)
            rows.append({**row, "trial": trial.key, "run_id": trial.run_id})
        return pd.DataFrame(rows)


def load_results(storage: Path, name: str) -> Results:
    """Read a sweep. Raises ConfigError when there is none of that name."""
    return Results.of(load_state(storage, name))


def results_of(folder: Path) -> Results:
    """Read the sweep in a folder."""
    return Results.of(read_state(folder))


def open_test_metrics(results: Results) -> dict[str, dict[str, float]]:
    """Trial key -> its test metrics (`test/...`), for every trial that has some. The opening is recorded with the sweep.

    Raises ConfigError while another process runs the sweep.
    """
    with Ledger(results.folder) as ledger:
        ledger.append("note", text="test metrics were opened for a report")
    state = SweepState(results.folder, results.plan)
    state.update()
    ends = {key: trial.ended.body for key, trial in state.recorded.items() if trial.ended}
    sealed = {key: _sealed(body.get("metrics", {})) for key, body in ends.items()}
    return {key: metrics for key, metrics in sealed.items() if metrics}


def _trial_result(trial: Trial, state: TrialState, run_id: str) -> TrialResult:
    body: Mapping[str, Any] = state.ended.body if state.ended else {}
    return TrialResult(
        trial.key,
        trial.cell,
        trial.seed,
        status=state.status,
        reason=body.get("reason", ""),
        metrics=_unsealed(body.get("metrics", {})),
        seconds=state.seconds,
        attempts=state.attempts,
        host=state.host,
        run_id=run_id,
        step=body.get("step", 0),
    )


def _run_ids(folder: Path) -> dict[str, str]:
    """Trial key -> MLflow run id, as far as tracking has logged them; the sweep's own run under `parent`."""
    path = folder / "mlflow.json"
    return json.loads(path.read_text())["runs"] if path.exists() else {}


def _sealed(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if name.startswith("test/")}


def _unsealed(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if not name.startswith("test/")}
