"""Read a table of results: one row per training, with columns for settings, the metric and the status."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from trainables.data.formats.table_rows import read_rows
from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.record.imported.rows import ImportedRows, ImportedTraining, ImportRequest, is_finite_number, parse_value
from tune_dml.record.state import TrialStatus
from tune_dml.text import is_measurable, one_line

_STATUSES: dict[str, TrialStatus] = {
    "": "finished", "finished": "finished", "complete": "finished", "completed": "finished", "ok": "finished",
    "terminated": "finished", "failed": "failed", "fail": "failed", "error": "failed", "killed": "failed",
    "pruned": "failed", "stopped": "failed", "crashed": "failed", "preempted": "failed",
    "preempting": "running", "diverged": "diverged", "nan": "diverged", "running": "running",
    "waiting": "missing", "missing": "missing", "pending": "missing",
}  # fmt: skip
"""Value of the column `status`, in lower case -> status."""
_LISTED = 8  # number of problems of a file that are listed
_FORMATTED_NUMBER = re.compile(r"[+-]?\d[\d.']*(,\d+)+(\.\d+)?|\d+(\.\d+)?\s?%")
"""A number with thousands separators, a decimal comma or a percent sign."""
_WANDB_COLUMNS = frozenset({
    "Name", "ID", "State", "Notes", "User", "Tags", "Created", "Updated", "End Time", "Runtime", "Sweep", "Agent",
    "Description", "Commit", "Github", "Host", "Hostname", "Command", "Path", "OS", "Python Version", "GPU Count", "GPU Type",
    "_step", "_runtime", "_timestamp", "_wandb", "_wandb.runtime",
})  # fmt: skip
"""Columns that W&B adds to a table of runs. `Group` and `Job Type` are missing: scripts name methods by them."""
_WANDB_LEAST = 3  # a table with fewer of these columns may be another program's


def read_csv(path: Path, request: ImportRequest) -> ImportedRows:
    """Read a CSV or Parquet file with a line for each training. Raise ConfigError with all problems."""
    origin = f"--from-csv {path}"
    if not path.exists() or path.is_dir():
        raise ConfigError(Problem(origin, "must be an existing file", None, "Correct the path."))
    lines = read_rows(path)
    if len(lines) < 2:
        raise ConfigError(Problem(origin, "needs a header line and a line for each training", f"{len(lines)} lines"))
    columns, rows = [one_line(name) for name in lines[0][1]], lines[1:]
    has_index = columns[:1] == [""] and all(len(fields) == len(columns) for _, fields in rows)
    if has_index:
        columns, rows = columns[1:], [(line, fields[1:]) for line, fields in rows]
    raise_if_any(_shape_problems(origin, columns, rows))
    metric = _metric(origin, columns, request)
    unused = _columns_of_wandb(columns, request)
    columns = _with_status(columns, rows, request)
    trainings, problems = [], []
    for line, fields in rows:
        row, row_problems = _row(origin, line, dict(zip(columns, fields, strict=True)), metric, unused)
        trainings.append(row)
        problems += row_problems
    raise_if_any(_first(problems, origin))
    notes = ["The first column has no name, as the index that pandas writes, and was left out."] if has_index else []
    if unused:
        notes.append(f"The table is W&B's: these columns are its own and no settings: {', '.join(unused)}.")
    return ImportedRows(f"the file {path.name}", tuple(trainings), metric, notes=(*notes, *_notes_on_text(trainings)))


def _columns_of_wandb(columns: list[str], request: ImportRequest) -> list[str]:
    """Return the columns that W&B added to its table of runs, without those that the user names; [] for other tables."""
    own = [name for name in columns if name in _WANDB_COLUMNS]
    named = {request.metric, request.seed_column, *request.knobs}
    return [name for name in own if name not in named] if len(own) >= _WANDB_LEAST else []


def _notes_on_text(rows: list[ImportedTraining]) -> tuple[str, ...]:
    texts = {
        name: value for row in rows for name, value in row.settings.items() if _FORMATTED_NUMBER.fullmatch(str(value))
    }
    return tuple(
        f"Values of {name} such as {value} are read as names; as numbers they have a decimal point and no separators."
        for name, value in texts.items()
    )


def _shape_problems(origin: str, columns: list[str], rows: Sequence[tuple[int, Sequence[str]]]) -> list[Problem]:
    problems = [
        Problem(origin, "a column name may occur only once", name, "Rename one of them.")
        for name in sorted({name for name in columns if columns.count(name) > 1})
    ]
    problems += [
        Problem(origin, "every column needs a name", f"column {i + 1}") for i, name in enumerate(columns) if not name
    ]
    remedy = "Quote fields that hold separators." if len(columns) > 1 else "The first line must name the columns."
    for line, fields in rows:
        if len(fields) != len(columns):
            rule = f"a line must have as many fields as the header, {len(columns)}"
            problems.append(Problem(f"{origin}, line {line}", rule, len(fields), remedy))
    return _first(problems, origin)


def _first(problems: list[Problem], origin: str) -> list[Problem]:
    """Return the first problems, and the number of the others."""
    others = len(problems) - _LISTED
    return problems if others <= 0 else [*problems[:_LISTED], Problem(origin, f"{others} more problems of this kind")]


def _metric(origin: str, columns: list[str], request: ImportRequest) -> str:
    if request.metric is None:
        columns_text = f"Its columns are {', '.join(columns)}."
        raise ConfigError(Problem("--metric", f"name the metric's column of {origin}", None, columns_text))
    if request.metric not in columns:
        rule = f"must be a column of {origin}"
        raise ConfigError(Problem("--metric", rule, request.metric, known=columns, kind="column"))
    return request.metric


def _is_too_large(number: object) -> bool:
    with contextlib.suppress(ValueError):
        return not is_measurable(float(str(number)))
    return False


def _with_status(columns: list[str], rows: Sequence[tuple[int, Sequence[str]]], request: ImportRequest) -> list[str]:
    """Return the columns with W&B's `State`, MLflow's `Status` or Optuna's `state` named `status`."""
    if "status" in columns:
        return columns
    for index, name in enumerate(columns):
        texts = {fields[index].strip().lower() for _, fields in rows}
        is_status = name == "State" or (name.lower() in {"state", "status"} and texts <= _STATUSES.keys())
        if is_status and name not in request.knobs:
            return [*columns[:index], "status", *columns[index + 1 :]]
    return columns


