"""A sweep as the report sees it: every cell with its numbers, and each knob on its own axis."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from trainables.errors import ConfigError, Problem
from tune_dml.planning.cells import Cell
from tune_dml.record.results import Results, TrialResult
from tune_dml.report.naming import MetricName, metric_name, value_label
from tune_dml.space import Grid, Knob, Value
from tune_dml.stats import Excluded, Isolated, Point, SeedTable, isolate
from tune_dml.text import is_number

Axis = Literal["log", "linear", "ordered"]


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
    def failed(self) -> str:
        """Why the arithmetic leaves the cell out; empty when it does not."""
        return "; ".join(f"seed {trial.seed} {why}" for trial, why in self.failures)

    @property
    def label(self) -> str:
        """The cell's name."""
        return self.cell.label


@dataclass(frozen=True)
class MeasuredKnob:
    """One knob with the others out of the way."""

    knob: Knob
    axis: Axis
    isolated: Isolated
    levels: tuple[Value, ...]
    """Every value tried, in the order of the axis, those without results included."""
    labels: tuple[str, ...]
    """One for each level; the rows of `isolated.table` are named by them."""

    @property
    def numeric(self) -> bool:
        """Whether the levels are numbers."""
        return all(is_number(level) for level in self.levels)

    def level(self, label: str) -> Value:
        """The knob's value behind a label."""
        return self.levels[self.labels.index(label)]


@dataclass(frozen=True)
class Measured:
    """Everything the questions of the report ask."""

    results: Results
    metric: MetricName
    margin: float
    cells: tuple[MeasuredCell, ...]
    knobs: tuple[MeasuredKnob, ...]
    """The scientific knobs (all of them when none is scientific)."""

    @property
    def goal(self) -> Literal["maximize", "minimize"]:
        """What is better."""
        return self.results.plan.space.goal

    @property
    def seeds(self) -> tuple[int, ...]:
        """The planned seeds."""
        return self.results.plan.seeds

    @cached_property
    def baseline(self) -> MeasuredCell | None:
        """The baseline cell, if the space has one."""
        return next((cell for cell in self.cells if cell.cell.baseline), None)

    @cached_property
    def by_digest(self) -> dict[str, MeasuredCell]:
        """The cells by identity."""
        return {cell.cell.digest: cell for cell in self.cells}

    def table(self) -> SeedTable:
        """Cells x seeds of every cell that may enter the arithmetic, the baseline included; the others are named."""
        kept = {cell.label: cell.values for cell in self.cells if not cell.failed}
        excluded = [Excluded(cell.label, cell.failed) for cell in self.cells if cell.failed]
        return SeedTable.of(kept, self.seeds, excluded)


def measure(results: Results, margin: float | None = None, metric: str | None = None) -> Measured:
    """Fold a sweep's results; `margin` and `metric` default to the space's. Raises ConfigError unless margin > 0."""
    key = metric or results.plan.metric
    grouped: dict[str, list[TrialResult]] = {}
    for trial in results.trials:
        grouped.setdefault(trial.cell.digest, []).append(trial)
    cells = tuple(_cell(trials, key) for trials in grouped.values())
    space = results.plan.space
    knobs = tuple(_knob(knob, results, cells) for knob in space.scientific or space.knobs)
    place = f"{space.name}.margin" if margin is None else "--margin"
    margin = space.margin if margin is None else margin
    if not margin > 0:
        rule = "the margin must be greater than 0: below it, differences do not matter"
        raise ConfigError(Problem(place, rule, margin, "Example: --margin 1.0 for one percentage point."))
    return Measured(results, metric_name(key), margin, cells, knobs)


def _cell(trials: list[TrialResult], metric: str) -> MeasuredCell:
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


def _knob(knob: Knob, results: Results, cells: tuple[MeasuredCell, ...]) -> MeasuredKnob:
    space = results.plan.space
    tried = [cell for cell in cells if not cell.cell.baseline and knob.path in cell.cell.knobs]
    levels = _ordered(knob, tried)
    others = [other.path for other in space.scientific if other.path != knob.path]
    nuisance = [other.path for other in space.nuisance if other.path != knob.path]
    points = [
        Point(
            level_key(cell.cell.knobs[knob.path]),
            tuple(level_key(cell.cell.knobs.get(path)) for path in others),
            tuple(level_key(cell.cell.knobs.get(path)) for path in nuisance),
            cell.values,
            cell.failed,
        )
        for cell in tried
    ]
    labels = _distinct({level_key(level): value_label(knob, level) for level in levels})
    isolated = isolate(points, labels, results.plan.seeds, goal=space.goal)
    return MeasuredKnob(knob, _axis(knob, levels), isolated, levels, tuple(labels.values()))


def _ordered(knob: Knob, cells: list[MeasuredCell]) -> tuple[Value, ...]:
    """The values that were tried: numbers ascending, names in the order of the grid."""
    found = list({level_key(cell.cell.knobs[knob.path]): cell.cell.knobs[knob.path] for cell in cells}.values())
    numbers = [value for value in found if is_number(value)]
    if len(numbers) == len(found):
        return tuple(sorted(numbers))
    order = [level_key(value) for value in knob.domain.values] if isinstance(knob.domain, Grid) else []
    return tuple(
        sorted(
            found,
            key=lambda value: order.index(level_key(value)) if level_key(value) in order else len(order),
        )
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


def _distinct(labels: Mapping[tuple[str, str], str]) -> dict[Hashable, str]:
    """Labels that rounding made equal get their full value."""
    texts = list(labels.values())
    return {
        key: text if texts.count(text) == 1 else f"{text.partition('=')[0]}={key[1]}" for key, text in labels.items()
    }
