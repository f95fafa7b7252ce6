"""Call MLflow's client, without its messages and retries, in pages and batches. Only this module imports MLflow."""

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tune_dml.record.origin.provenance import mask
from tune_dml.text import shortened
from tune_dml.tracking.projection import MetricPoint, RunStatus, milliseconds
from tune_dml.tracking.run_contents import RunContents
from tune_dml.tracking.store import is_on_local_disk, local_database

_AUTOFLUSH = "(raised as a result of Query-invoked autoflush"  # SQLAlchemy's first line, before the reason
_REFUSED_STATUS = re.compile(r"too many (\d{3}) error responses|failed with error code (\d{3}) != 200")
_NO_ANSWER = re.compile(r"Read timed out|Connection refused|Connection reset|closed connection|No route to host")
_NOT_JSON = "the response body was not in a valid JSON format"  # of MLflow, before the page
_MESSAGE_LIMIT = 10_000  # characters; a message may hold a whole SQL statement
_REQUEST_TIMEOUT = "10"  # timeout of requests in seconds, unless MLflow's environment variable sets it


@dataclass
class MlflowRun:
    """A run in MLflow, updated with each write."""

    id: str
    status: str
    tags: dict[str, str]
    params: frozenset[str]  # names of the logged parameters, whose values MLflow cannot change
    has_data: bool = False  # whether the data set is logged


@contextlib.contextmanager
def quiet_mlflow() -> Iterator[None]:
    """Turn off MLflow's retries, long timeouts and messages.

    If MLflow retries a `create_run` whose first answer is late, it creates a second run. We look up the run before a
    retry.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    settings = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
    if "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ:
        settings["MLFLOW_HTTP_REQUEST_TIMEOUT"] = _REQUEST_TIMEOUT
    original = {name: os.environ.get(name) for name in settings}
    loggers = [logging.getLogger(name) for name in ("alembic", "mlflow.store.db.utils")]
    levels = [logger.level for logger in loggers]
    os.environ.update(settings)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)  # errors are also raised
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in original.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def open_client(uri: str) -> Any:
    """Return an MLflow client. A SQLite file on a local disk gets a write-ahead log, so that readers do not wait.

    The first call imports MLflow, which two threads must not do at the same time.
    """
    from mlflow.tracking import MlflowClient

    path = local_database(uri)
    if path is not None and not path.exists():
        _create_database(uri, path)
    client = MlflowClient(uri, registry_uri=uri)
    client.search_experiments(max_results=1)  # creates the tables of a new database
    if path is not None and is_on_local_disk(path):
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode=WAL")
    return client


def checkpoint(uri: str) -> None:
    """Write the write-ahead log of a SQLite store into its file, so that a copy of the file has all runs."""
    path = local_database(uri)
    if path is not None and path.exists():
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path, timeout=1)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _create_database(uri: str, path: Path) -> None:
    """Create a SQLite store atomically, because MLflow cannot complete the tables of a killed process."""
    from mlflow.tracking import MlflowClient

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-half-made-", dir=path.parent) as folder:
        new = Path(folder) / path.name
        MlflowClient(uri.replace(f":///{path}", f":///{new}", 1)).search_experiments(max_results=1)
        with _locked(path.parent):
            if path.exists():  # another sweep created it first
                return
            for ending in ("-wal", "-shm"):  # SQLite would replay the log of a deleted database into the new one
                path.with_name(path.name + ending).unlink(missing_ok=True)
            try:
                os.link(new, path)
            except FileExistsError:  # another machine created it first
                return
            except OSError:  # the file system has no links
                os.replace(new, path)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, if its file system has locks, so that one process at a time creates a database."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def experiment_id_of(client: Any, name: str, uri: str, known_run: str = "") -> str:
    """Return the id of the experiment of a known run, or of the experiment `name`; create it if it is missing.

    The artifacts of a SQLite store are stored beside its database.
    """
    if known_run and (known_experiment := _active_experiment(client, known_run)):
        return known_experiment
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        path = local_database(uri)
        slug = re.sub(r"[^\w.-]", "_", name)
        files = None if path is None else (path.parent.absolute() / "mlruns" / slug).as_uri()
        try:
            return str(client.create_experiment(name, files))
        except Exception as error:  # another sweep created it at the same time
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise error
    if not experiment.experiment_id:
        raise RuntimeError("the server answered without an experiment, and not as an MLflow server")
    if experiment.lifecycle_stage != "active":
        remedy = f"run `mlflow experiments restore --experiment-id {experiment.experiment_id}`, or name another"
        raise RuntimeError(f"the experiment {name!r} was deleted: {remedy}")
    return str(experiment.experiment_id)


def _active_experiment(client: Any, run_id: str) -> str:
    """Return the id of a run's active experiment; an empty string if there is none.

    If the run was deleted, restore it. Otherwise its child runs would be created a second time.
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
    """Set the experiment's description and kind, if they are missing, and the views of its runs.

    Without a kind, MLflow may show its pages for GenAI.
    """
    existing_tags = client.get_experiment(experiment_id).tags
    defaults = {"mlflow.note.content": text, "mlflow.experimentKind": "custom_model_development"}
    missing = {name: value for name, value in defaults.items() if not existing_tags.get(name)}
    for name, value in (missing | dict(views)).items():
        if existing_tags.get(name) != value:
            client.set_experiment_tag(experiment_id, name, value)


