"""Results of cells and arms, the ranking of cells by validation, and the findings of a race."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tune_dml.planning.cells import Cell
from tune_dml.planning.grouping import grouped
from tune_dml.planning.plan import Plan
from tune_dml.record.results import Results, TrialResult
from tune_dml.space import Knob
from tune_dml.stats.intervals.table import SeedTable
from tune_dml.stats.sequential.racing import Outcomes, RaceStanding, RaceState, replay
from tune_dml.stats.verdicts.selection import best_first

_MAX_BIAS = 0.5
"""Share of a cell's lost trials times the root of its seeds - 1 (benchmarks/verdict_subsets.py): 2 of 5, 2 of 10, 3 of 20."""


@dataclass(frozen=True)
class CellAnalysis:
    """A cell with its trials and their values."""

    cell: Cell
    trials: tuple[TrialResult, ...]
    values: Mapping[int, float]  # the sweep's metric by seed
    failures: tuple[tuple[TrialResult, str], ...]  # (trial, reason) of each trial without a value

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
    def may_be_biased(self) -> bool:
        """Whether so many trials have no value that the mean would be wrong if their results were the reason."""
        ended = len(self.values) + len(self.failures)
        return bool(self.values) and len(self.failures) * math.sqrt(ended - 1) > _MAX_BIAS * ended

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

    name: str  # empty in a space without arms
    slug: str  # name as used in anchors and file names, different from those of other arms
    baseline: bool
    knobs: tuple[Knob, ...]  # knobs searched in the arm, scientific ones first
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


def analyse_cells(trials: Iterable[TrialResult], metric: str) -> tuple[CellAnalysis, ...]:
    """Return the cells of trials, in the order of their first trials."""
    by_cell = grouped(trials, lambda trial: trial.cell.digest)
    return tuple(_analyse_cell(of_cell, metric) for of_cell in by_cell.values())


def _analyse_cell(trials: list[TrialResult], metric: str) -> CellAnalysis:
    values: dict[int, float] = {}
    failures: list[tuple[TrialResult, str]] = []
    for trial in trials:
        number = trial.metrics.get(metric, math.nan)
        if trial.status in {"failed", "diverged"}:
            why = f": {trial.reason}" if trial.reason else ""
            failures.append((trial, f"{trial.status}{why}"))
        elif trial.status == "finished" and not math.isfinite(number):
            failures.append((trial, f"finished without a finite {metric}"))
        elif trial.status == "finished":
            values[trial.seed] = float(number)
    return CellAnalysis(trials[0].cell, tuple(trials), values, tuple(failures))


def best_cells(results: Results) -> list[Cell]:
    """Return the cells that validation can select, the best first; a baseline is included."""
    return [cell.cell for cell in selectable_cells(results.plan, analyse_cells(results.trials, results.plan.metric))]


def selectable_cells(plan: Plan, cells: Sequence[CellAnalysis]) -> tuple[CellAnalysis, ...]:
    """Return the cells with a finished trial and without a diverged one, the best on validation first.

    Lost and missing trials count as holes.
    """
    by_digest = {cell.cell.digest: cell for cell in cells if not cell.diverged}
    table = SeedTable.of({digest: cell.values for digest, cell in by_digest.items()}, plan.seeds)
    ranked = best_first(table.values if plan.space.goal == "maximize" else -table.values)
    return tuple(by_digest[table.labels[row]] for row in ranked)


@dataclass(frozen=True, eq=False)
class RaceFindings:
    """State of a sweep's race after all its looks; verdicts use it so that they agree with the race."""

    race: RaceState
    rows: dict[str, int]
    margin: float
    sign: float

    def of(self, labels: Sequence[str]) -> RaceStanding | None:
        """Return the findings about these cells, with the metric's own sign; None if a cell is not in the race."""
        if any(label not in self.rows for label in labels):
            return None
        return self.race.of([self.rows[label] for label in labels], self.margin, self.sign)

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


def identical_cells(cells: Sequence[CellAnalysis]) -> tuple[tuple[CellAnalysis, ...], ...]:
    """Return groups of cells with exactly equal results under every seed that they share.

    Both the validation metrics and the last losses must be equal, because rounded metrics alone may be equal by chance.
    """
    owners: dict[tuple[object, ...], int] = {}  # index of the first cell with each result
    groups: dict[int, list[CellAnalysis]] = {}
    for index, cell in enumerate(cells):
        keys = [key for trial in cell.trials if (key := _result_key(trial))]
        owner = next((owners[key] for key in keys if key in owners), index)
        if owner != index and not _have_equal_results(cells[owner], cell):
            owner = index
        groups.setdefault(owner, []).append(cell)
        for key in keys:
            owners.setdefault(key, owner)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _have_equal_results(*cells: CellAnalysis) -> bool:
    """Return whether two cells share a seed and have equal results under all shared seeds."""
    first, second = ({trial.seed: key for trial in cell.trials if (key := _result_key(trial))} for cell in cells)
    shared = first.keys() & second.keys()
    return bool(shared) and all(first[seed] == second[seed] for seed in shared)


def has_no_effect(arm: ArmAnalysis, knob: Knob) -> bool:
    """Return whether a knob's values have equal results, at every setting of the other knobs."""
    cells = [cell for cell in arm.cells if knob.path in cell.cell.knobs and cell.values]
    by_others = grouped(cells, lambda cell: repr({**cell.cell.knobs, knob.path: None}))
    compared = [same for same in by_others.values() if len(same) > 1]
    return bool(compared) and all(_have_equal_results(same[0], cell) for same in compared for cell in same[1:])


def _result_key(trial: TrialResult) -> tuple[object, ...]:
    """Return a finished trial's results as a key; empty if they could be equal by chance."""
    losses = {name: value for name, value in trial.metrics.items() if "loss" in name.lower()}
    if trial.status != "finished" or not any(losses.values()):
        return ()
    figures = {name: value for name, value in trial.metrics.items() if name.startswith("val/")}
    return (trial.seed, *sorted({**figures, **losses}.items()))
