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
from tune_dml.record.contradictions import contradictions
from tune_dml.record.events import SessionStarted, TrialEnd
from tune_dml.record.floors import Floors, recorded_floors
from tune_dml.record.ledger import read_history, trial_folder
from tune_dml.record.looks import Look
from tune_dml.record.provenance import mask
from tune_dml.record.race import Race
from tune_dml.record.resolution import resolution_in
from tune_dml.record.sealed import Opening, is_sealed, sealed_metrics, without_sealed
from tune_dml.record.state import (
    SweepState,
    TrialStatus,
    load_state,
    look_at_confirmation,
    look_at_sweep,
    read_state,
)

if TYPE_CHECKING:
    import pandas as pd

    from trainables.evidence.stored import Hits


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

    Test metrics (`test/...`) are sealed: they are among them only where the sweep has been opened.
    """
    seconds: float = 0.0
    """Training time over all attempts."""
    attempts: int = 0
    host: str = ""
    run_id: str = ""
    """The trial's MLflow run; empty until it is logged."""
    step: int = 0
    ended: float = 0.0
    """When, in seconds since the epoch; 0 where it has not."""
    out_of_memory: bool = False
    """It failed because its network and batch need more than there is."""
    micro_batch: int | None = None
    """Pictures that a worker held at a time, where its session said it and not its cell."""


@dataclass(frozen=True)
class Store:
    """The MLflow store in which a sweep's runs lie."""

    uri: str
    experiment_id: str

    def page(self, run_id: str) -> str:
        """The address of a run's page; empty where the store is a database, which serves none."""
        if not (run_id and self.experiment_id and self.uri.startswith(("http://", "https://"))):
            return ""
        return f"{mask(self.uri).rstrip('/')}/#/experiments/{self.experiment_id}/runs/{run_id}"


