"""Derive the content of a trial's MLflow run, except its points. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tune_dml.tracking.descriptions import trial_note
from tune_dml.tracking.projection import Projection, RunStatus, TrialRun

NOTE = "mlflow.note.content"
"""Tag that MLflow shows as the description."""
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
    """Tags that are updated: status and position in the tree."""
    params: dict[str, str]
    status: RunStatus
    moment: float
    """Time of its end, or of its last event."""


def contents_of(projection: Projection, trial: TrialRun, *, above: str, sweep_run: str, final: bool) -> RunContents:
    """Return the content of a trial's run below `above`, in the tree of `sweep_run`; `final` as for `TrialRun.status`."""
    state, planned = trial.state, projection.planned(trial.key)
    placed = {"level": "trial", PARENT_TAG: above, SWEEP_TAG: sweep_run, "sweep": projection.state.plan.name}
    return RunContents(
        version=state.version,
        title=f"{planned.cell.label}, seed {planned.seed}" if planned else trial.key,
        identity={**projection.trial_tags(trial.key), NOTE: trial_note(projection, trial.key)},
        tags={**trial.tags(final=final), **placed},
        params={**projection.parameters(planned.cell), "seed": str(planned.seed)} if planned else {},
        status=trial.status(final=final),
        moment=state.ended.time if state.ended else state.active,
    )
