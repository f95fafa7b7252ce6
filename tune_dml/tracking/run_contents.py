"""Derive the content of the MLflow runs of cells, and of trials except their points. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tune_dml.record.state import TrialState
from tune_dml.tracking.descriptions import trial_note
from tune_dml.tracking.projection import MetricPoint, Projection, RunStatus, TrialRun, points_of

NOTE = "mlflow.note.content"
PARENT_TAG = "mlflow.parentRunId"
SWEEP_TAG = "tune_dml.sweep_run"


@dataclass(frozen=True)
class RunContents:
    """Content of a trial's run at one version of its state."""

    version: int
    title: str
    identity: dict[str, str]
    """Tags that are set when the run is created."""
    tags: dict[str, str]
    """Tags that are updated: status and position in the tree of runs."""
    params: dict[str, str]
    status: RunStatus
    end_time: float
    """Time of the end of the trial or, before, of its last event."""


def contents_of(
    projection: Projection, trial: TrialRun, *, parent_run: str, sweep_run: str, final: bool
) -> RunContents:
    """Return the content of a trial's run, whose parent is `parent_run`. `final` is that of `TrialRun.status`."""
    state, planned = trial.state, projection.planned_trial(trial.key)
    position = {"level": "trial", PARENT_TAG: parent_run, SWEEP_TAG: sweep_run, "sweep": projection.state.plan.name}
    return RunContents(
        version=state.version,
        title=f"{planned.cell.label}, seed {planned.seed}" if planned else trial.key,
        identity={**projection.trial_tags(trial.key), NOTE: trial_note(projection, trial.key)},
        tags={**trial.tags(final=final), **position},
        params={**projection.parameters(planned.cell), "seed": str(planned.seed)} if planned else {},
        status=trial.status(final=final),
        end_time=state.ended.time if state.ended else state.active,
    )


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


def cell_status(trials: Sequence[TrialState], *, final: bool) -> RunStatus:
    """Return RUNNING (KILLED if `final`) until all trials have ended, then FAILED if one failed. Diverged is a result."""
    statuses = {trial.status for trial in trials}
    if statuses & {"missing", "running"}:
        return "KILLED" if final else "RUNNING"
    return "FAILED" if "failed" in statuses else "FINISHED"


def _value(trial: TrialState, metric: str) -> float:
    number = trial.metrics.get(metric, math.nan) if trial.status == "finished" else math.nan
    return float(number)
