"""Read the results of a sweep from its ledger, one row per trial, for the commands compare and report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from trainables.context import EVIDENCE
from tune_dml.planning.cells import Cell
from tune_dml.planning.grouping import grouped
from tune_dml.planning.plan import Plan, PlannedTrial
from tune_dml.planning.request import Resources
from tune_dml.record.contradictions import find_contradictions
from tune_dml.record.events import Floors, Opened, SessionStarted, TrialEnd, recorded_floors
from tune_dml.record.held_out.sealed import is_sealed, sealed_metrics, without_sealed
from tune_dml.record.judging.looks import Look
from tune_dml.record.judging.race import Race
from tune_dml.record.judging.resolution import resolution_in
from tune_dml.record.ledger import HistoryRow, read_history, trial_folder
from tune_dml.record.origin.provenance import Provenance, mask
from tune_dml.record.state import SweepState, TrialStatus, load_state, look_at_confirmation, look_at_sweep, read_state

if TYPE_CHECKING:
    import pandas as pd

    from trainables.evidence.record import Evidence
    from trainables.evidence.stored import Hits


@dataclass(frozen=True)
class TrialResult:
    """One trial of a sweep."""

    key: str
    cell: Cell
    seed: int
    status: TrialStatus
    reason: str = ""  # why it failed or diverged; empty otherwise
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Validation (`val/...`) and training (`train/...`) figures of the selected evaluation; empty until finished.

    Test metrics (`test/...`) are included only if the sweep is open.
    """
    seconds: float = 0.0  # training time over all attempts
    attempts: int = 0
    host: str = ""
    run_id: str = ""  # id of its MLflow run; empty until it is logged
    step: int = 0
    ended: float = 0.0  # time of its end, in seconds since the epoch; 0 before
    out_of_memory: bool = False
    micro_batch: int | None = None  # pictures that a worker held at once; None if the session did not set it
    code: Mapping[str, str] = field(default_factory=dict)
    """Script, or module of another package -> digest of its source."""


@dataclass(frozen=True)
class Store:
    """The MLflow store that has the runs of a sweep."""

    uri: str
    experiment_id: str

    def page(self, run_id: str) -> str:
        """Return the web address of a run; empty for a database, which serves no pages."""
        if not (run_id and self.experiment_id and self.uri.startswith(("http://", "https://"))):
            return ""
        return f"{mask(self.uri).rstrip('/')}/#/experiments/{self.experiment_id}/runs/{run_id}"


@dataclass(frozen=True)
class ImportOrigin:
    """The source of imported results, and the histories of its trials."""

    source: str  # name for the reader, such as `the file runs.csv`
    histories: Mapping[str, list[HistoryRow]] = field(default_factory=dict)  # trial key -> evaluations


