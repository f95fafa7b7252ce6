"""What a race has decided, for verdicts that agree with it: its looks once more, each at its level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tune_dml.record.results import Results
from tune_dml.report.cell import MeasuredCell
from tune_dml.stats.racing import Race, Raced, replay


@dataclass(frozen=True, eq=False)
class RaceFindings:
    """Where a sweep's race stands."""

    race: Race
    dropped: NDArray[np.bool_]
    """Cells that diverged, or gave a block no number."""
    rows: dict[str, int]
    """Label -> the cell's row."""
    margin: float
    sign: float

    def of(self, labels: Sequence[str], *, signed: bool = False) -> Raced | None:
        """What it has found of these cells, on the metric's own scale; `signed`: larger is better. None where it lacks one."""
        if any(label not in self.rows for label in labels):
            return None
        rows = [self.rows[label] for label in labels]
        return self.race.of(rows, self.margin, self.dropped, 1.0 if signed else self.sign)


def race_findings(results: Results, cells: Sequence[MeasuredCell]) -> RaceFindings | None:
    """None without a race that has judged."""
    race, plan = results.race, results.plan
    if race is None or not race.judged:
        return None
    sign = 1.0 if plan.space.goal == "maximize" else -1.0
    values = np.array([[sign * cell.values.get(seed, math.nan) for seed in plan.seeds] for cell in cells])
    ended = [{trial.seed for trial in cell.trials if trial.status not in {"running", "missing"}} for cell in cells]
    ran = np.array([[seed in seeds for seed in plan.seeds] for seeds in ended])
    compared = np.array([not cell.cell.baseline for cell in cells])
    found, dropped = replay(values, ran, race.rule.margin, race.judged, compared=compared)
    return RaceFindings(found, dropped, {cell.label: row for row, cell in enumerate(cells)}, race.rule.margin, sign)
