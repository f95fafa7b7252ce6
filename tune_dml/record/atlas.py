"""Build the table of an atlas, which has a row for each trial; write it as parquet and judge its knobs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tune_dml.planning.stopping import rungs_of
from tune_dml.record.results import Results, TrialResult
from tune_dml.stats.atlas import Estimate, KnobVerdict, effects_of_values, judge_knob
from tune_dml.stats.intervals import Array

if TYPE_CHECKING:
    import pandas as pd

METRIC = "recall_at_1"
_FURTHER_METRICS = ("map_at_r",)
_AT_RUNGS = (f"{METRIC}_ninth", f"{METRIC}_third")
_COLUMNS = (
    "dataset", "loss", "knob", "value", "default", "seed", "status", METRIC, *_FURTHER_METRICS, *_AT_RUNGS, "seconds"
)  # fmt: skip
_SEPARATOR = " / "  # between loss and knob in the name of an arm


@dataclass(frozen=True)
class JudgedKnob:
    """The verdict on a knob of a loss on a data set."""

    dataset: str
    loss: str
    knob: str
    verdict: KnobVerdict


def build_table(results: Results, dataset: str) -> pd.DataFrame:
    """Return a table with a row for each finished or diverged trial.

    Columns: data set, loss, knob (empty at the defaults), its value and default, seed, status, metrics, R@1 at the two
    rungs of early stopping (NaN if the trial was not evaluated there), seconds.
    """
    import pandas as pd

    default_settings = {cell.arm: cell.settings for cell in results.cells if _SEPARATOR not in cell.arm}
    rows = []
    for trial in results.trials:
        loss, _, knob = trial.cell.arm.partition(_SEPARATOR)
        if trial.status not in {"finished", "diverged"} or loss not in default_settings:
            continue
        path = f"loss.{knob}"
        both = (trial.cell.settings, default_settings[loss])
        value, default = (float(settings[path]) if knob else math.nan for settings in both)
        metrics = {name: trial.metrics.get(f"val/{name}", math.nan) for name in (METRIC, *_FURTHER_METRICS)}
        point = {"dataset": dataset, "loss": loss, "knob": knob, "value": value, "default": default}
        metrics |= _values_at_rungs(results, trial)
        rows.append(
            {**point, "seed": trial.seed, "status": trial.status, **metrics, "seconds": round(trial.seconds, 2)}
        )
    return pd.DataFrame(rows, columns=_COLUMNS)  # also without rows


def _values_at_rungs(results: Results, trial: TrialResult) -> dict[str, float]:
    rungs = rungs_of(trial.cell.settings)  # 0 if the trial is evaluated too seldom
    rows = results.history(trial.key) if any(rungs) else ()
    by_step = {int(row["step"]): row.get(f"val/{METRIC}", math.nan) for row in rows}
    return {column: by_step.get(rung, math.nan) for column, rung in zip(_AT_RUNGS, rungs, strict=True)}


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write the table as parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_parquet(path, index=False)


def judge_knobs(table: pd.DataFrame, margin: float) -> tuple[JudgedKnob, ...]:
    """Judge every knob of a table, by data set and loss; the error level holds for all comparisons together."""
    cells = table[table["knob"] != ""].groupby(["dataset", "loss", "knob", "value"]).ngroups
    losses = [
        _read_loss(str(dataset), str(loss), rows)
        for (dataset, loss), rows in table.groupby(["dataset", "loss"])
        if (rows["knob"] == "").any()
    ]
    effects = effects_of_values([loss.values for loss in losses], max(cells, 1))
    return tuple(
        verdict
        for loss, of_cells in zip(losses, effects, strict=True)
        for verdict in _judge_loss(loss, of_cells, margin)
    )


@dataclass(frozen=True, eq=False)
class _LossTable:
    """The results of one loss on one data set: the default in the first row, then each value of each knob."""

    dataset: str
    loss: str
    points: tuple[tuple[str, float, float], ...]  # knob, value and default of each further row
    values: Array  # (cells, seeds); nan without a trial, -inf for a diverged one


def _read_loss(dataset: str, loss: str, loss_rows: pd.DataFrame) -> _LossTable:
    seeds = sorted(loss_rows["seed"].unique())
    varied = loss_rows[loss_rows["knob"] != ""].groupby(["knob", "value"])
    groups = [rows for _, rows in varied]
    points = [(str(knob), float(rows["value"].iloc[0]), float(rows["default"].iloc[0])) for (knob, _), rows in varied]
    cells = [loss_rows[loss_rows["knob"] == ""], *groups]
    return _LossTable(dataset, loss, tuple(points), np.array([_metric_by_seed(rows, seeds) for rows in cells]))


def _judge_loss(loss: _LossTable, effects: Sequence[Estimate], margin: float) -> Iterable[JudgedKnob]:
    for knob in dict.fromkeys(name for name, _, _ in loss.points):
        rows = [row for row, point in enumerate(loss.points, start=1) if point[0] == knob]
        default = loss.points[rows[0] - 1][2]
        values = [default, *(loss.points[row - 1][1] for row in rows)]
        verdict = judge_knob(values, default, [effects[0], *(effects[row] for row in rows)], margin)
        yield JudgedKnob(loss.dataset, loss.loss, knob, verdict)


def _metric_by_seed(rows: pd.DataFrame, seeds: Sequence[int]) -> list[float]:
    """Return the metric of each seed: nan without a trial, -inf for a diverged one."""
    values = {
        int(seed): -math.inf if status == "diverged" else float(value)
        for seed, status, value in zip(rows["seed"], rows["status"], rows[METRIC], strict=True)
    }
    return [values.get(int(seed), math.nan) for seed in seeds]
