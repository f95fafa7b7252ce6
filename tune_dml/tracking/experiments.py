"""Read the runs of any MLflow experiment, for the report."""

from dataclasses import replace
from typing import Any

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.record.imported.rows import ImportedRows, ImportedTraining, ImportRequest, choose_metric, parse_value
from tune_dml.record.origin.provenance import mask
from tune_dml.record.state import TrialStatus
from tune_dml.text import is_measurable, one_line
from tune_dml.tracking.client import all_runs, open_client, quiet_mlflow, reason_of
from tune_dml.tracking.store import local_database, store_problems, tracking_uri

_STATUSES: dict[str, TrialStatus] = {
    "FINISHED": "finished", "FAILED": "failed", "KILLED": "failed", "RUNNING": "running", "SCHEDULED": "missing"
}  # fmt: skip

_TAGS_OF_OTHER_RUNS = {"tune_dml.ledger", "tune_dml.cell_key"}  # runs of sweeps and cells are not trainings


def read_mlflow(uri: str, experiment: str | None, request: ImportRequest, *, word: str = "") -> ImportedRows:
    """Read every active run with parameters, with the last value of each metric.

    The experiment may be None if the store has only one. `word` is the argument as typed, if it was not --from-mlflow.
    Raise ConfigError if the store, the experiment or its runs are missing.
    """
    origin = mask(word) or f"--from-mlflow {mask(uri)}"
    uri, _ = tracking_uri(uri)
    path = local_database(uri)
    if path is not None and not path.exists():  # otherwise MLflow would create it
        raise ConfigError(Problem(origin, "the database must exist", str(path), "Correct the path."))
    raise_if_any(store_problems(uri))
    with quiet_mlflow():
        try:
            names = (origin, mask(uri)) if word else ("--experiment", origin)
            runs, name = _runs(open_client(uri), experiment, *names)
        except ConfigError:
            raise
        except Exception as error:  # each store raises its own errors
            raise ConfigError(Problem(origin, "the store must answer", None, f"{reason_of(error)}.")) from None
    rows = tuple(_row(run) for run in runs if run.data.params and not _TAGS_OF_OTHER_RUNS & run.data.tags.keys())
    sweeps = sorted({run.data.tags["sweep"] for run in runs if "tune_dml.trial_key" in run.data.tags})
    by_name = f"Report each sweep by its name, as `tune-dml report {sweeps[0]}`." if sweeps else ""
    remedy = by_name or "Delete one of them in MLflow."
    source = ImportedRows(f"the MLflow experiment {name}", rows, repeat_remedy=remedy)
    if not rows:
        rule, remedy = "the experiment must have runs with parameters", "Log them, or name another experiment."
        raise ConfigError(Problem(origin, rule, name, remedy))
    note = "The last value that a run logged counts; its training curves are not read."
    return replace(source, metric=choose_metric(source, request), notes=(note,), data_set=_data_set(runs))


def _data_set(runs: list[Any]) -> tuple[str, str] | None:
    inputs = (item for run in runs for item in (run.inputs.dataset_inputs if run.inputs else ()))
    data_sets = {(str(item.dataset.name), str(item.dataset.digest)) for item in inputs}
    return data_sets.pop() if len(data_sets) == 1 else None


def _runs(client: Any, experiment: str | None, origin: str, store: str) -> tuple[list[Any], str]:
    ids = {item.name: str(item.experiment_id) for item in client.search_experiments()}
    if experiment is None and len(ids) == 1:
        experiment = next(iter(ids))
    if experiment is None or experiment not in ids:
        rule = f"must be an experiment of {store}" if experiment else f"name the experiment of {store}"
        raise ConfigError(Problem(origin, rule, experiment, known=ids, kind="experiment"))
    return list(all_runs(client, ids[experiment])), experiment


def _row(run: Any) -> ImportedTraining:
    info = run.info
    settings = {
        one_line(name): None if text == "(none)" else parse_value(text) for name, text in run.data.params.items()
    }
    metrics = {name: float(value) for name, value in run.data.metrics.items() if is_measurable(value)}
    status = _STATUSES.get(info.status, "failed")
    reason = info.status.lower() if status == "failed" else ""
    seconds = (info.end_time - info.start_time) / 1000 if info.end_time and info.start_time else 0.0
    sweep = f" of {run.data.tags['sweep']}" if "tune_dml.trial_key" in run.data.tags else ""
    return ImportedTraining(
        f"run {info.run_id[:12]}{sweep}", settings, metrics, status, reason, seconds, run_id=info.run_id
    )
