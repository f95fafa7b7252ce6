"""A sweep as the report sees it: every cell with its numbers, each knob with its curve, and what several questions need, once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from trainables.errors import raise_if_any
from tune_dml.planning.request import margin_problems, paper_sd_problems
from tune_dml.record.results import Results, TrialResult
from tune_dml.record.state import TrialStatus
from tune_dml.report.measured.cell import MeasuredArm, MeasuredCell, RaceFindings, race_findings
from tune_dml.report.measured.knob import CurvePoint, MeasuredKnob, measure_knob, point_of
from tune_dml.report.measured.traces import Candidate, Histories, LoggedRows, Pair, histories_of, pair_of
from tune_dml.report.naming import MetricName, metric_name
from tune_dml.space import Value
from tune_dml.stats import ExcludedCell, SeedTable, compare_all_with
from tune_dml.stats.looks import error_spent, level_left, seeds_counted
from tune_dml.stats.simultaneous import all_pairs, comparison_bars

ALPHA = 0.05
"""The error that all looks at a sweep may spend together, for each family of statements."""

_STATUSES: tuple[TrialStatus, ...] = ("finished", "diverged", "failed", "stopped", "running", "missing")


@dataclass(frozen=True)
class AgainstBaseline:
    """A cell minus the baseline, within seeds, with its simultaneous interval; infinite where the data say nothing."""

    label: str
    n: int
    """Seeds that both have."""
    difference: float
    low: float
    high: float
    verdict: Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class Looks:
    """What was spent on looking at the sweep while it grew."""

    seeds: tuple[float, ...]
    """The seeds a cell had at each look, on average; the present one is the last."""
    planned: int
    """The seeds that were planned before the first look."""
    recorded: bool = True
    """Looks at results of other programs are not: one is assumed, which spends all of the error."""
    share: float = 1.0
    """Of the cells that were begun, those that are left where some were stopped early: they were chosen by their own
    numbers, so they get their share of the error alone (benchmarks/verdict_stopping.py)."""
    some_had_failed: bool = False
    """Whether trials had failed at some look, which counts half of what was new to it."""

    @property
    def level(self) -> float:
        """The error that the present look may spend."""
        if not self.recorded:
            return ALPHA
        return self.share * (level_left(self.seeds, planned=self.planned, alpha=ALPHA) or ALPHA)

    @property
    def spent(self) -> float:
        """The error of all looks together."""
        if not self.recorded:
            return ALPHA
        return error_spent(self.seeds, planned=self.planned, alpha=ALPHA)

    def level_at(self, seeds: float) -> float:
        """What a further look, at so many seeds, may spend."""
        if not self.recorded:
            return ALPHA
        return self.share * level_left((*self.seeds, seeds), planned=self.planned, alpha=ALPHA)


@dataclass(frozen=True, eq=False)
class Measured:
    """Everything the questions of the report ask."""

    results: Results
    metric: MetricName
    margin: float
    cells: tuple[MeasuredCell, ...]
    paper_sd: float | None = None
    """Run-to-run standard deviation of the papers' numbers, as the user gives it; None: not known."""

    @property
    def goal(self) -> Literal["maximize", "minimize"]:
        """What is better."""
        return self.results.plan.space.goal

    @property
    def sign(self) -> float:
        """1 when more is better, -1 when less is."""
        return 1.0 if self.goal == "maximize" else -1.0

    @property
    def seeds(self) -> tuple[int, ...]:
        """The planned seeds."""
        return self.results.plan.seeds

    @cached_property
    def counts(self) -> dict[str, int]:
        """Status -> number of trials, those that occur."""
        return {status: count for status in _STATUSES if (count := self.results.count(status))}

    @cached_property
    def settings(self) -> Mapping[str, Value]:
        """Of the first cell that is not the baseline."""
        return next((cell.cell.settings for cell in self.cells if not cell.cell.baseline), {})

    def settings_of(self, arm: str) -> Mapping[str, Value]:
        """Of the first cell of an arm."""
        return next((cell.cell.settings for cell in self.cells if cell.cell.arm == arm), {})

    @cached_property
    def arms(self) -> tuple[MeasuredArm, ...]:
        """The methods that were compared, in their order, with their cells; of a space without arms, it and its baseline."""
        plan = self.results.plan
        return tuple(
            MeasuredArm(
                arm.name,
                arm.baseline,
                plan.knobs_of(arm.name),
                tuple(cell for cell in self.cells if cell.cell.arm == arm.name),
            )
            for arm in plan.arms
        )

    @cached_property
    def baseline(self) -> MeasuredCell | None:
        """The baseline cell, if the space has one; its best cell, where something was tuned away in it too."""
        cells = [cell for cell in self.cells if cell.cell.baseline]
        with_numbers = [cell for cell in cells if cell.values]
        return max(with_numbers, key=lambda cell: self.sign * cell.mean) if with_numbers else next(iter(cells), None)

    @cached_property
    def looks(self) -> Looks:
        """Those on record, and the present one."""
        past, counts = self.results.looks, self.counts
        ended = len(self.results.trials) - counts.get("running", 0) - counts.get("missing", 0)
        failed = 0 if self.results.race else counts.get("failed", 0)
        planned = past[0].planned if past else len(self.seeds)
        seeds = [float(look.seeds) for look in past]
        if not past or (past[-1].trials, past[-1].failed) != (ended, failed):  # the present one is not on record
            before = max(seeds, default=0.0)
            seeds.append(seeds_counted(ended / max(1, len(self.cells)), before, failed=failed > 0))
        recorded, halved = self.results.imported is None, failed > 0 or any(look.failed for look in past)
        return Looks(tuple(seeds), max(1, planned), recorded, self._share_left, halved)

    @property
    def _share_left(self) -> float:
        """The cells with a number, less the one that others are compared with, of all that there would be."""
        left = sum(bool(cell.values) for cell in self.cells)
        return (left - 1) / (left - 1 + len(self.stopped)) if left > 1 else 1.0

    @cached_property
    def stopped(self) -> tuple[MeasuredCell, ...]:
        """The cells that were stopped early, behind others, and have no number at the end."""
        return tuple(cell for cell in self.cells if cell.stopped is not None)

    @cached_property
    def race(self) -> RaceFindings | None:
        """What the sweep's race has found; None where there was none."""
        return race_findings(self.results, self.cells)

    @cached_property
    def resolution(self) -> float:
        """What one query moves the metric by; 0 where it is as good as continuous, or not known."""
        return self.results.resolution_of(self.metric.key)

    @cached_property
    def table(self) -> SeedTable:
        """Cells x seeds of every cell with a number, the baseline included; those that lost every seed are named."""
        numbers = {cell.label: cell.values for cell in self.cells if cell.values}
        excluded = [ExcludedCell(cell.label, cell.lost) for cell in self.cells if cell.lost and not cell.values]
        return SeedTable.of(numbers, self.seeds, excluded, resolution=self.resolution)

    @cached_property
    def bars(self) -> Mapping[str, float]:
        """Cell -> half its comparison bar: cells whose bars do not overlap differ. NaN without a noise estimate."""
        if not self.table.testable:
            return {}
        bounds = all_pairs(self.table.values, self.looks.level, self.table.noise)
        raced = self.race.of(self.table.labels) if self.race else None
        if raced is not None:
            bounds = raced.narrow(bounds)
        bars = comparison_bars(bounds)
        return dict(zip(self.table.labels, bars.tolist(), strict=True))

    def bar(self, cell: MeasuredCell) -> tuple[float, float]:
        """Both ends of a cell's comparison bar; a percentage's lie within 0 and 100."""
        half = self.bars.get(cell.label, math.nan)
        return self.metric.level(cell.mean - half), self.metric.level(cell.mean + half)

    @cached_property
    def against_baseline(self) -> tuple[AgainstBaseline, ...] | None:
        """Every other cell against the baseline; None without one, or when it has no numbers."""
        if self.baseline is None or not self.baseline.values:
            return None
        by_label = {cell.label: cell for cell in self.cells}
        rows = []
        table = self.table.without(
            cell.label for cell in self.cells if cell.cell.baseline and cell is not self.baseline
        )
        raced = self.race.of(table.labels) if self.race else None
        for difference in compare_all_with(table, self.baseline.label, alpha=self.looks.level, raced=raced):
            low, high = (
                (difference.low, difference.high) if self.goal == "maximize" else (-difference.high, -difference.low)
            )
            verdict: Literal["better", "worse", "undecided"] = (
                "better" if low > 0 else "worse" if high < 0 else "undecided"
            )
            shared = len(by_label[difference.first].values.keys() & self.baseline.values.keys())
            rows.append(
                AgainstBaseline(difference.first, shared, difference.estimate, difference.low, difference.high, verdict)
            )
        return tuple(rows)

    def against(self, cell: MeasuredCell) -> AgainstBaseline | None:
        """A cell's difference to the baseline; None for the baseline itself and where there is none."""
        return self._against.get(cell.label)

    @cached_property
    def _against(self) -> Mapping[str, AgainstBaseline]:
        return {row.label: row for row in self.against_baseline or ()}

    @cached_property
    def knobs(self) -> tuple[MeasuredKnob, ...]:
        """The scientific knobs of each arm (all of them when none is scientific); they share the error (Bonferroni)."""
        space = self.results.plan.space
        searched = [
            (arm, knob) for arm in self.arms if not arm.baseline for knob in space.scientific_of(space.arm(arm.name))
        ]
        return tuple(measure_knob(self, arm, knob, self.looks.level / len(searched)) for arm, knob in searched)

    @cached_property
    def baseline_point(self) -> CurvePoint | None:
        """The baseline with the comparison bar it has among all cells."""
        if self.baseline is None:
            return None
        label = self.baseline.label
        return point_of(label, None, [self.baseline], self.baseline.mean, self.bars.get(label, math.nan))

    logged = cached_property(lambda self: LoggedRows(self.results))
    """What trials logged, each trial read once."""

    @cached_property
    def histories(self) -> dict[str, Histories]:
        """Key of a knob -> what the trials behind its curve logged while they trained."""
        rows = self.logged.of([trial.key for trial in self.results.trials])
        baseline = self.baseline.label if self.baseline else None
        return {
            knob.key: histories_of(rows, {point.label: point.trials for point in knob.points_and_baseline}, baseline)
            for knob in self.knobs
        }

    @cached_property
    def pair(self) -> Pair:
        """The baseline (the worst cell where there is none) and the best other cell, with what they left to look at."""
        ranked = sorted(
            (cell for cell in self.cells if cell.values),
            key=lambda cell: -self.sign * cell.mean,
        )
        baseline, missing = self.baseline, []
        if baseline is not None and not baseline.values:
            missing.append(f"The baseline {baseline.label} has no finished trial to show.")
        if baseline is None or not baseline.values:
            shown = [(ranked[-1], "worst")] if len(ranked) > 1 else []
            shown += [(cell, "best") for cell in ranked[:1]]
        else:
            others = [cell for cell in ranked if cell is not baseline]
            role = "best" if others and others[0] is ranked[0] else "best of the others"
            shown = [(baseline, "baseline"), *((cell, role) for cell in others[:1])]
        return pair_of(self.results, [Candidate(cell.label, role, cell.trials) for cell, role in shown], missing)


def measure(results: Results, margin: float | None = None, paper_sd: float | None = None) -> Measured:
    """Fold a sweep's results; `margin` defaults to the planned one. Raises ConfigError unless margin > 0."""
    plan, metric = results.plan, results.plan.metric
    location = f"{plan.space.name}.margin" if margin is None else "--margin"
    margin = plan.margin if margin is None else margin
    raise_if_any([*margin_problems(margin, location), *paper_sd_problems(paper_sd)])
    by_cell: dict[str, list[TrialResult]] = {}
    for trial in results.trials:
        by_cell.setdefault(trial.cell.digest, []).append(trial)
    cells = tuple(_measured_cell(trials, metric) for trials in by_cell.values())
    return Measured(results, metric_name(metric), margin, cells, paper_sd)


def _measured_cell(trials: list[TrialResult], metric: str) -> MeasuredCell:
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
    return MeasuredCell(trials[0].cell, tuple(trials), values, tuple(failures))
