"""Runs of an MLflow experiment that no sweep of ours made, for the report."""

from __future__ import annotations

import math
from typing import Any

from trainables.errors import ConfigError, Problem, nearest, raise_if_any
from tune_dml.record.imported.rows import ImportedRows, ImportRequest, Row, chosen_metric, parsed
from tune_dml.record.provenance import mask
from tune_dml.record.state import TrialStatus
from tune_dml.text import one_line
from tune_dml.tracking.client import load_mlflow, open_client, quiet_mlflow, reason_of
from tune_dml.tracking.store import check, local_database, tracking_uri

_STATUSES: dict[str, TrialStatus] = {
    "FINISHED": "finished", "FAILED": "failed", "KILLED": "failed", "RUNNING": "running", "SCHEDULED": "missing"
}  # fmt: skip


_NOT_TRAINED = {"tune_dml.ledger", "tune_dml.cell_key"}
"""Tags of the runs of a sweep and of its cells, which are no trainings."""


def read_mlflow(uri: str, experiment: str | None, request: ImportRequest, *, word: str = "") -> ImportedRows:
    """Read every active training that has parameters; the last value of a metric counts.

    Raises ConfigError for what is not there. `word`: what was typed, where that is no --from-mlflow.
    """
    place = mask(word) or f"--from-mlflow {mask(uri)}"
    uri, _ = tracking_uri(uri)
    path = local_database(uri)
    if path is not None and not path.exists():  # it would be made
        raise ConfigError(Problem(place, "the database must exist", str(path), "Correct the path."))
    raise_if_any(check(uri))
    load_mlflow()
    with quiet_mlflow():
        try:
            runs, name = _runs(open_client(uri), experiment, *((place, mask(uri)) if word else ("--experiment", place)))
        except ConfigError:
            raise
        except Exception as error:  # every store has errors of its own
            raise ConfigError(Problem(place, "the store must answer", None, f"{reason_of(error)}.")) from None
    rows = tuple(_row(run) for run in runs if run.data.params and not _NOT_TRAINED & run.data.tags.keys())
    listed = ImportedRows(f"the MLflow experiment {name}", rows)
    if not rows:
        raise ConfigError(
            Problem(place, "the experiment must have runs with parameters", name, "Log them, or name another.")
        )
    note = "The last value that a run logged is the one that counts; its curves over training were not read."
    return ImportedRows(listed.source, rows, chosen_metric(listed, request), notes=(note,), data_set=_data_set(runs))


def _data_set(runs: list[Any]) -> tuple[str, str] | None:
    """The one that all runs which name any name."""
    inputs = (item for run in runs for item in (run.inputs.dataset_inputs if run.inputs else ()))
    named = {(str(item.dataset.name), str(item.dataset.digest)) for item in inputs}
    return named.pop() if len(named) == 1 else None


def _runs(client: Any, experiment: str | None, place: str, store: str) -> tuple[list[Any], str]:
    """The active runs of an experiment, which may be left out where there is one, and its name."""
    known = {item.name: item.experiment_id for item in client.search_experiments()}
    if experiment is None and len(known) == 1:
        experiment = next(iter(known))
    if experiment is None or experiment not in known:
        rule = f"must be an experiment of {store}" if experiment else f"which experiment of {store} must be said"
        raise ConfigError(Problem(place, rule, experiment, nearest(experiment or "", list(known), what="experiment")))
    runs: list[Any] = []
    token = None
    while True:
        page = client.search_runs(
            [known[experiment]], "", max_results=1000, order_by=["attributes.start_time ASC"], page_token=token
        )
        runs += page
        token = page.token
        if not token:
            return runs, experiment


def _row(run: Any) -> Row:
    info = run.info
    settings = {one_line(name): None if text == "(none)" else parsed(text) for name, text in run.data.params.items()}
    metrics = {name: float(value) for name, value in run.data.metrics.items() if math.isfinite(value)}
    status = _STATUSES.get(info.status, "failed")
    reason = info.status.lower() if status == "failed" else ""
    seconds = (info.end_time - info.start_time) / 1000 if info.end_time and info.start_time else 0.0
    return Row(f"run {info.run_id[:12]}", settings, metrics, status, reason, seconds, run_id=info.run_id)
