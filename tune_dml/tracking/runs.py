"""Find or create the runs of a sweep in an MLflow store, and push their missing content.

Runs are nested: sweep, cell, trial. Trials that an older version created directly below the sweep are moved below their
cells.

Nothing is pushed twice: a run is searched by its tag before it is created, no request is retried without a new search,
and a metric has the time of its row, so that a second push adds nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tune_dml.planning.cells import Cell
from tune_dml.record.held_out.untested import is_untested
from tune_dml.record.judging.judgement import Judgement
from tune_dml.record.ledger import LEDGER, GrowingFile
from tune_dml.tracking.client import (
    MlflowRun,
    create_run,
    describe_experiment,
    experiment_id_of,
    log_data_set,
    log_in_batches,
    log_missing,
    open_client,
    read_points,
    reason_of,
    search_runs,
    set_status,
)
from tune_dml.tracking.descriptions import cell_note, experiment_note, sweep_note, trial_note
from tune_dml.tracking.projection import MetricPoint, Projection, TrialRun, points_of
from tune_dml.tracking.run_contents import (
    NOTE,
    PARENT_TAG,
    SWEEP_TAG,
    RunContents,
    cell_contents,
    cell_points,
    sweep_contents,
    trial_contents,
    trial_title,
)
from tune_dml.tracking.store import shared_view, store_problems
from tune_dml.tracking.sync_state import CELL, PARENT, SyncState, cell_key

_BATCH = 200  # trials between two writes of the sync state
_REFUSALS = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST"}  # errors about a single run


@dataclass
class SyncReport:
    """Progress and result of a sync."""

    trials: int = 0  # pushed
    rows: int = 0  # pushed
    waiting: int = 0  # number of trials that are not up to date in MLflow
    error: str | None = None  # reason of a failure, in one line


class RunPusher:
    """Pushes the runs of a sweep. Raises the errors of the MLflow store, except those of a single trial."""

    def __init__(self, uri: str, experiment: str, projection: Projection, sync_state: SyncState):
        self.client: Any = None
        self.is_connected = False  # whether the runs in the store are known; False after an error
        self.is_new_sweep = False  # whether the sweep was not in the store before
        self._uri = uri
        self._experiment = experiment
        self._projection = projection
        self._sync_state = sync_state
        self._runs: dict[str, MlflowRun] = {}
        self._points_by_run: dict[str, set[MetricPoint]] = {}  # of the runs of cells and the sweep
        self._pushed_states: dict[str, object] = {}  # by the id of a cell's run

    def connect(self) -> None:
        """Find the experiment, the sweep's run and all runs below it; create the sweep's run if it is missing."""
        if self.is_connected:
            return
        if problems := store_problems(self._uri):
            raise ConnectionError(str(problems[0]))
        self.client = self.client or open_client(self._uri)
        known_run = self._sync_state.runs.get(PARENT, "")
        experiment_id = experiment_id_of(self.client, self._experiment, self._uri, known_run)
        plan, cells = self._projection.state.plan, self._projection.state.cells[:1]
        views = shared_view(plan.name, [name for cell in cells for name in self._projection.knobs(cell)])
        describe_experiment(self.client, experiment_id, experiment_note(plan.space), views)
        parent = self._find_or_create_parent(experiment_id)
        self._runs, self._pushed_states = {PARENT: parent}, {}
        for tag in (SWEEP_TAG, PARENT_TAG):  # trials of older versions have only the second tag
            for run in search_runs(self.client, experiment_id, f"tags.`{tag}` = '{parent.id}'"):
                if key := _key_of(run):
                    self._runs[key] = self._remove_duplicate(self._runs.get(key), run, key)
        self._sync_state.adopt(experiment_id, self._runs, self._projection.runs)
        self._sync_state.save()
        self.is_connected = True

    def push(self, report: SyncReport, *, final: bool, interrupted: bool) -> None:
        """Push every trial that changed, then cells and the sweep's run. Count them in `report`.

        If `final`, no driver continues the sweep, so trials that have not ended are KILLED. The sweep is `interrupted` if
        trials are left that are not in the ledger.
        """
        for trial in self._projection.runs.values():
            run = self._runs.get(trial.key)
            wanted = (self._projection.state.plan.name, trial.status(final=final))
            is_current = run and SWEEP_TAG in run.tags and (run.tags.get("sweep"), run.status) == wanted
            if is_current and not trial.needs_push:
                continue
            try:
                self._push_trial(trial, run, report, final=final)
            except Exception as error:
                if getattr(error, "error_code", "") not in _REFUSALS:
                    raise
                report.error = f"{trial.key}: {reason_of(error)}"  # the other trials continue
                self.is_connected = False  # its run may have been deleted: search again
            if report.trials % _BATCH == _BATCH - 1:
                self._sync_state.save()
        self._push_opened()
        self._push_cells(final=final)
        contents = sweep_contents(self._projection, final=final, interrupted=interrupted)
        self._push_contents(self._runs[PARENT], contents)

    def _push_opened(self) -> None:
        """Push the test metrics of an opened sweep."""
        state = self._projection.state
        if state.opened is None:
            return
        for trial in self._projection.runs.values():
            if self._sync_state.lacks_opened(trial) and not is_untested(state.folder, trial.key):
                log_in_batches(self.client, self._runs[trial.key].id, trial.sealed_points(state.folder), {}, {})
                self._sync_state.opened[trial.key] = trial.state.figures_time

    def _find_or_create_parent(self, experiment_id: str) -> MlflowRun:
        projection = self._projection
        existing: MlflowRun | None = None
        for run in search_runs(self.client, experiment_id, f"tags.`tune_dml.ledger` = '{projection.ledger_id}'"):
            existing = self._remove_duplicate(existing, run, PARENT)
        if existing is not None:
            return existing
        last_run_id = self._sync_state.runs.get(PARENT)  # the tags of a renamed sweep still have its old name
        query = f"attributes.run_id = '{last_run_id}'"
        for run in search_runs(self.client, experiment_id, query) if last_run_id else ():
            if _is_copy(projection.state.folder, run.tags.get("sweep", projection.state.plan.name)):
                break
            self.client.update_run(run.id, name=projection.state.plan.name)
            return run
        self.is_new_sweep = True
        start = projection.state.created or 0.0
        tags = _with_source(projection.parent_tags())
        return create_run(self.client, experiment_id, projection.state.plan.name, start, tags)

    def _remove_duplicate(self, existing: MlflowRun | None, duplicate: MlflowRun, key: str) -> MlflowRun:
        """If a trial has two runs, as after a lost answer, keep the one in `SyncState` and delete the other."""
        if existing is None or existing.id == duplicate.id:
            return duplicate
        pair = (existing, duplicate)
        kept, removed = reversed(pair) if self._sync_state.runs.get(key) == duplicate.id else pair
        self.client.delete_run(removed.id)
        return kept

    def _create(self, name: str, started: float, tags: Mapping[str, str]) -> MlflowRun:
        return create_run(self.client, self._sync_state.experiment_id, name, started, _with_source(tags))

    def _push_trial(self, trial: TrialRun, run: MlflowRun | None, report: SyncReport, *, final: bool) -> None:
        projection, sweep, version = self._projection, self._runs[PARENT], trial.state.version
        planned = projection.planned_trial(trial.key)
        parent = self._cell_run(planned.cell)
        contents = trial_contents(projection, trial, parent_run=parent.id, sweep_run=sweep.id, final=final)
        if run is None:
            tags = {**projection.trial_tags(trial.key), NOTE: trial_note(projection, trial.key), **contents.tags}
            run = self._create(trial_title(planned), trial.state.started, tags)
            self._runs[trial.key], self._sync_state.runs[trial.key] = run, run.id
            self._push_data(run)
        if not trial.history.offset:  # the first push by this process
            trial.skip(self._sync_state.rows.get(trial.key, 0))
        rows, points = trial.new_points()
        log_missing(self.client, run, points, contents.params, contents.tags)
        trial.mark_pushed(rows)
        set_status(self.client, run, contents.status, contents.end_time)
        new_rows = sum(bool(row.points) for row in rows)
        report.trials, report.rows = report.trials + 1, report.rows + new_rows
        self._sync_state.record_push(trial, version, new_rows)

    def _cell_run(self, cell: Cell) -> MlflowRun:
        key = cell_key(cell)
        if key not in self._runs:
            projection, parent = self._projection, self._runs[PARENT]
            tags = {PARENT_TAG: parent.id, SWEEP_TAG: parent.id, NOTE: cell_note(projection, cell)}
            starts = [trial.started for trial in projection.trials_of(cell) if trial.started]
            started = min(starts, default=projection.state.created or 0.0)
            run = self._create(cell.label, started, {**projection.cell_tags(cell), **tags})
            self._runs[key], self._sync_state.runs[key], self._points_by_run[run.id] = run, run.id, set()
        return self._runs[key]

    def _push_cells(self, *, final: bool) -> None:
        """Push the current mean, the configuration and the data set of each cell that changed."""
        projection = self._projection
        for cell in projection.started_cells():
            run, trials = self._cell_run(cell), projection.trials_of(cell)
            state = (final, projection.state.plan.name, tuple(trial.version for trial in trials))
            if self._pushed_states.get(run.id) == state:
                continue
            if run.id not in self._points_by_run:  # an earlier session created it
                self._points_by_run[run.id] = set(read_points(self.client, run.id, ("mean", "seeds")))
            self._push_contents(run, cell_contents(projection, cell, final=final))
            self._pushed_states[run.id] = state

    def _push_contents(self, run: MlflowRun, contents: RunContents) -> None:
        self._push_data(run)
        self._push_missing(run, contents.points, contents.params, contents.tags)
        set_status(self.client, run, contents.status, contents.end_time)

    def _push_missing(
        self, run: MlflowRun, points: Sequence[MetricPoint], params: Mapping[str, str], tags: Mapping[str, str]
    ) -> None:
        existing = self._points_by_run.setdefault(run.id, set())
        log_missing(self.client, run, [point for point in points if point not in existing], params, tags)
        existing.update(points)

    def _push_data(self, run: MlflowRun) -> None:
        plan = self._projection.state.plan
        if not run.has_data and plan.data_digest:
            log_data_set(self.client, run.id, plan.dataset, plan.data_digest)
            run.has_data = True

    def push_judgement(self, judgement: Judgement, *, reported: bool, model: str) -> None:
        """Push the report's findings to the runs of the sweep and its cells.

        `reported` is whether the report is attached; `model` is the id of the best configuration's model, or empty.
        """
        projection, parent = self._projection, self._runs[PARENT]
        ended = sum(trial.ended is not None for trial in projection.state.trial_states.values())
        experiment_id = self._sync_state.experiment_id
        note = sweep_note(projection, judgement, experiment_id, parent.id, reported=reported, model=model)
        time = projection.report_time
        self._push_missing(parent, _finite_points(judgement.figures, ended, time), {}, {NOTE: note})
        for cell in projection.started_cells():
            if (finding := judgement.cells.get(cell.label)) and (run := self._runs.get(cell_key(cell))):
                points = cell_points(projection.trials_of(cell), projection.state.plan.metric)
                figures = _finite_points(finding.figures, points[-1].step if points else 0, time)
                self._push_missing(run, figures, {}, {NOTE: cell_note(projection, cell, finding.text)})


def _is_copy(folder: Path, run_name: str) -> bool:
    """Return whether the sweep of a run is still beside `folder`, which then was not renamed but copied."""
    ledgers = (GrowingFile(path / LEDGER) for path in (folder, folder.with_name(run_name)))
    first, other = (next(ledger.read_lines(), None) for ledger in ledgers)
    return run_name != folder.name and first == other


def _finite_points(figures: Mapping[str, float], step: int, time: float) -> tuple[MetricPoint, ...]:
    return points_of({name: value for name, value in figures.items() if math.isfinite(value)}, step, time)


def _with_source(tags: Mapping[str, str]) -> dict[str, str]:
    git = {"mlflow.source.git.commit": tags["git_commit"]} if tags["git_commit"] else {}
    return {**tags, **git, "mlflow.source.name": "tune-dml", "mlflow.source.type": "JOB"}


def _key_of(run: MlflowRun) -> str:
    if cell := run.tags.get("tune_dml.cell_key", ""):
        return CELL + cell.rpartition("-")[2]
    return run.tags.get("tune_dml.trial_key", "").rpartition("-")[2]