def create_run(client: Any, experiment_id: str, name: str, started: float, tags: Mapping[str, str]) -> MlflowRun:
    """Create a run without parameters."""
    info = client.create_run(experiment_id, milliseconds(started), tags, name).info
    return MlflowRun(info.run_id, "RUNNING", dict(tags), frozenset())


def log_data_set(client: Any, run_id: str, name: str, digest: str) -> None:
    """Log the data set of a run. MLflow stores at most 36 characters of the digest; the source has the full digest."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"name": name, "digest": digest})
    dataset = Dataset(name, digest[:32], "tune_dml", source)
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def all_runs(client: Any, experiment_id: str, query: str = "") -> Iterator[Any]:
    """Yield MLflow's entity of every active run of a query, ordered by start."""
    token, order = None, ["attributes.start_time ASC"]
    while True:
        page = client.search_runs([experiment_id], query, max_results=1000, order_by=order, page_token=token)
        yield from page
        if not (token := page.token):
            return


def search_runs(client: Any, experiment_id: str, query: str) -> Iterator[MlflowRun]:
    """Yield every active run of a query, ordered by start."""
    shared: dict[frozenset[str], frozenset[str]] = {}  # trials of a sweep have the same parameter names
    for run in all_runs(client, experiment_id, query):
        names, tags = frozenset(run.data.params), dict(run.data.tags)
        has_data = bool(run.inputs and run.inputs.dataset_inputs)
        yield MlflowRun(run.info.run_id, run.info.status, tags, shared.setdefault(names, names), has_data)


def read_run(client: Any, run_id: str, metrics: Set[str]) -> RunContents | None:
    """Return the content of a run, with the points of the given metrics; None if it was deleted."""
    try:
        run = client.get_run(run_id)
    except Exception as error:
        if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    if run.info.lifecycle_stage != "active":
        return None
    points = read_points(client, run_id, sorted(metrics & set(run.data.metrics)))
    end_time = (run.info.end_time or 0) / 1000
    return RunContents(dict(run.data.params), dict(run.data.tags), run.info.status, end_time, points)


def read_points(client: Any, run_id: str, metrics: Sequence[str]) -> tuple[MetricPoint, ...]:
    """Return every point of the given metrics of a run."""
    return tuple(
        MetricPoint(name, point.value, point.step, point.timestamp)
        for name in metrics
        for point in client.get_metric_history(run_id, name)
    )


def log_in_batches(
    client: Any, run_id: str, points: Sequence[MetricPoint], params: Mapping[str, str], tags: Mapping[str, str]
) -> None:
    """Log in batches within MLflow's limits: 100 parameters, 100 tags, and 1000 entities in total."""
    from mlflow.entities import Metric, Param, RunTag

    names, labels = [Param(*item) for item in params.items()], [RunTag(*item) for item in tags.items()]
    metrics = [Metric(point.name, point.value, point.time, point.step) for point in points]
    for batch in range(max(-(-len(metrics) // 800), -(-len(names) // 100), -(-len(labels) // 100))):
        small_batch, large_batch = slice(100 * batch, 100 * batch + 100), slice(800 * batch, 800 * batch + 800)
        client.log_batch(run_id, metrics[large_batch], names[small_batch], labels[small_batch])


def log_missing(
    client: Any, run: MlflowRun, points: Sequence[MetricPoint], params: Mapping[str, str], tags: Mapping[str, str]
) -> None:
    """Log metrics, and those parameters and tags that the run does not have."""
    missing = {name: value for name, value in params.items() if name not in run.params}
    changed = {name: value for name, value in tags.items() if run.tags.get(name, "") != value}
    log_in_batches(client, run.id, points, missing, changed)
    run.params |= missing.keys()
    run.tags.update(changed)


def set_status(client: Any, run: MlflowRun, status: RunStatus, end_time: float) -> None:
    """Set a run's status and its end time, if the status changed."""
    if run.status == status:
        return
    if status == "RUNNING":
        client.update_run(run.id, status=status)
    else:
        client.set_terminated(run.id, status, milliseconds(end_time))
    run.status = status


def log_network(client: Any, run_id: str, model: str, network: Path) -> None:
    """Upload a network to a LoggedModel, an output of a run, in the format of mlflow.pytorch, without loading it."""
    from mlflow.entities import LoggedModelOutput
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
    client.log_outputs(run_id, [LoggedModelOutput(model, 0)])


def file_store(client: Any, run_id: str) -> Any:
    """Return the artifact repository of a run, which can also delete files."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(client.get_run(run_id).info.artifact_uri, client.tracking_uri)


def reason_of(error: Exception) -> str:
    """Return the first line of an error, without secrets and control characters."""
    message = str(error).strip()[:_MESSAGE_LIMIT]
    if status := _REFUSED_STATUS.search(message):
        return f"the server answered with HTTP status {status[1] or status[2]}"
    if message.startswith("API request to http") and (found := _NO_ANSWER.search(message)):
        return f"the server did not answer: {found[0].lower()}"
    if _NOT_JSON in message:
        return "the server answered with a page, such as a login, and not as an MLflow server"
    lines = message.splitlines()
    text = mask("\n".join(line for line in lines if not line.startswith(_AUTOFLUSH))) or type(error).__name__
    line = "".join(char if char.isprintable() else " " for char in text.splitlines()[0])
    return shortened(line, 300)
