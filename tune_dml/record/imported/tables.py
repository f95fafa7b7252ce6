"""Read a table of results: one row per training, with columns for settings, the metric and the status."""

from __future__ import annotations

import contextlib
import csv
import math
import re
from pathlib import Path

from trainables.errors import ConfigError, Problem, nearest, raise_if_any
from tune_dml.record.imported.rows import ImportedRows, ImportedTraining, ImportRequest, is_measured, parsed
from tune_dml.record.state import TrialStatus
from tune_dml.text import one_line

_STATUSES: dict[str, TrialStatus] = {
    "": "finished", "finished": "finished", "complete": "finished", "completed": "finished", "ok": "finished",
    "terminated": "finished", "failed": "failed", "fail": "failed", "error": "failed", "killed": "failed",
    "pruned": "failed", "stopped": "failed", "crashed": "failed", "diverged": "diverged", "nan": "diverged", "running": "running",
    "waiting": "missing", "missing": "missing", "pending": "missing",
}  # fmt: skip
"""Values of the column `status`, in any case -> status."""
_SEPARATED = re.compile(r"[+-]?\d[\d.']*(,\d+)+(\.\d+)?|\d+(\.\d+)?\s?%")
"""A number with separators of thousands, a decimal comma or a percent sign."""


def read_csv(path: Path, request: ImportRequest) -> ImportedRows:
    """Read a file with a header line, separated by commas, semicolons or tabs. Raise ConfigError with all problems."""
    place = f"--from-csv {path}"
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        rule = "must be a text file in UTF-8 that can be read"
        raise ConfigError(Problem(place, rule, None, f"{one_line(str(error))}.")) from None
    if len(lines) < 2:
        raise ConfigError(Problem(place, "needs a header line and a line for each training", f"{len(lines)} lines"))
    reader = csv.reader(lines, delimiter=max(",;\t", key=lines[0].count))
    try:
        columns = [one_line(name) for name in next(reader)]
        rows = [(reader.line_num, fields) for fields in reader if any(field.strip() for field in fields)]
    except csv.Error as error:
        rule = f"must be a table that can be read ({error})"
        raise ConfigError(Problem(f"{place}, line {reader.line_num}", rule, None, "Is a quote open?")) from None
    raise_if_any(_shape_problems(place, columns, rows))
    metric = _metric(place, columns, request)
    read, problems = [], []
    for line, fields in rows:
        row, wrong = _row(place, line, dict(zip(columns, fields, strict=True)), metric)
        read.append(row)
        problems += wrong
    raise_if_any(problems[:8])
    return ImportedRows(f"the file {path.name}", tuple(read), metric, notes=_notes_on_text(read))


def _notes_on_text(rows: list[ImportedTraining]) -> tuple[str, ...]:
    """Name the settings of which values look like numbers with separators, which are read as names."""
    texts = {name: value for row in rows for name, value in row.settings.items() if _SEPARATED.fullmatch(str(value))}
    return tuple(
        f"Values of {name} such as {value} are read as names; as numbers they have a decimal point and no separators."
        for name, value in texts.items()
    )


def _shape_problems(place: str, columns: list[str], rows: list[tuple[int, list[str]]]) -> list[Problem]:
    problems = [
        Problem(place, "a column name may occur only once", name, "Rename one of them.")
        for name in sorted({name for name in columns if columns.count(name) > 1})
    ]
    problems += [Problem(place, "every column needs a name", f"column {i + 1}") for i, n in enumerate(columns) if not n]
    for line, fields in rows:
        if len(fields) != len(columns):
            rule = f"a line must have as many fields as the header, {len(columns)}"
            problems.append(Problem(f"{place}, line {line}", rule, len(fields), "Quote fields that hold separators."))
    return problems[:8] or ([] if rows else [Problem(place, "needs a line for each training", "none")])


def _metric(place: str, columns: list[str], request: ImportRequest) -> str:
    if request.metric is None:
        listed = f"Its columns are {', '.join(columns)}."
        raise ConfigError(Problem("--metric", f"name the metric's column of {place}", None, listed))
    if request.metric not in columns:
        remedy = nearest(request.metric, columns, what="column")
        raise ConfigError(Problem("--metric", f"must be a column of {place}", request.metric, remedy))
    return request.metric


def _is_infinite(number: object) -> bool:
    with contextlib.suppress(ValueError):
        return math.isinf(float(str(number)))
    return False


def _row(place: str, line: int, fields: dict[str, str], metric: str) -> tuple[ImportedTraining, list[Problem]]:
    where, problems = f"{place}, line {line}", []
    number = parsed(fields.pop(metric))
    word = fields.pop("status" if "status" in fields else "State", "").strip().lower()  # W&B exports `State`
    if word not in _STATUSES:
        rule = f"`status` must be one of {', '.join(sorted(filter(None, _STATUSES)))}"
        problems.append(Problem(where, rule, word))
    remedy = "Write a decimal point, and no separators or units." if _SEPARATED.fullmatch(str(number)) else ""
    if number is not None and not is_measured(number) and not _is_infinite(number):
        problems.append(Problem(where, f"`{metric}` must be a number, or empty", number, remedy))
    seconds = parsed(fields.pop("seconds", ""))
    status = _STATUSES.get(word, "finished")
    reason = one_line(fields.pop("reason", ""))
    measured = {metric: float(number)} if is_measured(number) else {}  # type: ignore[arg-type]
    settings = {name: parsed(text) for name, text in fields.items()}
    known = float(seconds) if is_measured(seconds) else 0.0  # type: ignore[arg-type]
    return ImportedTraining(f"line {line}", settings, measured, status, reason, known), problems
