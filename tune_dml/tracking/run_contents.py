"""Derive the content of the MLflow runs of a sweep, its cells and its trials. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import PlannedTrial
from tune_dml.record.state import TrialState
from tune_dml.tracking.naming import mlflow_parameters
from tune_dml.tracking.projection import MetricPoint, Projection, RunStatus, TrialRun, points_of

NOTE = "mlflow.note.content"
PARENT_TAG = "mlflow.parentRunId"
SWEEP_TAG = "tune_dml.sweep_run"


@dataclass(frozen=True)
class RunContents:
    """The content that a run should have, or has."""

    params: dict[str, str]
    tags: dict[str, str]  # that change with the ledger; others are set when the run is created
    status: RunStatus
    end_time: float  # time of the end or, before, of the last event
    points: tuple[MetricPoint, ...] = ()  # all points; of a trial, `TrialRun` selects those to push


def sweep_contents(projection: Projection, *, final: bool, interrupted: bool) -> RunContents:
    """Return the content of the sweep's run: the settings that all cells share, and the domain of each knob.

    The arguments are those of `Projection.parent_status`.
    """
    return RunContents(
        {**mlflow_parameters(projection.state.plan.base_settings), **projection.domains()},
        projection.parent_tags(),
        projection.parent_status(final=final, interrupted=interrupted),
        projection.last_event_time,
        projection.parent_points(),
    )


def cell_contents(projection: Projection, cell: Cell, *, final: bool) -> RunContents:
    """Return the content of a cell's run: its knobs, and the mean over its seeds."""
    plan, trials = projection.state.plan, projection.trials_of(cell)
    end_time = max((trial.active for trial in trials), default=projection.last_event_time)
    status, points = _cell_status(trials, final=final), cell_points(trials, plan.metric)
    return RunContents(projection.knobs(cell), {"sweep": plan.name}, status, end_time, points)


def trial_contents(
    projection: Projection, trial: TrialRun, *, parent_run: str, sweep_run: str, final: bool
) -> RunContents:
    """Return the content of a trial's run except its points. `final` is that of `TrialRun.status`."""
    state, planned = trial.state, projection.planned_trial(trial.key)
    position = {"level": "trial", PARENT_TAG: parent_run, SWEEP_TAG: sweep_run, "sweep": projection.state.plan.name}
    return RunContents(
        {**projection.parameters(planned.cell), "seed": str(planned.seed)},
        {**trial.tags(final=final), **position},
        trial.status(final=final),
        state.ended.time if state.ended else state.active,
    )


def trial_title(trial: PlannedTrial) -> str:
    """Return the name of a trial's run."""
    return f"{trial.cell.label}, seed {trial.seed}"


def cell_points(trials: Sequence[TrialState], metric: str) -> tuple[MetricPoint, ...]:
    """Return the mean over seeds after the end of each trial. The step is the number of seeds with a value.

    The last point equals the mean in the report exactly.
    """
    values = {trial.key: _value(trial, metric) for trial in trials}
    ended = sorted(
        (trial.ended.time, trial.key) for trial in trials if trial.ended and math.isfinite(values[trial.key])
    )
    points: list[MetricPoint] = []
    for count, (time, _) in enumerate(ended, start=1):
        keys = {key for _, key in ended[:count]}
        mean = float(np.mean([value for key, value in values.items() if key in keys]))
        points += points_of({"mean": mean, "seeds": count}, count, time)
    return tuple(points)


def _cell_status(trials: Sequence[TrialState], *, final: bool) -> RunStatus:
    """Return RUNNING (KILLED if `final`) until all trials have ended, then FAILED if one failed, else FINISHED."""
    statuses = {trial.status for trial in trials}
    if statuses & {"missing", "running"}:
        return "KILLED" if final else "RUNNING"
    return "FAILED" if "failed" in statuses else "FINISHED"


def _value(trial: TrialState, metric: str) -> float:
    number = trial.metrics.get(metric, math.nan) if trial.status == "finished" else math.nan
    return float(number)
