"""Log the best configuration as an MLflow LoggedModel, if its trials stored their networks (`evaluation.keep=weights`).

    mlflow.pytorch.load_model("models:/m-...")      # maps pictures to embeddings; does not need this package

The model is that of the seed closest to the mean over seeds, because the best seed would be too good.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainables.context import NETWORK
from tune_dml.planning.cells import Cell
from tune_dml.record.ledger import trial_folder
from tune_dml.record.state import TrialState
from tune_dml.tracking.client import log_network, show_as_output
from tune_dml.tracking.run_contents import SWEEP_TAG
from tune_dml.tracking.sync_state import PARENT, SyncState

_TRAINING_TAG = "tune_dml.trained"  # tag of a model that names its training
_MAX_LENGTH = 500  # characters of a setting


def typical_trial(sweep: Path, trials: Sequence[TrialState], metric: str) -> TrialState | None:
    """Return the finished trial with a stored network whose metric is closest to the mean; None if there is none."""
    finished = [trial for trial in trials if trial.status == "finished" and metric in trial.metrics]
    if not finished:
        return None
    mean = np.mean([trial.metrics[metric] for trial in finished])
    candidates = [trial for trial in finished if (trial_folder(sweep, trial.key) / NETWORK).exists()]
    return min(candidates, key=lambda trial: (abs(trial.metrics[metric] - mean), trial.key), default=None)


def log_model(client: Any, cell: Cell, trial: TrialState, network: Path, sync_state: SyncState) -> str:
    """Return the id of the trial's model. Create it if it is missing, and delete other models of the sweep."""
    training = f"{trial.key}@{trial.figures_time:.3f}"
    experiment_id, sweep_run = sync_state.experiment_id, sync_state.runs[PARENT]
    models = client.search_logged_models([experiment_id], f"tags.`{SWEEP_TAG}` = '{sweep_run}'")
    for model in models:
        if model.tags.get(_TRAINING_TAG) == training and str(model.status) == "READY":
            return str(model.model_id)
    tags = {_TRAINING_TAG: training, SWEEP_TAG: sweep_run, "cell": cell.label, "level": "best configuration"}
    params = {path: str(value)[:_MAX_LENGTH] for path, value in cell.settings.items()}
    trial_run, kind = sync_state.runs[trial.key], "embedding network"
    model_id = str(client.create_logged_model(experiment_id, "best", trial_run, tags, params, kind).model_id)
    log_network(client, model_id, network)
    show_as_output(client, sweep_run, model_id)
    for model in models:
        client.delete_logged_model(model.model_id)
    return model_id
