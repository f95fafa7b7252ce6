"""Read a trial's knobs, seed and checkpoint folder in your own training script, and report its metrics.

    import tune_dml

    trial = tune_dml.trial()
    train(lr=trial.knobs.get("optim.lr", 0.1), seed=trial.seed)
    tune_dml.log(step=100, **{"val/recall_at_1": 61.2})

It needs only the standard library. Outside a sweep, `trial` has no knobs and `log` prints its row, so that the script
also runs alone.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainables.files import retry_storage

LOG, KNOBS, SEED, CHECKPOINTS = "TUNE_DML_LOG", "TUNE_DML_KNOBS", "TUNE_DML_SEED", "TUNE_DML_CHECKPOINTS"
"""Environment variables of a trial: the log file, the JSON file of knobs, the seed, the folder of checkpoints."""


@dataclass(frozen=True)
class TrialOfProgram:
    """The inputs of a trial."""

    knobs: Mapping[str, Any] = field(default_factory=dict)
    """Values of the sweep's parameters by name; empty outside a sweep."""
    seed: int = 0
    checkpoints: Path | None = None
    """Folder that stays when the trial is retried or resumed; None outside a sweep."""


def trial() -> TrialOfProgram:
    """Return the knobs, seed and checkpoint folder of this process's trial."""
    file, folder = os.environ.get(KNOBS), os.environ.get(CHECKPOINTS)
    knobs = json.loads(Path(file).read_text(encoding="utf-8")) if file else {}
    return TrialOfProgram(knobs, int(os.environ.get(SEED, "0")), Path(folder) if folder else None)


def log(figures: Mapping[str, Any] | None = None, /, *, step: int | None = None, **further: Any) -> None:
    """Report figures of a step, in one call or several.

    Args:
        figures: Name -> number, such as `{"val/recall_at_1": 61.2}`; `test/...` stays sealed until `tune-dml open`.
        step: Step of the training; None for the step after that of the last row.
        further: Further figures, by keyword.

    Raises:
        TypeError: The step or a figure is not a number.
    """
    row: dict[str, float | int] = {}
    if step is not None:
        try:
            row["step"] = int(step) if int(step) == step else float(step)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"tune_dml.log: step must be a finite number, but got {step!r}") from None
    for name, value in {**(figures or {}), **further}.items():
        try:
            row[name] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"tune_dml.log: {name} must be a number, but got {value!r}") from None
    if LOG in os.environ:
        append(os.environ[LOG], row)
    else:
        sys.stdout.write(json.dumps(row) + "\n")


def append(path: str | Path, row: Mapping[str, float | int]) -> None:
    """Append a row to a log, which only its owner may read; wait while the disk is full."""
    unwritten = json.dumps(row).encode() + b"\n"

    def write() -> None:
        nonlocal unwritten
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            while unwritten:  # one write keeps lines of several processes apart; a full disk needs more
                unwritten = unwritten[os.write(file, unwritten) :]
        finally:
            os.close(file)

    retry_storage(write, path)
