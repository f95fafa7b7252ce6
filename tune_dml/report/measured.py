"""A sweep as the report sees it: every cell with its numbers, each knob with its curve, and what several questions need, once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from trainables.errors import raise_if_any
from tune_dml.planning.cells import Cell
from tune_dml.planning.request import margin_problems
from tune_dml.published import PublishedCurve, published_curve
from tune_dml.record.results import Results, TrialResult
from tune_dml.record.state import TrialStatus
from tune_dml.report.naming import MetricName, metric_name, slug, symbol_of, value_label
from tune_dml.report.traces import Candidate, Histories, Pair, histories_of, pair_of, read_rows
from tune_dml.space import Grid, Knob, Value
from tune_dml.stats import (
    AgainstBaseline,
    BaselineComparison,
    BlockFit,
    Excluded,
    Interval,
    Isolated,
    Point,
    SeedTable,
    Sensitivity,
    compare_with_baseline,
    fit_blocks,
    isolate,
    judge_sensitivity,
    mean_interval,
)
from tune_dml.text import is_number

Axis = Literal["log", "linear", "ordered"]

STATUSES: tuple[TrialStatus, ...] = ("finished", "diverged", "failed", "running", "missing")


@dataclass(frozen=True)
class MeasuredCell:
    """A cell with what its trials gave."""

    cell: Cell
    trials: tuple[TrialResult, ...]
    values: Mapping[int, float]
    """Seed -> the sweep's metric, of the trials that have it."""
    failures: tuple[tuple[TrialResult, str], ...]
    """The trials that failed or diverged, or finished without the metric, and why."""

    @property
    def label(self) -> str:
        """The cell's name."""
        return self.cell.label

    @property
    def left_out(self) -> str:
        """Why the arithmetic leaves the cell out; empty when it does not."""
        return "; ".join(f"seed {trial.seed} {why}" for trial, why in self.failures)

    @property
    def interval(self) -> Interval:
        """Of the mean over seeds (Student's t), for this cell alone."""
        return mean_interval(list(self.values.values()))

    @property
    def seconds(self) -> tuple[float, ...]:
        """Training time of each trial that has run."""
        return tuple(trial.seconds for trial in self.trials if trial.seconds > 0)


@dataclass(frozen=True)
class CurvePoint:
    """One value of a knob."""

    label: str
    value: Value
    seeds: tuple[tuple[int, float], ...]
    """(seed, metric) behind the mean, the other knobs removed; every number there is for a value that is left out."""
    mean: float
    """NaN when the value is left out of the arithmetic or has no number."""
    half_bar: float
    """Half the comparison bar; NaN without a noise estimate."""
    failures: tuple[tuple[int, str, str], ...]
    """(seed, status, reason)."""
    trials: tuple[str, ...]
    """Keys of the trials behind it."""


@dataclass(frozen=True, eq=False)
class MeasuredKnob:
    """One knob with the others out of the way: its curve, and what the statistics say of it."""

    knob: Knob
    axis: Axis
    levels: tuple[Value, ...]
    """Every value tried, in the order of the axis, those without results included."""
    labels: tuple[str, ...]
    """One for each level; the rows of `isolated.table` are named by them."""
    isolated: Isolated
    fit: BlockFit
    sensitivity: Sensitivity
    points: tuple[CurvePoint, ...]
    baseline: CurvePoint | None
    published: tuple[PublishedCurve, ...]
    """The papers' curves for this knob, those on the same data set first."""

    @property
    def path(self) -> str:
        """The knob's dotted path."""
        return self.knob.path

    @property
    def symbol(self) -> str:
        """What sentences call it."""
        return symbol_of(self.knob)

    @property
    def slug(self) -> str:
        """The path as part of an anchor and of file names."""
        return slug(self.path)

    @property
    def numeric(self) -> bool:
        """Whether the levels are numbers."""
        return all(is_number(level) for level in self.levels)

    @property
    def points_and_baseline(self) -> tuple[CurvePoint, ...]:
        """The curve, and the baseline behind it."""
        return self.points if self.baseline is None else (*self.points, self.baseline)

    def level(self, label: str) -> Value:
        """The knob's value behind a label."""
        return self.levels[self.labels.index(label)]


