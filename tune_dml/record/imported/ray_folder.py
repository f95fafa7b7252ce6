"""Read the folder of a Ray Tune experiment, with `params.json` and `result.json` for each trial, without Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainables.errors import ConfigError, Problem
from tune_dml.record.events import JsonRow
from tune_dml.record.imported.rows import (
    ImportedRows,
    ImportedTraining,
    ImportRequest,
    chosen_metric,
    is_measured,
    plain_value,
)
from tune_dml.text import one_line, shortened

_BESIDE = frozenset({
    "time_this_iter_s", "time_total_s", "training_iteration", "timestamp", "pid", "iterations_since_restore",
    "time_since_restore", "done", "should_checkpoint", "checkpoint_dir_name",
})  # fmt: skip
"""Keys that Ray adds to every result."""


def read_ray(folder: Path, request: ImportRequest) -> ImportedRows:
    """Read every trial of an experiment's folder; the last result counts. Raise ConfigError if there is none."""
    place = f"--from-ray {folder}"
    if not folder.is_dir():
        raise ConfigError(Problem(place, "must be the folder of an experiment of Ray Tune", None, "It is no folder."))
    trials = sorted(path.parent for path in folder.glob("*/params.json"))
    if not trials:
        rule = "must hold a folder for each trial, with params.json"
        raise ConfigError(Problem(place, rule, None, "Name the experiment's folder, inside ~/ray_results."))
    data = ImportedRows(f"the Ray experiment {folder.absolute().name}", tuple(_row(trial, place) for trial in trials))
    metric = chosen_metric(data, request)
    note = "The last result that a trial reported is the one that counts."
    return ImportedRows(data.source, data.rows, metric, notes=(note,))


def _row(trial: Path, place: str) -> ImportedTraining:
    try:
        params = json.loads((trial / "params.json").read_text())
        if not isinstance(params, dict):
            raise TypeError(f"it holds {type(params).__name__}")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        rule = "params.json must be a readable JSON object"
        raise ConfigError(Problem(f"{place}/{trial.name}", rule, None, f"{one_line(str(error))}.")) from None
    settings = {name: plain_value(value) for name, value in _flat(params, ".")}
    reported = list(_results(trial / "result.json"))
    history = [
        {"step": int(_number(row, "training_iteration", i + 1)), **_numbers(row)} for i, row in enumerate(reported)
    ]
    seconds = _number(reported[-1], "time_total_s", 0.0) if reported else 0.0
    if (trial / "error.txt").exists():
        lines = (trial / "error.txt").read_text(errors="replace").strip().splitlines()
        reason = shortened(one_line(lines[-1]), 200) if lines else "an error that left no text"
        return ImportedTraining(
            trial.name, settings, _numbers(reported[-1]) if reported else {}, "failed", reason, seconds, history
        )
    if not reported:
        return ImportedTraining(trial.name, settings, {}, "failed", "it reported no result")
    return ImportedTraining(trial.name, settings, _numbers(reported[-1]), "finished", "", seconds, history)


def _results(path: Path) -> Iterator[JsonRow]:
    """Yield each whole line; the last one may be torn."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def _number(row: JsonRow, name: str, otherwise: float) -> float:
    value: Any = row.get(name)
    return float(value) if is_measured(value) else otherwise


def _numbers(row: JsonRow) -> dict[str, float]:
    rest = {name: value for name, value in row.items() if name not in _BESIDE and name != "config"}
    return {name: float(value) for name, value in _flat(rest, "/") if is_measured(value)}


def _flat(tree: Mapping[str, object], mark: str, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, mark, f"{before}{name}{mark}")
        else:
            yield f"{before}{name}", value
