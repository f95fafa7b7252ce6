"""Which cells does validation select? What opening and confirming a sweep, and the report of both, go by."""

from __future__ import annotations

import math

from tune_dml.planning.cells import Cell
from tune_dml.record.results import Results
from tune_dml.stats.selection import best_first
from tune_dml.stats.table import SeedTable


def best_cells(results: Results) -> list[Cell]:
    """The cells that have a finished trial, the best by validation first, the baseline among them.

    A cell of which a trial diverged is not selected; a lost or missing trial is a hole.
    """
    metric, goal = results.plan.metric, results.plan.space.goal
    cells = {trial.cell.digest: trial.cell for trial in results.trials}
    diverged = {trial.cell.digest for trial in results.trials if trial.status == "diverged"}
    values: dict[str, dict[int, float]] = {digest: {} for digest in cells if digest not in diverged}
    for trial in results.trials:
        number = trial.metrics.get(metric, math.nan)
        if trial.status == "finished" and math.isfinite(number) and trial.cell.digest in values:
            values[trial.cell.digest][trial.seed] = float(number)
    table = SeedTable.of(values, results.plan.seeds)
    ranked = best_first(table.values if goal == "maximize" else -table.values)
    return [cells[table.labels[row]] for row in ranked]
