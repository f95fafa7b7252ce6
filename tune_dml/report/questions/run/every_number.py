"""Where does every number come from? List all trials with their identity, runs and metrics."""

import math

from tune_dml.record.origin.provenance import mask
from tune_dml.record.results import Store, TrialResult
from tune_dml.report.analysis import Analysis
from tune_dml.report.cells import TableCell, metric_cell, text_cell
from tune_dml.report.naming import MetricName, metric_of
from tune_dml.report.questions import question
from tune_dml.report.section import Section, Table
from tune_dml.text import duration


@question(order=620)
def every_number(analysis: Analysis) -> Section:
    """List all trials; other tables link to its rows."""
    results, first = analysis.results, analysis.metric.key
    keys = {key for trial in results.trials for key in trial.metrics}
    ordered = sorted(keys, key=lambda key: (key != first, not key.startswith("val/"), key))
    metrics = [metric_of(results, key) for key in ordered]
    first_columns = ("cell", "seed", metrics[0].axis if metrics else "result", "status", "reason")
    last_columns = ("trial", "MLflow run", "step", "attempts", "seconds")
    store = results.store
    run = f" The sweep's own MLflow run is {results.parent_run_id}." if results.parent_run_id else ""
    if run and store is not None and not store.page(results.parent_run_id):
        run += f" Its store is {mask(store.uri)}: `mlflow ui --backend-store-uri` shows it."
    opened = f" Its test metrics were {results.opening}." if results.opening else ""
    caption = f"Every trial, the source of all numbers above.{run}{opened}"
    columns = (*first_columns, *(metric.axis for metric in metrics[1:]), *last_columns)
    rows = [_row(trial, metrics, store) for trial in results.trials]
    table = Table("trials", caption, columns, rows, for_paper=False, searchable=True)
    title = "Where every number comes from"
    return Section("numbers", title, "Every number", (table,), data={"trials": [_data(t) for t in results.trials]})


def _row(trial: TrialResult, metrics: list[MetricName], store: Store | None) -> tuple[object, ...]:
    numbers = [metric_cell(metric, trial.metrics.get(metric.key, math.nan)) for metric in metrics]
    result, *others = numbers or [TableCell("-")]
    label, status = text_cell(trial.cell.label, anchor=f"trial-{trial.key}"), text_cell(trial.status, mark=trial.status)
    seconds = TableCell(duration(trial.seconds), trial.seconds)
    return (
        label, trial.seed, result, status, trial.reason, *others, trial.key, _run(trial.run_id, store), trial.step,
        trial.attempts, seconds,
    )  # fmt: skip


def _run(run_id: str, store: Store | None) -> TableCell:
    page = store.page(run_id) if store else ""
    links = ((run_id, page), ("files", f"{page}/artifacts")) if page else ()
    return TableCell(run_id or "-", links=links)


def _data(trial: TrialResult) -> dict[str, object]:
    names = ("seed", "status", "reason", "step", "seconds", "attempts", "host")
    return {
        "trial": trial.key,
        "run_id": trial.run_id or None,
        "cell": trial.cell.label,
        **{name: getattr(trial, name) for name in names},
        "metrics": dict(sorted(trial.metrics.items())),
    }
