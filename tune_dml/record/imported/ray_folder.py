"""Read the folder of a Ray Tune experiment, with `params.json` and `result.json` for each trial, without Ray."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainables.errors import ConfigError, Problem
from tune_dml.record.events import JsonRow
from tune_dml.record.imported.rows import (
    ImportedRows,
    ImportedTraining,
    ImportRequest,
    choose_metric,
    is_finite_number,
    to_knob_value,
)
from tune_dml.record.ledger import GrowingFile
from tune_dml.text import flattened, one_line, shortened

_RAY_KEYS = frozenset({
    "time_this_iter_s", "time_total_s", "training_iteration", "timestamp", "pid", "iterations_since_restore",
    "time_since_restore", "done", "should_checkpoint", "checkpoint_dir_name",
})  # fmt: skip
"""Keys that Ray adds to every result."""


def read_ray(folder: Path, request: ImportRequest) -> ImportedRows:
    """Read every trial in the folder of an experiment. Raise ConfigError if there is none."""
    origin = f"--from-ray {folder}"
    if not folder.is_dir():
        rule = "must be the folder of an experiment of Ray Tune"
        raise ConfigError(Problem(origin, rule, None, "It is not a folder."))
    trials = sorted(path.parent for path in folder.glob("*/params.json"))
    if not trials:
        rule = "must hold a folder for each trial, with params.json"
        raise ConfigError(Problem(origin, rule, None, "Name the experiment's folder, inside ~/ray_results."))
    data = ImportedRows(f"the Ray experiment {folder.absolute().name}", tuple(_row(trial, origin) for trial in trials))
    note = "The last result that a trial reported is the one that counts."
    return replace(data, metric=choose_metric(data, request), notes=(note,))


def _row(trial: Path, origin: str) -> ImportedTraining:
    try:
        params = json.loads((trial / "params.json").read_text())
        if not isinstance(params, dict):
            raise TypeError(f"it holds {type(params).__name__}")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        rule = "params.json must be a readable JSON object"
        raise ConfigError(Problem(f"{origin}/{trial.name}", rule, None, f"{one_line(str(error))}.")) from None
    settings = {name: to_knob_value(value) for name, value in flattened(params)}
    results = [row for _, row in GrowingFile(trial / "result.json").read_new()]
    history = [
        {"step": int(_number(row, "training_iteration", i + 1)), **_numbers(row)} for i, row in enumerate(results)
    ]
    seconds = _number(results[-1], "time_total_s", 0.0) if results else 0.0
    figures = _numbers(results[-1]) if results else {}
    reason = "" if results else "it reported no result"
    if (trial / "error.txt").exists():
        lines = (trial / "error.txt").read_text(errors="replace").strip().splitlines()
        reason = shortened(one_line(lines[-1]), 200) if lines else "an error without a message"
    return ImportedTraining(trial.name, settings, figures, "failed" if reason else "finished", reason, seconds, history)


def _number(row: JsonRow, name: str, default: float) -> float:
    value: Any = row.get(name)
    return float(value) if is_finite_number(value) else default


def _numbers(row: JsonRow) -> dict[str, float]:
    figures = {name: value for name, value in row.items() if name not in _RAY_KEYS and name != "config"}
    return {name: float(value) for name, value in flattened(figures, "/") if is_finite_number(value)}