@dataclass(frozen=True, eq=False)
class Measured:
    """Everything the questions of the report ask."""

    results: Results
    metric: MetricName
    margin: float
    cells: tuple[MeasuredCell, ...]
    unseal_test: bool
    """Whether the test metrics are opened."""

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
        return {status: count for status in STATUSES if (count := self.results.count(status))}

    @cached_property
    def settings(self) -> Mapping[str, Value]:
        """Of the first cell that is not the baseline."""
        return next((cell.cell.settings for cell in self.cells if not cell.cell.baseline), {})

    @cached_property
    def baseline(self) -> MeasuredCell | None:
        """The baseline cell, if the space has one."""
        return next((cell for cell in self.cells if cell.cell.baseline), None)

    @cached_property
    def table(self) -> SeedTable:
        """Cells x seeds of every cell that may enter the arithmetic, the baseline included; the others are named."""
        kept = {cell.label: cell.values for cell in self.cells if not cell.left_out}
        excluded = [Excluded(cell.label, cell.left_out) for cell in self.cells if cell.left_out]
        return SeedTable.of(kept, self.seeds, excluded)

    @cached_property
    def against_baseline(self) -> BaselineComparison | None:
        """Every cell against the baseline; None without one, or when it has no numbers."""
        if self.baseline is None:
            return None
        return compare_with_baseline(self.table, self.baseline.label, goal=self.goal)

    def against(self, cell: MeasuredCell) -> AgainstBaseline | None:
        """A cell's difference to the baseline; None for the baseline itself and where there is none."""
        rows = self.against_baseline.rows if self.against_baseline else ()
        return next((row for row in rows if row.label == cell.label), None)

    @cached_property
    def knobs(self) -> tuple[MeasuredKnob, ...]:
        """The scientific knobs (all of them when none is scientific); their intervals share the 5% (Bonferroni)."""
        space = self.results.plan.space
        searched = space.scientific or space.knobs
        return tuple(_measured_knob(self, knob, confidence=1 - 0.05 / len(searched)) for knob in searched)

    @cached_property
    def baseline_point(self) -> CurvePoint | None:
        """The baseline with the comparison bar it has among all cells."""
        if self.baseline is None:
            return None
        label, fit = self.baseline.label, fit_blocks(self.table)
        means = dict(zip(fit.table.labels, fit.means.tolist(), strict=True))
        bars = dict(judge_sensitivity(self.table, self.margin, fit=fit).half_widths)
        return _point(label, None, [self.baseline], means.get(label, math.nan), bars.get(label, math.nan))

    @cached_property
    def histories(self) -> dict[str, Histories]:
        """Knob path -> what the trials behind its curve logged while they trained."""
        rows = read_rows(self.results)
        baseline = self.baseline.label if self.baseline else None
        return {
            knob.path: histories_of(rows, {point.label: point.trials for point in knob.points_and_baseline}, baseline)
            for knob in self.knobs
        }

    @cached_property
    def pair(self) -> Pair:
        """The baseline (the worst cell where there is none) and the best other cell, with what they left to look at."""
        ranked = sorted(
            (cell for cell in self.cells if cell.values),
            key=lambda cell: -self.sign * float(np.mean(list(cell.values.values()))),
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


def measure(results: Results, margin: float | None = None, *, unseal_test: bool = False) -> Measured:
    """Fold a sweep's results; `margin` defaults to the planned one. Raises ConfigError unless margin > 0."""
    plan, metric = results.plan, results.plan.metric
    location = f"{plan.space.name}.margin" if margin is None else "--margin"
    margin = plan.margin if margin is None else margin
    raise_if_any(margin_problems(margin, location))
    by_cell: dict[str, list[TrialResult]] = {}
    for trial in results.trials:
        by_cell.setdefault(trial.cell.digest, []).append(trial)
    cells = tuple(_measured_cell(trials, metric) for trials in by_cell.values())
    return Measured(results, metric_name(metric), margin, cells, unseal_test)


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


def _measured_knob(measured: Measured, knob: Knob, *, confidence: float) -> MeasuredKnob:
    tried = [cell for cell in measured.cells if not cell.cell.baseline and knob.path in cell.cell.knobs]
    levels = _ordered(knob, tried)
    labels = _distinct({level_key(level): value_label(knob, level) for level in levels})
    isolated = _isolated(measured, knob, tried, labels)
    fit = fit_blocks(isolated.table)
    sensitivity = judge_sensitivity(isolated.table, measured.margin, confidence=confidence, fit=fit)
    if not isolated.crossed and sensitivity.verdict == "undecided" and not sensitivity.differences:
        reason = "its values were not tried with the same settings of the other knobs; a grid would compare them"
        sensitivity = replace(sensitivity, reason=reason)
    means = dict(zip(fit.table.labels, fit.means.tolist(), strict=True))
    bars = dict(sensitivity.half_widths)
    points = []
    for key, level in zip(labels, levels, strict=True):
        label, cells = labels[key], [cell for cell in tried if level_key(cell.cell.knobs[knob.path]) == key]
        point = _point(label, level, cells, means.get(label, math.nan), bars.get(label, math.nan))
        points.append(replace(point, seeds=_isolated_seeds(isolated.table, label) or point.seeds))
    baseline = measured.baseline_point
    if baseline is not None and len(points) < 2:
        baseline = replace(baseline, half_bar=math.nan)
    return MeasuredKnob(
        knob, _axis(knob, levels), levels, tuple(labels.values()), isolated, fit, sensitivity, tuple(points), baseline,
        _published(measured, knob),
    )  # fmt: skip


def _isolated(measured: Measured, knob: Knob, tried: list[MeasuredCell], labels: Mapping[Hashable, str]) -> Isolated:
    space = measured.results.plan.space
    others = [other.path for other in space.scientific if other.path != knob.path]
    nuisance = [other.path for other in space.nuisance if other.path != knob.path]
    points = [
        Point(
            level_key(cell.cell.knobs[knob.path]),
            tuple(level_key(cell.cell.knobs.get(path)) for path in others),
            tuple(level_key(cell.cell.knobs.get(path)) for path in nuisance),
            cell.values,
            cell.left_out,
        )
        for cell in tried
    ]
    return isolate(points, labels, measured.seeds, goal=space.goal)


def _point(label: str, level: Value, cells: list[MeasuredCell], mean: float, bar: float) -> CurvePoint:
    seeds = tuple((seed, number) for cell in cells for seed, number in sorted(cell.values.items()))
    failures = tuple((trial.seed, trial.status, why) for cell in cells for trial, why in cell.failures)
    return CurvePoint(
        label, level, seeds, mean, bar, failures, tuple(trial.key for cell in cells for trial in cell.trials)
    )


def _isolated_seeds(table: SeedTable, label: str) -> tuple[tuple[int, float], ...]:
    if label not in table.labels:
        return ()
    row = table.values[table.labels.index(label)].tolist()
    return tuple((seed, number) for seed, number in zip(table.seeds, row, strict=True) if math.isfinite(number))


def _published(measured: Measured, knob: Knob) -> tuple[PublishedCurve, ...]:
    """The space's published curves for this knob: those whose hyperparameter is its last name or its symbol."""
    names = {knob.path.rpartition(".")[2], symbol_of(knob)}
    plan = measured.results.plan
    named = [item for item in plan.space.published if item.hyperparameter in names]
    if not named and len(plan.space.scientific or plan.space.knobs) == 1:
        named = list(plan.space.published)
    dataset = _letters(plan.dataset)
    same_first = sorted(named, key=lambda item: not _letters(item.dataset).startswith(dataset))
    return tuple(published_curve(item) for item in same_first)


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _ordered(knob: Knob, cells: list[MeasuredCell]) -> tuple[Value, ...]:
    """The values that were tried: numbers ascending, names in the order of the grid."""
    tried = list({level_key(cell.cell.knobs[knob.path]): cell.cell.knobs[knob.path] for cell in cells}.values())
    numbers = [value for value in tried if is_number(value)]
    if len(numbers) == len(tried):
        return tuple(sorted(numbers))
    order = [level_key(value) for value in knob.domain.values] if isinstance(knob.domain, Grid) else []
    return tuple(
        sorted(tried, key=lambda value: order.index(level_key(value)) if level_key(value) in order else len(order))
    )


def _axis(knob: Knob, levels: tuple[Value, ...]) -> Axis:
    """Logarithmic only where all values are positive; a log grid with 0 is drawn at equal steps in order."""
    numbers = [level for level in levels if is_number(level)]
    if knob.domain.scale == "category" or len(numbers) < len(levels):
        return "ordered"
    if knob.domain.scale == "log":
        return "log" if all(number > 0 for number in numbers) else "ordered"
    return "linear"


def level_key(value: Value) -> tuple[str, str]:
    """A hashable stand-in for a knob's value: 1 and 1.0 are one value, True is another."""
    return ("number", repr(float(value))) if is_number(value) else ("name", repr(value))


def same_value(value: Value, x: float | str) -> bool:
    """Whether a knob's value is the one a paper printed."""
    if is_number(value) and is_number(x):
        return math.isclose(value, x, rel_tol=1e-9)
    return str(value) == str(x)


def _distinct(labels: Mapping[tuple[str, str], str]) -> dict[Hashable, str]:
    """Labels that rounding made equal get their full value."""
    texts = list(labels.values())
    return {
        key: text if texts.count(text) == 1 else f"{text.partition('=')[0]}={key[1]}" for key, text in labels.items()
    }
