"""Results of cells and arms, the ranking of cells by validation, and the findings of a race."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tune_dml.planning.cells import Cell
from tune_dml.record.results import Results, TrialResult
from tune_dml.space import Knob
from tune_dml.stats.intervals.table import SeedTable
from tune_dml.stats.sequential.racing import Outcomes, RaceStanding, RaceState, replay
from tune_dml.stats.verdicts.selection import best_first


@dataclass(frozen=True)
class CellAnalysis:
    """A cell with its trials and their values."""

    cell: Cell
    trials: tuple[TrialResult, ...]
    values: Mapping[int, float]
    """The sweep's metric by seed."""
    failures: tuple[tuple[TrialResult, str], ...]
    """(trial, reason) of each trial without a value."""

    @property
    def label(self) -> str:
        """Name of the cell."""
        return self.cell.label

    @property
    def lost(self) -> str:
        """Seeds without a value and the reasons; empty if none was lost."""
        return "; ".join(f"seed {trial.seed} {why}" for trial, why in self.failures)

    @property
    def diverged(self) -> bool:
        """Whether any trial diverged."""
        return any(trial.status == "diverged" for trial, _ in self.failures)

    @property
    def stopped(self) -> int | None:
        """Step at which the cell was stopped early; None if it was not."""
        return next((trial.step for trial in self.trials if trial.status == "stopped"), None)

    @cached_property
    def mean(self) -> float:
        """Mean over the seeds with a value; NaN without any."""
        return float(np.mean(list(self.values.values()))) if self.values else math.nan

    @property
    def seconds(self) -> tuple[float, ...]:
        """Training seconds of each trial that ran."""
        return tuple(trial.seconds for trial in self.trials if trial.seconds > 0)


@dataclass(frozen=True, eq=False)
class ArmAnalysis:
    """An arm with the analyses of its cells."""

    name: str
    """Empty in a space without arms."""
    baseline: bool
    knobs: tuple[Knob, ...]
    """Knobs searched in the arm, scientific ones first."""
    cells: tuple[CellAnalysis, ...]

    @property
    def trained(self) -> tuple[CellAnalysis, ...]:
        """Cells with a value and without a diverged trial."""
        return tuple(cell for cell in self.cells if cell.values and not cell.diverged)

    @property
    def hours(self) -> float:
        """Hours of training of the `trained` cells."""
        return sum(sum(cell.seconds) for cell in self.trained) / 3600


def seed_values(cells: Sequence[CellAnalysis], seeds: Sequence[int]) -> np.ndarray:
    """Return the values of cells by seed, (cells, seeds); NaN without a value."""
    return np.array([[cell.values.get(seed, math.nan) for seed in seeds] for cell in cells])


def best_cells(results: Results) -> list[Cell]:
    """Return the cells with a finished trial, the best on validation first; a baseline is included.

    Cells with a diverged trial are left out; lost and missing trials count as holes.
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


@dataclass(frozen=True, eq=False)
class RaceFindings:
    """State of a sweep's race after all its looks; verdicts use it so that they agree with the race."""

    race: RaceState
    rows: dict[str, int]
    """Row of each cell, by label."""
    margin: float
    sign: float

    def of(self, labels: Sequence[str], *, signed: bool = False) -> RaceStanding | None:
        """Return the findings about these cells; None if a cell is not in the race.

        Values have the metric's own sign; if `signed`, larger is better.
        """
        if any(label not in self.rows for label in labels):
            return None
        rows = [self.rows[label] for label in labels]
        return self.race.of(rows, self.margin, 1.0 if signed else self.sign)

    @property
    def lost(self) -> tuple[str, ...]:
        """Cells that left the race unsettled because their trials failed."""
        return tuple(label for label, row in self.rows.items() if self.race.lost[row])


def race_findings(results: Results, cells: Sequence[CellAnalysis]) -> RaceFindings | None:
    """Replay the race of a sweep; None if the sweep is not a race, or has no looks yet."""
    race, plan = results.race, results.plan
    if race is None or not race.judged:
        return None
    sign = 1.0 if plan.space.goal == "maximize" else -1.0
    values = sign * seed_values(cells, plan.seeds)
    lost = [{trial.seed: trial.status for trial, _ in cell.failures} for cell in cells]
    statuses = np.array([[by_seed.get(seed, "") for seed in plan.seeds] for by_seed in lost])
    diverged = statuses == "diverged"
    outcomes = Outcomes(values, diverged, (statuses != "") & ~diverged)
    compared = np.array([not cell.cell.baseline for cell in cells])
    resolution = results.resolution_of(plan.metric)
    state = replay(outcomes, race.rule.margin, race.judged, compared=compared, resolution=resolution)
    return RaceFindings(state, {cell.label: row for row, cell in enumerate(cells)}, race.rule.margin, sign)
