"""A sweep as one tidy table, one row per trial: what compare and report read. Reads the ledger, never MLflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainables.context import EVIDENCE
from trainables.errors import ConfigError, Problem, nearest
from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan
from tune_dml.record.evidence import Evidence, read_evidence
from tune_dml.record.ledger import read_events, read_history, trial_folder

if TYPE_CHECKING:
    import pandas as pd


TrialStatus = Literal["finished", "diverged", "failed", "running", "missing"]


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
    """Validation (`val/...`) and training (`train/...`) figures at the evaluation that counts; empty until finished."""
    sealed: Mapping[str, float] = field(default_factory=dict)
    """Test metrics (`test/...`); only `Results.unsealed` hands them out."""
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
        return [
            {name: value for name, value in row.items() if not name.startswith("test/")}
            for row in read_history(self.folder, key)
        ]

    def evidence(self, key: str) -> Evidence | None:
        """What a trial left to look at; None where it left nothing that can be read."""
        return read_evidence(trial_folder(self.folder, key) / EVIDENCE)

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


def sweep_names(storage: Path) -> list[str]:
    """The sweeps kept under a folder."""
    return sorted(path.parent.name for path in storage.glob("*/plan.json"))


def load_results(storage: Path, name: str) -> Results:
    """Read a sweep. Raises ConfigError when there is none of that name."""
    folder = storage / name
    if not (folder / "plan.json").exists():
        known = sweep_names(storage)
        remedy = nearest(name, known, what="sweep") if known else "There is none yet: start one with `tune-dml sweep`."
        raise ConfigError(Problem("SWEEP", f"no sweep of this name under {storage}", name, remedy))
    return results_of(folder)


def results_of(folder: Path) -> Results:
    """Fold a sweep's ledger into its results."""
    plan = Plan.load(folder / "plan.json")
    events = read_events(folder)
    cells = list(plan.cells)
    cells += [Cell(**event.body["cell"]) for event in events if event.kind == "cell"]
    states: dict[str, dict[str, Any]] = {}
    for event in events:
        state = states.setdefault(event.key, {"attempts": 0, "seconds": 0.0}) if event.key else {}
        if event.kind == "started":
            state.update(status="running", attempts=state["attempts"] + 1, host=event.body.get("host", ""))
        elif event.kind == "ended":
            state.update(event.body)
        elif event.kind == "reset":
            states[event.key] = {"attempts": state["attempts"], "seconds": state["seconds"]}
    runs = _runs(folder)
    trials = tuple(
        _trial_result(plan.trial(cell, seed).key, cell, seed, states, runs) for cell in cells for seed in plan.seeds
    )
    sessions = [event.body for event in events if event.kind == "session"]
    notes = tuple(dict.fromkeys(event.body["text"] for event in events if event.kind == "note"))
    provenance = sessions[0].get("provenance", {}) if sessions else {}
    return Results(folder, plan, trials, provenance, notes, runs.get("parent", ""))


def _trial_result(
    key: str, cell: Cell, seed: int, states: Mapping[str, Mapping[str, Any]], runs: Mapping[str, str]
) -> TrialResult:
    state = states.get(key, {})
    metrics = state.get("metrics", {})
    return TrialResult(
        key,
        cell,
        seed,
        status=state.get("status", "missing"),
        reason=state.get("reason", ""),
        metrics={name: value for name, value in metrics.items() if not name.startswith("test/")},
        sealed={name: value for name, value in metrics.items() if name.startswith("test/")},
        seconds=state.get("seconds", 0.0),
        attempts=state.get("attempts", 0),
        host=state.get("host", ""),
        run_id=runs.get(key, ""),
        step=state.get("step", 0),
    )


def _runs(folder: Path) -> dict[str, str]:
    """Trial key -> MLflow run id, as far as tracking has logged them; the sweep's own run under `parent`."""
    path = folder / "mlflow.json"
    return json.loads(path.read_text())["runs"] if path.exists() else {}
