"""What MLflow is told of a trial when it is pushed, its points aside. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tune_dml.tracking.descriptions import trial_note
from tune_dml.tracking.projection import Projection, RunStatus, TrialRun

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a description."""
PARENT_TAG = "mlflow.parentRunId"
SWEEP_TAG = "tune_dml.sweep_run"


@dataclass(frozen=True)
class RunContents:
    """A trial as it was when it was looked at."""

    version: int
    title: str
    identity: dict[str, str]
    """Tags that its run gets when it is made."""
    tags: dict[str, str]
    """How it went and where it belongs."""
    params: dict[str, str]
    status: RunStatus
    moment: float
    """When it ended, or was last heard of."""


def contents_of(projection: Projection, trial: TrialRun, *, above: str, sweep_run: str, final: bool) -> RunContents:
    """Of a trial below the run `above`, in the tree of `sweep_run`; `final` when no driver will be left running."""
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
