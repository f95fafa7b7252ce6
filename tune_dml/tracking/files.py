"""Upload the files of a sweep's runs: plan, provenance of each session, evidence of trials, report, best network.

If its trials stored their networks (`evaluation.keep=weights`), the best configuration becomes an MLflow LoggedModel,
which `mlflow.pytorch.load_model("models:/m-...")` loads without this package. Its network is that of the seed closest
to the mean over seeds, because the best seed would be too good.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainables.context import EVIDENCE, NETWORK
from tune_dml.planning.cells import Cell
from tune_dml.record.ledger import trial_folder
from tune_dml.record.state import TrialState
from tune_dml.tracking.client import file_store, log_network, reason_of
from tune_dml.tracking.descriptions import REPORT
from tune_dml.tracking.projection import Projection
from tune_dml.tracking.run_contents import SWEEP_TAG
from tune_dml.tracking.runs import SyncReport
from tune_dml.tracking.sync_state import PARENT, SyncState

_TRAINING_TAG = "tune_dml.trained"  # tag of a model that names its training
_MAX_LENGTH = 500  # characters of a setting


class FilePusher:
    """Uploads files to the artifact store, which is often on another machine than the metrics.

    After a failure it uploads nothing before the last push.
    """

    def __init__(self, projection: Projection, sync_state: SyncState):
        self._projection = projection
        self._sync_state = sync_state
        self.has_failed = False

    def push(self, client: Any, report: SyncReport, *, final: bool) -> None:
        """Upload the plan and sessions to the sweep's run, and evidence to the runs of ended trials."""
        try:
            if not self.has_failed or final:
                self._push_sources(client)
                self._push_evidence(client)
                self.has_failed = False
        except Exception as error:
            self.has_failed, report.error = True, reason_of(error)

    def _push_sources(self, client: Any) -> None:
        state, parent = self._projection.state, self._sync_state.runs[PARENT]
        if self._sync_state.sessions == len(state.sessions):
            return
        if (plan := state.folder / "plan.json").exists():
            client.log_artifact(parent, str(plan))
        for number in range(self._sync_state.sessions, len(state.sessions)):
            client.log_dict(parent, state.sessions[number].body(), f"sessions/{number + 1}.json")
        self._sync_state.sessions = len(state.sessions)

    def _push_evidence(self, client: Any) -> None:
        for run in self._projection.runs.values():
            ended = run.state.ended
            if ended is None or run.state.has_remote_files or not self._sync_state.lacks_evidence(run):
                continue
            folder = trial_folder(self._projection.state.folder, run.key) / EVIDENCE
            if folder.is_dir():
                client.log_artifacts(self._sync_state.runs[run.key], str(folder), EVIDENCE)
            self._sync_state.evidence[run.key] = ended.time


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
    log_network(client, sweep_run, model_id, network)
    for model in models:
        client.delete_logged_model(model.model_id)
    return model_id


def replace_report(client: Any, run_id: str, folder: Path, files: Sequence[Path]) -> None:
    """Upload a report, then delete other files of an earlier one, so that a failure loses nothing.

    The folder may hold files of the user, such as with `-o .`; only the report's `files` are uploaded.
    """
    paths = {REPORT / file.relative_to(folder): file for file in files}
    for path, file in paths.items():
        client.log_artifact(run_id, str(file), path.parent.as_posix())
    repository = file_store(client, run_id)
    for stale in {*_files_under(client, run_id, REPORT)} - {path.as_posix() for path in paths}:
        repository.delete_artifacts(stale)


def attach_missing_report(client: Any, run_id: str, folder: Path) -> bool:
    """Upload a sweep's report if its run has none; return whether the run then has one."""
    if any(entry.path == f"{REPORT}/report.html" for entry in client.list_artifacts(run_id, REPORT)):
        return True
    if not (folder / "report.html").exists():
        return False
    client.log_artifacts(run_id, str(folder), REPORT)
    return True


def _files_under(client: Any, run_id: str, folder: str) -> Iterator[str]:
    for entry in client.list_artifacts(run_id, folder):
        if entry.is_dir:
            yield from _files_under(client, run_id, entry.path)
        else:
            yield entry.path
