"""Build the table of an atlas, which has a row for each trial; write it as parquet and judge its knobs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tune_dml.record.results import Results
from tune_dml.stats.atlas import KnobVerdict, effects_of_values, judge_knob

if TYPE_CHECKING:
    import pandas as pd

METRIC = "recall_at_1"
_FURTHER_METRICS = ("map_at_r",)
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

    Columns: data set, loss, knob (empty at the defaults), its value and default, seed, status, metrics, seconds.
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
        rows.append(
            {**point, "seed": trial.seed, "status": trial.status, **metrics, "seconds": round(trial.seconds, 2)}
        )
    return pd.DataFrame(rows)


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write the table as parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_parquet(path, index=False)


def judge_knobs(table: pd.DataFrame, margin: float) -> tuple[JudgedKnob, ...]:
    """Judge every knob of a table, by data set and loss; the error level holds for all comparisons together."""
    cells = table[table["knob"] != ""].groupby(["dataset", "loss", "knob", "value"]).ngroups
    verdicts: list[JudgedKnob] = []
    for (dataset, loss), loss_rows in table.groupby(["dataset", "loss"]):
        verdicts += _judge_loss(str(dataset), str(loss), loss_rows, max(cells, 1), margin)
    return tuple(verdicts)


def _judge_loss(
    dataset: str, loss: str, loss_rows: pd.DataFrame, comparisons: int, margin: float
) -> Iterable[JudgedKnob]:
    seeds = sorted(loss_rows["seed"].unique())
    default_rows = loss_rows[loss_rows["knob"] == ""]
    if default_rows.empty:
        return
    groups = [("", math.nan, default_rows)]
    for (knob, _), rows in loss_rows[loss_rows["knob"] != ""].groupby(["knob", "value"]):
        groups.append((str(knob), float(rows["value"].iloc[0]), rows))
    values = np.array([_metric_by_seed(rows, seeds) for _, _, rows in groups])
    effects = effects_of_values(values, comparisons)
    for knob in dict.fromkeys(name for name, _, _ in groups if name):
        indices = [index for index, (name, _, _) in enumerate(groups) if name == knob]
        default = float(groups[indices[0]][2]["default"].iloc[0])
        points = [default, *(groups[index][1] for index in indices)]
        verdict = judge_knob(points, default, [effects[0], *(effects[index] for index in indices)], margin)
        yield JudgedKnob(dataset, loss, knob, verdict)


def _metric_by_seed(rows: pd.DataFrame, seeds: Sequence[int]) -> list[float]:
    """Return the metric of each seed: nan without a trial, -inf for a diverged one."""
    values = {
        int(seed): -math.inf if status == "diverged" else float(value)
        for seed, status, value in zip(rows["seed"], rows["status"], rows[METRIC], strict=True)
    }
    return [values.get(int(seed), math.nan) for seed in seeds]