@dataclass(frozen=True)
class Imported:
    """Where results come from that no sweep of ours made, and what their trials logged."""

    source: str
    """As people call it: `the file runs.csv`."""
    histories: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Trial key -> its evaluations, in order of step."""


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
    """Looks at the sweep, in order: the last one saw these results, or some of them."""
    confirmation_looks: tuple[Look, ...] = ()
    """Looks at the fresh seeds, in order."""
    looked_at: bool = True
    """Whether verdicts on the trials as they stand are paid for: a look at them is on record, or nothing can be claimed."""
    race: Race | None = None
    """Of a sweep that stops when it is decided."""
    opening: Opening | None = None
    """Who opened the test metrics, when, for which selection; None while they are sealed."""
    confirmed: tuple[TrialResult, ...] = ()
    """Trials of fresh seeds that measure the best cells again; in no table, curve or selection of the sweep."""
    imported: Imported | None = None
    """Where they come from, when no sweep of ours made them."""
    store: Store | None = None
    """The MLflow store that has the runs; None until they are logged."""
    submitted_to: str | None = None
    """The cluster that the last session was submitted to, as its user named it; None where it was begun by hand."""
    host: str = ""
    """Where the driver of the last session runs, or ran."""
    floors: Floors = field(default_factory=dict)
    """What is reached without training: floor -> validation figures. Empty in sweeps from before it was measured."""
    waits_for: str = ""
    """What a running sweep without room waits for."""

    @classmethod
    def of(cls, state: SweepState) -> Self:
        """The results as they stand now."""
        runs, store = _run_ids(state.folder)
        first, last = (
            (state.sessions[0], state.sessions[-1]) if state.sessions else (SessionStarted(), SessionStarted())
        )
        return cls(
            state.folder,
            state.plan,
            tuple(_trial_result(state, trial, runs) for trial in state.trials.values()),
            first.provenance,
            (*state.notes, *contradictions(state)),
            runs.get("parent", ""),
            state.resources,
            tuple(state.looks),
            tuple(state.confirmation_looks),
            _looked_at(state),
            state.race,
            Opening.of(state.opened) if state.opened else None,
            tuple(_trial_result(state, trial, runs) for trial in state.confirming.values()),
            store=store,
            submitted_to=last.submitted_to,
            host=last.provenance.get("host", ""),
            waits_for=state.waits_for,
            floors=recorded_floors(state.sessions),
        )

    @property
    def opened(self) -> bool:
        """Whether the test metrics have been opened."""
        return self.opening is not None

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
        if self.imported is not None:
            return self.imported.histories.get(key, [])
        return [without_sealed(row) for row in read_history(self.folder, key)]

    def evidence(self, key: str) -> Evidence | None:
        """What a trial left to look at; None where it left nothing that can be read."""
        return Evidence.read(trial_folder(self.folder, key) / EVIDENCE)

    def hits(self, key: str, half: str) -> Hits | None:
        """Which queries of a half, val or test, found their class first; None where none were kept, and of a sealed half."""
        from trainables.evidence.stored import Hits, hits_file  # brings torch along

        if is_sealed(f"{half}/") and not self.opened:
            return None
        return Hits.read(trial_folder(self.folder, key) / hits_file(half))

    def resolution_of(self, metric: str) -> float:
        """What one query moves a metric by, else the step that its numbers show."""
        by_cell: dict[str, list[Mapping[str, float]]] = {}
        for trial in self.trials:
            by_cell.setdefault(trial.cell.digest, []).append(trial.metrics)
        return resolution_in(metric, by_cell.values(), fractions=self.imported is not None)

    @property
    def incomplete(self) -> bool:
        """Whether trials are left that were asked for, or a race is under way."""
        left = self.count("missing") + self.count("running") > 0
        return left or (self.race is not None and not self.race.over)

    def count(self, status: TrialStatus) -> int:
        """How many trials have a status."""
        return sum(trial.status == status for trial in self.trials)

    def table(self) -> pd.DataFrame:
        """One row per trial: arm, identity, knobs (dotted), status, metrics, cost, run id; test metrics only when opened."""
        import pandas as pd

        rows = []
        for trial in self.trials:
            arm = trial.cell.arm or self.plan.space.name
            row: dict[str, Any] = {"arm": arm, "cell": trial.cell.label, "seed": trial.seed, "status": trial.status}
            row.update(trial.cell.knobs)
            row.update(trial.metrics)
            row.update(seconds=trial.seconds, attempts=trial.attempts, reason=trial.reason)
            rows.append({**row, "trial": trial.key, "run_id": trial.run_id})
        return pd.DataFrame(rows)


def load_results(storage: Path, name: str) -> Results:
    """Read a sweep. Raises ConfigError when there is none of that name."""
    return Results.of(load_state(storage, name))


def load_and_look(storage: Path, name: str, by: str) -> Results:
    """Read a sweep and record that `by` looks at it. Raises ConfigError when there is no such sweep, or as `record_look` does."""
    state = load_state(storage, name)
    state.record_look(by)
    return Results.of(state)


def results_of(folder: Path) -> Results:
    """Read the sweep in a folder."""
    return Results.of(read_state(folder))


def _looked_at(state: SweepState) -> bool:
    """Return whether a look at the trials as they stand is on record, or nothing can be claimed of them yet."""
    looks = (
        (look_at_sweep(state, ""), state.looks),
        (look_at_confirmation(state, ""), state.confirmation_looks),
    )
    return all(now is None or (bool(past) and past[-1].data == now.data) for now, past in looks)


def _trial_result(sweep: SweepState, trial: Trial, runs: Mapping[str, str]) -> TrialResult:
    state = sweep.trial(trial.key)
    end = state.end or TrialEnd("failed")
    opened = sealed_metrics(sweep.folder, state) if sweep.opened else {}
    return TrialResult(
        trial.key,
        trial.cell,
        trial.seed,
        status=state.status,
        reason=end.reason,
        metrics=without_sealed(state.metrics) | opened,
        seconds=state.seconds,
        attempts=state.attempts,
        host=state.host,
        run_id=runs.get(trial.key, ""),
        step=end.step or 0,
        ended=state.ended.time if state.ended else 0.0,
        out_of_memory=end.kind == "out_of_memory",
        micro_batch=state.micro_batch,
    )


def _run_ids(folder: Path) -> tuple[dict[str, str], Store | None]:
    """Trial key -> MLflow run id, as far as tracking has logged them; the sweep's own run under `parent`. And the store."""
    try:
        books = json.loads((folder / "mlflow.json").read_bytes())
        return dict(books["runs"]), Store(books["uri"], books["experiment_id"]) if books.get("uri") else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        # None yet, or spoilt: the next sync writes it anew.
        return {}, None
