"""Build the table of an atlas, with a row for each trial; store it as parquet and judge its knobs."""

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
_FURTHER = ("map_at_r",)
_SEPARATOR = " / "  # between loss and knob in the name of an arm


@dataclass(frozen=True)
class JudgedKnob:
    """The verdict on a knob of a loss on a data set."""

    dataset: str
    loss: str
    knob: str
    verdict: KnobVerdict


def table_of(results: Results, dataset: str) -> pd.DataFrame:
    """Return a row for each trial that ended.

    Columns: data set, loss, knob (empty at the loss's defaults), its value and default, seed, status, metrics, seconds.
    """
    import pandas as pd

    centres = {cell.arm: cell.settings for cell in results.cells if _SEPARATOR not in cell.arm}
    rows = []
    for trial in results.trials:
        loss, _, knob = trial.cell.arm.partition(_SEPARATOR)
        if trial.status not in {"finished", "diverged"} or loss not in centres:
            continue
        path = f"loss.{knob}"
        value, default = (float(own[path]) if knob else math.nan for own in (trial.cell.settings, centres[loss]))
        metrics = {name: trial.metrics.get(f"val/{name}", math.nan) for name in (METRIC, *_FURTHER)}
        point = {"dataset": dataset, "loss": loss, "knob": knob, "value": value, "default": default}
        rows.append(
            {**point, "seed": trial.seed, "status": trial.status, **metrics, "seconds": round(trial.seconds, 2)}
        )
    return pd.DataFrame(rows)


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write the table as parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_parquet(path, index=False)


def judged_knobs(table: pd.DataFrame, margin: float) -> tuple[JudgedKnob, ...]:
    """Judge every knob of a table, by data set and loss; the error level holds for all comparisons together."""
    cells = table[table["knob"] != ""].groupby(["dataset", "loss", "knob", "value"]).ngroups
    judged: list[JudgedKnob] = []
    for (dataset, loss), own in table.groupby(["dataset", "loss"]):
        judged += _judged_loss(str(dataset), str(loss), own, max(cells, 1), margin)
    return tuple(judged)


def _judged_loss(dataset: str, loss: str, own: pd.DataFrame, comparisons: int, margin: float) -> Iterable[JudgedKnob]:
    seeds = sorted(own["seed"].unique())
    centre = own[own["knob"] == ""]
    if centre.empty:
        return
    groups = [("", math.nan, centre)]
    for (knob, _), rows in own[own["knob"] != ""].groupby(["knob", "value"]):
        groups.append((str(knob), float(rows["value"].iloc[0]), rows))
    values = np.array([_by_seed(rows, seeds) for _, _, rows in groups])
    effects = effects_of_values(values, comparisons)
    for knob in dict.fromkeys(name for name, _, _ in groups if name):
        chosen = [index for index, (name, _, _) in enumerate(groups) if name == knob]
        default = float(groups[chosen[0]][2]["default"].iloc[0])
        points = [default, *(groups[index][1] for index in chosen)]
        verdict = judge_knob(points, default, [effects[0], *(effects[index] for index in chosen)], margin)
        yield JudgedKnob(dataset, loss, knob, verdict)


def _by_seed(rows: pd.DataFrame, seeds: Sequence[int]) -> list[float]:
    """Return the metric by seed: nan without a trial, -inf for a diverged one."""
    found = {
        int(seed): -math.inf if status == "diverged" else float(value)
        for seed, status, value in zip(rows["seed"], rows["status"], rows[METRIC], strict=True)
    }
    return [found.get(int(seed), math.nan) for seed in seeds]