@dataclass(frozen=True)
class Results:
    """All results and other facts about a sweep."""

    folder: Path
    plan: Plan
    trials: tuple[TrialResult, ...]
    provenance: Provenance  # of the first session: commit, versions, hardware, command line
    notes: tuple[str, ...]  # notes for the reader, such as retries and dropped settings
    parent_run_id: str = ""  # id of the sweep's MLflow run; empty until it is logged
    resources: Resources = field(default_factory=Resources)  # resources of a trial in the last session
    looks: tuple[Look, ...] = ()
    confirmation_looks: tuple[Look, ...] = ()
    has_current_look: bool = True  # whether a look at these trials is recorded, or no verdict is possible yet
    race: Race | None = None  # the race of a sweep with `--until-decided`
    opening: Opened | None = None  # the opening of the test metrics; None while they are sealed
    confirmed: tuple[TrialResult, ...] = ()  # trials of the confirmation; in no table, curve or selection
    imported: ImportOrigin | None = None  # source of the trials, if they were imported
    store: Store | None = None  # the MLflow store with the runs; None until they are logged
    submitted_to: str | None = None  # the cluster of the last session; None if it was started directly
    host: str = ""
    floors: Floors = field(default_factory=dict)  # floor -> validation figures without training
    waits_for: str = ""  # the resource that a running sweep waits for; empty if none
    continued_by: tuple[tuple[str, ...], ...] = ()  # command lines of later sessions, the last one first
    to_propose: int = 0  # number of trials of cells that a search has not proposed yet

    @classmethod
    def of(cls, state: SweepState) -> Self:
        """Return the results of a sweep from its state."""
        runs, store = _run_ids(state.folder)
        sessions = state.sessions or [SessionStarted()]
        first, last = sessions[0], sessions[-1]
        trials = (_trial_result(state, trial, runs) for trial in state.trials.values())
        confirmed = (_trial_result(state, trial, runs) for trial in state.confirmation_trials.values())
        return cls(
            state.folder, state.plan, tuple(trials), first.provenance, (*state.notes, *find_contradictions(state)),
            parent_run_id=runs.get("parent", ""), resources=state.resources, race=state.race, confirmed=tuple(confirmed),
            looks=tuple(state.looks), confirmation_looks=tuple(state.confirmation_looks),
            has_current_look=_has_current_look(state), opening=state.opened,
            store=store, submitted_to=last.submitted_to, host=last.provenance.get("host", ""),
            floors=recorded_floors(state.sessions), waits_for=state.waits_for, to_propose=state.to_propose,
            continued_by=tuple(tuple(session.provenance.get("argv", ())) for session in sessions[:0:-1]),
        )  # fmt: skip

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

    def history(self, key: str) -> list[HistoryRow]:
        """Return a trial's evaluations in order of step, without test metrics."""
        if self.imported is not None:
            return self.imported.histories.get(key, [])
        return [without_sealed(row) for row in read_history(self.folder, key)]

    def evidence(self, key: str) -> Evidence | None:
        """Return a trial's evidence for the report; None if there is none or it cannot be read."""
        from trainables.evidence.record import Evidence

        return Evidence.read(trial_folder(self.folder, key) / EVIDENCE)

    def hits(self, key: str, half: str) -> Hits | None:
        """Return which queries of `val` or `test` were hits; None if they were not stored, or the half is sealed."""
        from trainables.evidence.stored import Hits, hits_file  # imports torch

        if is_sealed(f"{half}/") and not self.opened:
            return None
        return Hits.read(trial_folder(self.folder, key) / hits_file(half))

    def resolution_of(self, metric: str) -> float:
        """Return the resolution of a metric: its change when one query changes, or the smallest step of its values."""
        cells = grouped(self.trials, lambda trial: trial.cell.digest).values()
        metrics = [[trial.metrics for trial in trials] for trials in cells]
        fractions = self.imported is not None or self.plan.space.program is not None
        return resolution_in(metric, metrics, fractions=fractions)

    @property
    def is_incomplete(self) -> bool:
        """Whether requested trials have not ended, a search has cells to propose, or a race continues."""
        open_trials = self.count("missing") + self.count("running")
        return open_trials > 0 or (self.race is not None and not self.race.over)

    @property
    def confirmation_left(self) -> int:
        """Number of confirming trials that have not ended."""
        return sum(trial.status in {"missing", "running"} for trial in self.confirmed)

    def count(self, status: TrialStatus) -> int:
        """Return the number of trials with a status. Trials that a search has not proposed yet count as missing."""
        return sum(trial.status == status for trial in self.trials) + (self.to_propose if status == "missing" else 0)

    @property
    def planned_trials(self) -> int:
        """Number of all trials, including those that a search has not proposed yet."""
        return len(self.trials) + self.to_propose

    def table(self) -> pd.DataFrame:
        """Return one row per trial: arm, cell, seed, status, knobs (dotted), metrics, cost and MLflow run.

        A program's parameter or metric that is named like another column, such as `status`, gets the prefix `own.`.
        Whole numbers that some arms lack have the type `Int64`.
        """
        import pandas as pd

        rows = []
        for trial in self.trials:
            arm = trial.cell.arm or self.plan.space.name
            first = {"arm": arm, "cell": trial.cell.label, "seed": trial.seed, "status": trial.status}
            last = {name: getattr(trial, name) for name in ("seconds", "attempts", "reason")}
            last |= {"trial": trial.key, "run_id": trial.run_id}
            own = {**trial.cell.knobs, **trial.metrics}
            own = {f"own.{name}" if name in first or name in last else name: value for name, value in own.items()}
            rows.append({**first, **own, **last})
        frame = pd.DataFrame(rows)
        for name in frame.columns:
            given = [row[name] for row in rows if row.get(name) is not None]
            if given and len(given) < len(rows) and all(type(value) is int and abs(value) < 2**63 for value in given):
                frame[name] = pd.array([row.get(name) for row in rows], dtype="Int64")  # else 8 would become 8.0
        return frame


def load_results(storage: Path, name: str) -> Results:
    """Return the results of a sweep. Raise ConfigError if there is no sweep of this name."""
    return Results.of(load_state(storage, name))


def load_results_and_look(storage: Path, name: str, by: str) -> Results:
    """Return the results of a sweep and record a look by the verb `by`. Raise ConfigError for an unknown sweep."""
    state = load_state(storage, name)
    state.record_look(by)
    return Results.of(state)


def results_of(folder: Path) -> Results:
    """Return the results of the sweep in a folder."""
    return Results.of(read_state(folder))


def _has_current_look(state: SweepState) -> bool:
    """Return whether a look at the present trials is recorded, or no verdict is possible yet."""
    looks = ((look_at_sweep(state, ""), state.looks), (look_at_confirmation(state, ""), state.confirmation_looks))
    return all(now is None or (bool(past) and past[-1].data == now.data) for now, past in looks)


def _trial_result(sweep: SweepState, trial: PlannedTrial, runs: Mapping[str, str]) -> TrialResult:
    state = sweep.trial(trial.key)
    end = state.end or TrialEnd("failed")
    test_metrics = sealed_metrics(sweep.folder, state) if sweep.opened else {}
    metrics = without_sealed(state.metrics) | test_metrics
    return TrialResult(
        trial.key, trial.cell, trial.seed, state.status, end.reason, metrics, state.seconds, state.attempts, state.host,
        run_id=runs.get(trial.key, ""), step=end.step or 0, ended=state.ended.time if state.ended else 0.0,
        out_of_memory=end.kind == "out_of_memory", micro_batch=state.micro_batch, code=end.code,
    )  # fmt: skip


def _run_ids(folder: Path) -> tuple[dict[str, str], Store | None]:
    """Return trial key -> MLflow run id, with the run of the sweep as `parent`, and the store."""
    try:
        sync_file = json.loads((folder / "mlflow.json").read_bytes())
        store = Store(sync_file["uri"], sync_file["experiment_id"]) if sync_file.get("uri") else None
        return dict(sync_file["runs"]), store
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        # The file is missing or damaged; the next sync writes it again.
        return {}, None