def _row(
    origin: str, line: int, fields: dict[str, str], metric: str, unused: list[str]
) -> tuple[ImportedTraining, list[Problem]]:
    location, problems = f"{origin}, line {line}", []
    number = parse_value(fields.pop(metric))
    status_text = fields.pop("status", "").strip().lower()
    if status_text not in _STATUSES:
        rule = f"`status` must be one of {', '.join(sorted(filter(None, _STATUSES)))}"
        problems.append(Problem(location, rule, status_text))
    is_formatted = _FORMATTED_NUMBER.fullmatch(str(number))
    remedy = "Write a decimal point, and no separators or units." if is_formatted else "Correct it, or change --metric."
    if number is not None and not is_finite_number(number) and not _is_too_large(number):
        problems.append(Problem(location, f"`{metric}` must be a number, or empty", number, remedy))
    seconds = parse_value(fields.pop("seconds", fields["Runtime"] if "Runtime" in unused else ""))
    status = _STATUSES.get(status_text, "finished")
    reason = one_line(fields.pop("reason", ""))
    metrics = {metric: float(number)} if is_finite_number(number) else {}
    settings = {name: parse_value(text) for name, text in fields.items() if name not in unused}
    known_seconds = float(seconds) if is_finite_number(seconds) else 0.0
    return ImportedTraining(f"line {line}", settings, metrics, status, reason, known_seconds), problems
