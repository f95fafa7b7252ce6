"""Call MLflow's client, quietly, without blind retries, page by page and in batches. The only module that imports MLflow."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import logging
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tune_dml.record.origin.provenance import mask
from tune_dml.text import shortened
from tune_dml.tracking.projection import MetricPoint, RunStatus, milliseconds
from tune_dml.tracking.store import local_database, on_local_disk

_REQUEST_TIMEOUT = "10"
"""Seconds until a request times out, if MLflow's own variable is not set."""
_HALF_MADE = "-half-made-"
"""Part of the name of a folder in which a new database is created."""
_JUST_MADE = 60.0
"""Age in seconds below which an unlocked folder may still be in use."""


@dataclass
class MlflowRun:
    """A run as MLflow has it, updated with each write."""

    id: str
    status: str
    tags: dict[str, str]
    params: frozenset[str]
    """Names only: MLflow does not change a logged parameter."""
    has_data: bool = False
    """Whether its data set is logged."""


@dataclass(frozen=True)
class RunSnapshot:
    """A run read from a store, for comparison with the ledger."""

    status: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    points: Sequence[MetricPoint]


@contextlib.contextmanager
def quiet_mlflow() -> Iterator[None]:
    """Turn off MLflow's retries, long timeouts and messages.

    A retried `create_run` whose first answer was late creates a second run. Our own retries look up the run first.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    settings = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
    if "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ:
        settings["MLFLOW_HTTP_REQUEST_TIMEOUT"] = _REQUEST_TIMEOUT
    before = {name: os.environ.get(name) for name in settings}
    loggers = [logging.getLogger(name) for name in ("alembic", "mlflow.store.db.utils")]
    levels = [logger.level for logger in loggers]
    os.environ.update(settings)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)  # errors are raised as well
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def load_mlflow() -> None:
    """Import MLflow. Two threads must not import it at once."""
    with quiet_mlflow():
        import mlflow.tracking  # noqa: F401


def open_client(uri: str) -> Any:
    """Return an MLflow client. A SQLite file on a local disk gets a write-ahead log, so that readers do not block."""
    from mlflow.tracking import MlflowClient

    path = local_database(uri)
    if path is not None and not path.exists():
        _make_database(uri, path)
    client = MlflowClient(uri, registry_uri=uri)
    client.search_experiments(max_results=1)  # creates the tables of a new database
    if path is not None and on_local_disk(path):
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode=WAL")
    return client


def checkpoint(uri: str) -> None:
    """Move the write-ahead log of a SQLite store into its file, so that a copy of the file has every run."""
    path = local_database(uri)
    if path is not None and path.exists():
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path, timeout=1)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _make_database(uri: str, path: Path) -> None:
    """Create a SQLite store atomically: MLflow cannot complete tables that a killed process left half created."""
    from mlflow.tracking import MlflowClient

    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_half_made(path)
    with (
        tempfile.TemporaryDirectory(prefix=f".{path.name}{_HALF_MADE}", dir=path.parent) as folder,
        _held(Path(folder)),
    ):
        new = Path(folder) / path.name
        MlflowClient(uri.replace(f":///{path}", f":///{new}", 1)).search_experiments(max_results=1)
        try:
            os.link(new, path)
        except FileExistsError:  # another sweep created it first
            return
        except OSError:  # a file system without links
            os.replace(new, path)


def _clear_half_made(path: Path) -> None:
    """Remove folders that killed processes left while creating this database."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}{_HALF_MADE}*"):
        with contextlib.suppress(OSError):  # removed meanwhile, or another user's
            if time.time() - folder.stat().st_mtime > _JUST_MADE:
                with _held(folder) as is_ours:
                    if is_ours:
                        shutil.rmtree(folder)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Lock a folder while the context or the process lives. Yield whether the lock was obtained."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        is_held = False
    else:
        is_held = True
    try:
        yield is_held
    finally:
        os.close(descriptor)


def experiment_id_of(client: Any, name: str, uri: str, known_run: str = "") -> str:
    """Return the id of the known run's experiment, which may have been renamed, or of `name`; create it if missing.

    Artifacts of a SQLite store go beside its database.
    """
    if known_run and (kept := _kept_experiment(client, known_run)):
        return kept
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        path = local_database(uri)
        slug = re.sub(r"[^\w.-]", "_", name)
        files = None if path is None else (path.parent.absolute() / "mlruns" / slug).as_uri()
        try:
            return str(client.create_experiment(name, files))
        except Exception as error:  # another sweep created it meanwhile
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise error
    if experiment.lifecycle_stage != "active":
        remedy = f"run `mlflow experiments restore --experiment-id {experiment.experiment_id}`, or name another"
        raise RuntimeError(f"the experiment {name!r} was deleted: {remedy}")
    return str(experiment.experiment_id)


def _kept_experiment(client: Any, run_id: str) -> str:
    """Return the active experiment of a run; empty if there is none.

    Restore a deleted run: otherwise its child runs would be created a second time.
    """
    try:
        info = client.get_run(run_id).info
        if client.get_experiment(info.experiment_id).lifecycle_stage != "active":
            return ""
    except Exception as error:
        if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
            return ""
        raise
    if info.lifecycle_stage != "active":
        client.restore_run(run_id)
    return str(info.experiment_id)


def describe_experiment(client: Any, experiment_id: str, text: str, views: Mapping[str, str]) -> None:
    """Set the experiment's description and kind, unless it has them, and the views of its runs.

    Without a kind, MLflow may show the pages of GenAI.
    """
    known = client.get_experiment(experiment_id).tags
    for name, value in (("mlflow.note.content", text), ("mlflow.experimentKind", "custom_model_development")):
        if not known.get(name):
            client.set_experiment_tag(experiment_id, name, value)
    for name, value in views.items():
        if known.get(name) != value:
            client.set_experiment_tag(experiment_id, name, value)


