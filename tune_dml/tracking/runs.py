"""Find or create the runs of a sweep in an MLflow store, and push what they lack.

Runs are nested: sweep, cell, trial. Trials that an older version put right under the sweep are moved below their cells.

Exactly once: a run is looked up by its tag before it is created, requests are never retried blindly, and a metric keeps the
time of its row, so that pushing it again adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tune_dml.planning.cells import Cell
from tune_dml.record.held_out.untested import is_untested
from tune_dml.record.judging.judgement import Judgement
from tune_dml.tracking.client import (
    MlflowRun,
    create_run,
    describe_experiment,
    experiment_id_of,
    log_data_set,
    log_in_batches,
    log_news,
    open_client,
    read_points,
    reason_of,
    search_runs,
    set_status,
)
from tune_dml.tracking.descriptions import cell_note, experiment_note, sweep_note
from tune_dml.tracking.projection import EvaluationRow, MetricPoint, Projection, RunStatus, TrialRun, numbers
from tune_dml.tracking.run_contents import (
    NOTE,
    PARENT_TAG,
    SWEEP_TAG,
    RunContents,
    cell_points,
    cell_status,
    contents_of,
)
from tune_dml.tracking.store import check, shared_view
from tune_dml.tracking.sync_state import CELL, PARENT, SyncState, cell_key

_BATCH = 200  # trials between two writes of the bookkeeping
_REFUSALS = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST"}  # of one run, not of the server


@dataclass
class Push:
    """Options and progress of one push."""

    final: bool
    """Whether no driver will be left running: trials that have not ended are then KILLED."""
    interrupted: bool = False
    """Whether trials remain that are not in the ledger."""
    trials: int = 0
    rows: int = 0
    error: str | None = None

    def count(self, rows: Sequence[EvaluationRow]) -> int:
        """Count one more trial; return the number of its new rows."""
        new = sum(bool(row.points) for row in rows)
        self.trials, self.rows = self.trials + 1, self.rows + new
        return new


class RunPusher:
    """Pushes runs. Raises the errors of MLflow's store, except those of a single trial."""

    def __init__(self, uri: str, experiment: str, projection: Projection, synced: SyncState):
        self.client: Any = None
        self.connected = False
        """Whether the store's runs are known; False after an error."""
        self.was_new = False
        """Whether the store did not have the sweep before."""
        self._uri = uri
        self._experiment = experiment
        self._projection = projection
        self._synced = synced
        self._runs: dict[str, MlflowRun] = {}
        self._shown: dict[str, set[MetricPoint]] = {}
        """Run id -> points that runs of cells and of the sweep have."""
        self._standing: dict[str, object] = {}
        """Run id -> state of a cell's trials at its last push."""

    def connect(self) -> None:
        """Find the experiment, the sweep's run and every run below it, once. Create the sweep's run if missing."""
        if self.connected:
            return
        if problems := check(self._uri):
            raise ConnectionError(str(problems[0]))
        self.client = self.client or open_client(self._uri)
        experiment_id = experiment_id_of(self.client, self._experiment, self._uri, self._synced.runs.get(PARENT, ""))
        plan, cells = self._projection.state.plan, self._projection.state.cells[:1]
        views = shared_view(plan.name, [name for cell in cells for name in self._projection.knobs(cell)])
        describe_experiment(self.client, experiment_id, experiment_note(plan.space), views)
        parent = self._parent(experiment_id)
        self._runs, self._standing = {PARENT: parent}, {}
        for tag in (SWEEP_TAG, PARENT_TAG):  # trials of older versions have only the second tag
            for run in search_runs(self.client, experiment_id, f"tags.`{tag}` = '{parent.id}'"):
                if key := _key_of(run):
                    self._runs[key] = self._one_of(self._runs.get(key), run, key)
        self._synced.adopt(experiment_id, self._runs, self._projection.runs)
        self._synced.save()
        self.connected = True

    def push(self, push: Push) -> None:
        """Push every trial with news or another status, then cells and the sweep's run."""
        for trial in self._projection.runs.values():
            run = self._runs.get(trial.key)
            if not trial.due and _stands(run, self._projection.state.plan.name, trial.status(final=push.final)):
                continue
            try:
                self._push_trial(trial, run, push)
            except Exception as error:
                if getattr(error, "error_code", "") not in _REFUSALS:
                    raise
                push.error = f"{trial.key}: {reason_of(error)}"  # the other trials continue
                self.connected = False  # its run may have been deleted: look again
            if push.trials % _BATCH == _BATCH - 1:
                self._synced.save()
        self.push_opened()
        self._push_cells(push)
        self._push_parent(push)

    def push_opened(self) -> None:
        """Push the test metrics of an opened sweep, and the opening to the sweep's run."""
        state = self._projection.state
        if state.opened is None:
            return
        for trial in self._projection.runs.values():
            if self._synced.lacks_opened(trial) and not is_untested(state.folder, trial.key):
                log_in_batches(self.client, self._runs[trial.key].id, trial.sealed_points(state.folder), {}, {})
                self._synced.opened_pushed(trial)
        log_news(self.client, self._runs[PARENT], (), {}, self._projection.parent_tags())

    def _parent(self, experiment_id: str) -> MlflowRun:
        projection = self._projection
        known: MlflowRun | None = None
        for run in search_runs(self.client, experiment_id, f"tags.`tune_dml.ledger` = '{projection.ledger_id}'"):
            known = self._one_of(known, run, PARENT)
        if known is not None:
            return known
        booked = self._synced.runs.get(PARENT)  # a renamed sweep's tags still have the old name
        for run in search_runs(self.client, experiment_id, f"attributes.run_id = '{booked}'") if booked else ():
            self.client.update_run(run.id, name=projection.state.plan.name)
            return run
        self.was_new = True
        born = projection.state.created or 0.0
        tags = _with_source(projection.parent_tags())
        return create_run(self.client, experiment_id, projection.state.plan.name, born, tags)

    def _one_of(self, known: MlflowRun | None, other: MlflowRun, key: str) -> MlflowRun:
        """Delete one of two runs of a trial, which may remain after a lost answer; keep the one in `SyncState`."""
        if known is None or known.id == other.id:
            return other
        keep, drop = (other, known) if self._synced.runs.get(key) == other.id else (known, other)
        self.client.delete_run(drop.id)
        return keep

    def _create(self, name: str, started: float, tags: Mapping[str, str]) -> MlflowRun:
        """Create a run below the sweep's, without parameters."""
        return create_run(self.client, self._synced.experiment_id, name, started, _with_source(tags))

    def _push_trial(self, trial: TrialRun, run: MlflowRun | None, push: Push) -> None:
        one = self._contents_of(trial, push)
        if run is None:
            run = self._create(one.title, trial.state.started, {**one.identity, **one.tags})
            self._runs[trial.key], self._synced.runs[trial.key] = run, run.id
            self._push_data(run)
        self._synced.skip_pushed_rows(trial)
        rows, points = trial.news()
        log_news(self.client, run, points, one.params, one.tags)
        trial.taken(rows)
        set_status(self.client, run, one.status, one.moment)
        self._synced.pushed(trial, one.version, push.count(rows))

    def _contents_of(self, trial: TrialRun, push: Push) -> RunContents:
        """Return the content of a trial's run. Create its cell's run if missing."""
        sweep, planned = self._runs[PARENT], self._projection.planned(trial.key)
        above = self._cell_run(planned.cell) if planned else sweep
        return contents_of(self._projection, trial, above=above.id, sweep_run=sweep.id, final=push.final)

    def _cell_run(self, cell: Cell) -> MlflowRun:
        """Return a cell's run. Create it if missing."""
        key = cell_key(cell)
        if key not in self._runs:
            projection, parent = self._projection, self._runs[PARENT]
            above = {PARENT_TAG: parent.id, SWEEP_TAG: parent.id, NOTE: cell_note(projection, cell)}
            started = projection.cell_started(cell)
            run = self._create(cell.label, started, {**projection.cell_tags(cell), **above})
            self._runs[key], self._synced.runs[key], self._shown[run.id] = run, run.id, set()
        return self._runs[key]

    def _push_cells(self, push: Push) -> None:
        """Push each cell's mean so far, its configuration and its data set."""
        projection = self._projection
        for cell in projection.cells_begun():
            run, trials = self._cell_run(cell), projection.trials_of(cell)
            status, name = cell_status(trials, final=push.final), projection.state.plan.name
            standing = (status, name, tuple(trial.version for trial in trials))
            if self._standing.get(run.id) == standing:
                continue
            self._push_data(run)
            points = cell_points(trials, projection.state.plan.metric)
            if run.id not in self._shown:  # created by an earlier session
                self._shown[run.id] = set(read_points(self.client, run.id, ("mean", "seeds")))
            self._push_new(run, points, projection.knobs(cell), {"sweep": name})
            active = max((trial.active for trial in trials), default=projection.last_active)
            set_status(self.client, run, status, active)
            self._standing[run.id] = standing

    def _push_new(
        self, run: MlflowRun, points: Sequence[MetricPoint], params: Mapping[str, str], tags: Mapping[str, str]
    ) -> None:
        """Push the points that the run is not known to have."""
        known = self._shown.setdefault(run.id, set())
        log_news(self.client, run, [point for point in points if point not in known], params, tags)
        known.update(points)

    def _push_data(self, run: MlflowRun) -> None:
        """Log the data set, if the run lacks it."""
        plan = self._projection.state.plan
        if not run.has_data and plan.data_digest:
            log_data_set(self.client, run.id, plan.dataset, plan.data_digest)
            run.has_data = True

    def _push_parent(self, push: Push) -> None:
        run, projection = self._runs[PARENT], self._projection
        self._push_data(run)
        self._push_new(run, projection.parent_points(), projection.parent_parameters(), projection.parent_tags())
        status = projection.parent_status(final=push.final, interrupted=push.interrupted)
        set_status(self.client, run, status, projection.last_active)

    def push_judgement(self, judgement: Judgement, *, reported: bool, model: str) -> None:
        """Push the report's findings to the runs of the sweep and its cells.

        Args:
            judgement: the findings.
            reported: whether the report is attached.
            model: id of the best configuration's model; may be empty.
        """
        projection, parent = self._projection, self._runs[PARENT]
        ended = sum(trial.ended is not None for trial in projection.state.recorded.values())
        note = sweep_note(projection, judgement, self._synced.experiment_id, parent.id, reported=reported, model=model)
        self._push_new(parent, _said(judgement.figures, ended, projection.judged), {}, {NOTE: note})
        for cell in projection.cells_begun():
            if (finding := judgement.cells.get(cell.label)) and (run := self._runs.get(cell_key(cell))):
                points = cell_points(projection.trials_of(cell), projection.state.plan.metric)
                said = _said(finding.figures, points[-1].step if points else 0, projection.judged)
                self._push_new(run, said, {}, {NOTE: cell_note(projection, cell, finding.text)})


def _said(figures: Mapping[str, float], step: int, moment: float) -> tuple[MetricPoint, ...]:
    """Return finite figures as points at the time of the last event that they depend on."""
    return numbers({name: value for name, value in figures.items() if math.isfinite(value)}, step, moment)


def _with_source(tags: Mapping[str, str]) -> dict[str, str]:
    """Add the tags that MLflow shows as the source of a run."""
    git = {"mlflow.source.git.commit": tags["git_commit"]} if tags["git_commit"] else {}
    return {**tags, **git, "mlflow.source.name": "tune-dml", "mlflow.source.type": "JOB"}


def _stands(run: MlflowRun | None, sweep: str, status: RunStatus) -> bool:
    """Whether a trial's run exists below its sweep's, with the sweep's name and a status."""
    return run is not None and SWEEP_TAG in run.tags and (run.tags.get("sweep"), run.status) == (sweep, status)


def _key_of(run: MlflowRun) -> str:
    """Return the key of a trial's or cell's run; empty for other runs."""
    if cell := run.tags.get("tune_dml.cell_key", ""):
        return CELL + cell.rpartition("-")[2]
    return run.tags.get("tune_dml.trial_key", "").rpartition("-")[2]
