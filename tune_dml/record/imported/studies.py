"""Read an Optuna study from any storage that Optuna supports."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.errors import ConfigError, Problem, nearest
from tune_dml.record.imported.rows import ImportedRows, ImportedTraining, ImportRequest, is_finite_number, to_knob_value
from tune_dml.record.origin.provenance import mask
from tune_dml.record.state import TrialStatus
from tune_dml.text import is_measurable, one_line

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

_OBJECTIVE = "objective"  # name of the objective of a study without metric names
_STATUSES: dict[str, tuple[TrialStatus, str]] = {
    "COMPLETE": ("finished", ""),
    "FAIL": ("failed", "failed"),
    "PRUNED": ("failed", "pruned: its value at the last step is not a result"),
    "RUNNING": ("running", ""),
    "WAITING": ("missing", ""),
}


def read_optuna(storage: str, study_name: str | None, request: ImportRequest) -> ImportedRows:
    """Read every trial of a study. Raise ConfigError if it is missing, or has several objectives and --metric none."""
    study = _load(storage, study_name)
    names = list(study.metric_names or [])
    if not names:
        names = [_OBJECTIVE] if len(study.directions) == 1 else [f"value_{i}" for i in range(len(study.directions))]
    if len(names) > 1 and request.metric not in names:
        rule = "a study with several objectives is judged by one of them"
        raise ConfigError(Problem("--metric", rule, request.metric, f"Name one of {', '.join(names)}."))
    metric = request.metric or names[0]
    if metric not in names:
        rule = "must be an objective of the study"
        raise ConfigError(Problem("--metric", rule, metric, f"It has {', '.join(names)}."))
    goal = "minimize" if study.directions[names.index(metric)].name == "MINIMIZE" else "maximize"
    rows = tuple(_row(trial, names) for trial in study.trials)
    return ImportedRows(f"the Optuna study {study.study_name}", rows, metric, goal)  # type: ignore[arg-type]


def _load(storage: str, study_name: str | None) -> Study:
    import optuna

    origin = f"--from-optuna {mask(storage)}"
    scheme, _, path = storage.partition(":///")
    if scheme == "sqlite" and not Path(path).exists():  # otherwise Optuna would create it
        remedy = "Correct the path; absolute paths start with sqlite:////."
        raise ConfigError(Problem(origin, "the database must exist", path, remedy))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        names = optuna.get_all_study_names(storage=storage)
    except Exception as error:  # each storage raises its own errors
        reason = mask(one_line(str(error)))[:200]
        raise ConfigError(Problem(origin, "must be a storage that Optuna reads", None, f"{reason}.")) from None
    if study_name is None and len(names) == 1:
        study_name = names[0]
    if study_name not in names:
        remedy = nearest(study_name or "", names, what="study name") if names else "It holds no study."
        rule = "name the study" if study_name is None else "must be a study of the storage"
        raise ConfigError(Problem("--study", rule, study_name, remedy))
    return optuna.load_study(study_name=study_name, storage=storage)


def _row(trial: FrozenTrial, names: list[str]) -> ImportedTraining:
    status, reason = _STATUSES[trial.state.name]
    values = trial.values or [math.nan] * len(names)
    metrics = {name: float(value) for name, value in zip(names, values, strict=True) if is_measurable(value)}
    seed = {"seed": trial.user_attrs["seed"]} if is_finite_number(trial.user_attrs.get("seed")) else {}
    settings = {name: to_knob_value(value) for name, value in {**seed, **trial.params}.items()}
    history = [
        {"step": step, names[0]: value}
        for step, value in sorted(trial.intermediate_values.items())
        if is_finite_number(value)
    ]
    seconds = trial.duration.total_seconds() if trial.duration else 0.0
    return ImportedTraining(
        f"trial {trial.number}", settings, metrics if status == "finished" else {}, status, reason, seconds, history
    )
