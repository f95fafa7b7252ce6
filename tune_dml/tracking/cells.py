"""Derive the MLflow run of a cell: one point of the curve. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tune_dml.record.state import TrialState
from tune_dml.tracking.projection import MetricPoint, RunStatus, numbers


def cell_points(trials: Sequence[TrialState], metric: str) -> tuple[MetricPoint, ...]:
    """Return the mean over seeds after each trial's end; the step is the number of seeds with a value.

    The last point equals the report's mean exactly.
    """
    values = {trial.key: _value(trial, metric) for trial in trials}
    ended = sorted(
        (trial.ended.time, trial.key) for trial in trials if trial.ended and math.isfinite(values[trial.key])
    )
    points: list[MetricPoint] = []
    for count, (time, _) in enumerate(ended, start=1):
        known = {key for _, key in ended[:count]}
        mean = float(np.mean([value for key, value in values.items() if key in known]))
        points += numbers({"mean": mean, "seeds": count}, count, time)
    return tuple(points)


def cell_status(trials: Sequence[TrialState], *, final: bool) -> RunStatus:
    """Return RUNNING until all trials have ended, KILLED if no driver will end them; a diverged trial is a result."""
    statuses = {trial.status for trial in trials}
    if statuses & {"missing", "running"}:
        return "KILLED" if final else "RUNNING"
    return "FAILED" if "failed" in statuses else "FINISHED"


def _value(trial: TrialState, metric: str) -> float:
    number = trial.metrics.get(metric, math.nan) if trial.status == "finished" else math.nan
    return float(number)
