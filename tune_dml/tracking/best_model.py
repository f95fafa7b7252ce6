"""Log the best configuration as an MLflow LoggedModel, if its trials stored their networks (`evaluation.keep=weights`).

    mlflow.pytorch.load_model("models:/m-...")      # from pictures to embeddings; needs none of this package

The model comes from the seed closest to the mean of all seeds, because the best seed would be optimistic.
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
from tune_dml.tracking.client import create_model, log_network, show_as_output
from tune_dml.tracking.run_contents import SWEEP_TAG

_TRAINED = "tune_dml.trained"
"""Tag that names the training a model comes from."""
_LONGEST = 500  # characters of a setting


def typical_trial(sweep: Path, trials: Sequence[TrialState], metric: str) -> TrialState | None:
    """Return the finished trial with a stored network that is closest to the mean; None if there is none."""
    finished = [trial for trial in trials if trial.status == "finished" and metric in trial.metrics]
    if not finished:
        return None
    mean = np.mean([trial.metrics[metric] for trial in finished])
    kept = [trial for trial in finished if (trial_folder(sweep, trial.key) / NETWORK).exists()]
    return min(kept, key=lambda trial: (abs(trial.metrics[metric] - mean), trial.key), default=None)


def log_model(
    client: Any, cell: Cell, trial: TrialState, network: Path, *, experiment_id: str, sweep_run: str, trial_run: str
) -> str:
    """Return the id of this training's model. Create it if missing, and delete earlier models of the sweep."""
    trained = f"{trial.key}@{trial.figures_time:.3f}"
    known = client.search_logged_models([experiment_id], f"tags.`{SWEEP_TAG}` = '{sweep_run}'")
    for model in known:
        if model.tags.get(_TRAINED) == trained and str(model.status) == "READY":
            return str(model.model_id)
    tags = {_TRAINED: trained, SWEEP_TAG: sweep_run, "cell": cell.label, "level": "best configuration"}
    params = {path: str(value)[:_LONGEST] for path, value in cell.settings.items()}
    made = create_model(client, experiment_id, trial_run, tags, params)
    log_network(client, made, network)
    show_as_output(client, sweep_run, made)
    for model in known:
        client.delete_logged_model(model.model_id)
    return made
