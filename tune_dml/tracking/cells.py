"""The run of a cell, between those of the sweep and of its trials: one point of the curve. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tune_dml.record.state import TrialState
from tune_dml.tracking.projection import MetricPoint, RunStatus, numbers


def cell_points(trials: Sequence[TrialState], metric: str) -> tuple[MetricPoint, ...]:
    """The mean over seeds as each trial ended, in the order of their ends; the step counts the seeds that have a number.

    The last is the report's mean, to the digit: the same values in the same order.
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
    """RUNNING until all its trials have ended, KILLED when no driver is left to end them; a diverged trial is a result."""
    statuses = {trial.status for trial in trials}
    if statuses & {"missing", "running"}:
        return "KILLED" if final else "RUNNING"
    return "FAILED" if "failed" in statuses else "FINISHED"


def _value(trial: TrialState, metric: str) -> float:
    number = trial.metrics.get(metric, math.nan) if trial.status == "finished" else math.nan
    return float(number)