def create_run(client: Any, experiment_id: str, name: str, started: float, tags: Mapping[str, str]) -> MlflowRun:
    """Create a run without parameters."""
    info = client.create_run(experiment_id, milliseconds(started), tags, name).info
    return MlflowRun(info.run_id, "RUNNING", dict(tags), frozenset())


def log_data_set(client: Any, run_id: str, name: str, digest: str) -> None:
    """Log a run's data set. MLflow stores 36 characters of the digest; the source has all of it."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"name": name, "digest": digest})
    dataset = Dataset(name, digest[:32], "tune_dml", source)
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def search_runs(client: Any, experiment_id: str, query: str) -> Iterator[MlflowRun]:
    """Yield every active run of a query, the earliest first."""
    shared: dict[frozenset[str], frozenset[str]] = {}  # trials of a sweep have the same parameter names
    token = None
    while True:
        order = ["attributes.start_time ASC"]
        page = client.search_runs([experiment_id], query, max_results=1000, order_by=order, page_token=token)
        for run in page:
            names = frozenset(run.data.params)
            known = bool(run.inputs and run.inputs.dataset_inputs)
            yield MlflowRun(
                run.info.run_id, run.info.status, dict(run.data.tags), shared.setdefault(names, names), known
            )
        token = page.token
        if not token:
            return


def read_run(client: Any, run_id: str, metrics: Set[str]) -> RunSnapshot | None:
    """Return a run with the points of some metrics; None if it was deleted."""
    try:
        run = client.get_run(run_id)
    except Exception as error:
        if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    if run.info.lifecycle_stage != "active":
        return None
    points = read_points(client, run_id, sorted(metrics & set(run.data.metrics)))
    return RunSnapshot(run.info.status, dict(run.data.params), dict(run.data.tags), points)


def read_points(client: Any, run_id: str, metrics: Sequence[str]) -> tuple[MetricPoint, ...]:
    """Return every point of some metrics of a run."""
    return tuple(
        MetricPoint(name, point.value, point.step, point.timestamp)
        for name in metrics
        for point in client.get_metric_history(run_id, name)
    )


def log_in_batches(
    client: Any, run_id: str, points: Sequence[MetricPoint], params: Mapping[str, str], tags: Mapping[str, str]
) -> None:
    """Log in batches below MLflow's limits: 1000 entities in all, 100 parameters, 100 tags."""
    from mlflow.entities import Metric, Param, RunTag

    names, labels = [Param(*item) for item in params.items()], [RunTag(*item) for item in tags.items()]
    metrics = [Metric(point.name, point.value, point.time, point.step) for point in points]
    for batch in range(max(-(-len(metrics) // 800), -(-len(names) // 100), -(-len(labels) // 100))):
        few, many = slice(100 * batch, 100 * batch + 100), slice(800 * batch, 800 * batch + 800)
        client.log_batch(run_id, metrics[many], names[few], labels[few])


def log_news(
    client: Any, run: MlflowRun, points: Sequence[MetricPoint], params: Mapping[str, str], tags: Mapping[str, str]
) -> None:
    """Log metrics, and the parameters and tags that the run does not have."""
    missing = {name: value for name, value in params.items() if name not in run.params}
    changed = {name: value for name, value in tags.items() if run.tags.get(name, "") != value}
    log_in_batches(client, run.id, points, missing, changed)
    run.params |= missing.keys()
    run.tags.update(changed)


def set_status(client: Any, run: MlflowRun, status: RunStatus, moment: float) -> None:
    """Set a run's status and its end time, if the status changed."""
    if run.status == status:
        return
    if status == "RUNNING":
        client.update_run(run.id, status=status)
    else:
        client.set_terminated(run.id, status, milliseconds(moment))
    run.status = status


def create_model(
    client: Any, experiment_id: str, trial_run: str, tags: Mapping[str, str], params: Mapping[str, str]
) -> str:
    """Create a LoggedModel of a trial's run, without its network. Return its id."""
    model = client.create_logged_model(experiment_id, "best", trial_run, dict(tags), dict(params), "embedding network")
    return str(model.model_id)


def log_network(client: Any, model: str, network: Path) -> None:
    """Upload a network into a LoggedModel in the format of mlflow.pytorch. The file is copied, not read."""
    from mlflow.models import Model

    version = metadata.version("torch")
    flavour = Model()
    flavour.add_flavor("pytorch", model_data="data", pytorch_version=version)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        shutil.copyfile(network, folder / "data" / "model.pt2")
        (folder / "requirements.txt").write_text(f"torch=={version.partition('+')[0]}\n")
        flavour.save(str(folder / "MLmodel"))
        client.log_model_artifacts(model, name)
    client.finalize_logged_model(model, "READY")


def show_as_output(client: Any, run_id: str, model: str) -> None:
    """List a LoggedModel as an output of a run."""
    from mlflow.entities import LoggedModelOutput

    client.log_outputs(run_id, [LoggedModelOutput(model, 0)])


def file_store(client: Any, run_id: str) -> Any:
    """Return the artifact store of a run, which can also delete files."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(client.get_run(run_id).info.artifact_uri, client.tracking_uri)


def reason_of(error: Exception) -> str:
    """Return the first line of an error, without secrets and control characters."""
    text = mask(str(error).strip()) or type(error).__name__
    line = "".join(char if char.isprintable() else " " for char in text.splitlines()[0])
    return shortened(line, 300)
