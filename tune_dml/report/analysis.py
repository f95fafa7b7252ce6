"""All questions of the report, asked once: what every writer and the terminal summary read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tune_dml.record.results import Results
from tune_dml.report.measured import Measured, MeasuredCell, measure
from tune_dml.report.questions import (
    agreement,
    baseline,
    conduct,
    curve,
    directions,
    histories,
    mechanism,
    norms,
    opened,
    optimum,
    sheets,
    training,
)
from tune_dml.report.questions.compared import compared
from tune_dml.space import Value
from tune_dml.stats import AgainstBaseline, Interval, mean_interval


@dataclass(frozen=True)
class CellRow:
    """One cell in numbers."""

    label: str
    knobs: Mapping[str, Value]
    baseline: bool
    interval: Interval
    """Of the mean over seeds (Student's t), for this cell alone."""
    planned: int
    against: AgainstBaseline | None
    """The difference to the baseline; None for the baseline itself and where there is none."""
    left_out: str
    """Why the comparisons leave the cell out; empty when they do not."""
    seconds: float
    """Mean of a trial; 0 when none has run."""
    trials: tuple[tuple[int, str], ...]
    """(seed, key)."""


@dataclass(frozen=True, eq=False)
class KnobAnswer:
    """The answers about one knob."""

    curve: curve.Curve
    location: optimum.Location | None
    comparisons: tuple[agreement.Comparison, ...]
    mechanism: mechanism.Mechanism | None
    training: training.Training | None
    """None, like the next, where the histories were not to be read."""
    directions: directions.Directions | None


@dataclass(frozen=True, eq=False)
class Analysis:
    """Everything the report says."""

    measured: Measured
    conduct: conduct.Conduct
    cells: tuple[CellRow, ...]
    knobs: tuple[KnobAnswer, ...]
    baseline: baseline.AgainstBaselineView | None
    opened: opened.Opened | None
    norms: norms.Norms | None
    """None, like the next, where what trials left was not to be read."""
    sheets: sheets.Sheets | None

    @property
    def verdicts(self) -> tuple[str, ...]:
        """The leading sentence of every verdict."""
        found = []
        for answer in self.knobs:
            found.append(answer.curve.sentences[0])
            if answer.location is not None:
                found.append(answer.location.sentence)
            found += [comparison.brief for comparison in answer.comparisons]
        if self.baseline is not None:
            found.append(self.baseline.sentence)
        return tuple(found)

    @property
    def findings(self) -> tuple[str, ...]:
        """What a check in a pipeline should stop at: trials without a result, and optima at an edge that can be extended."""
        failures = [f"{f.label}, seed {f.seed}: {f.status}: {f.reason}" for f in self.conduct.failures]
        located = [answer.location for answer in self.knobs if answer.location is not None]
        edges = [
            place.sentence for place in located if place.optimum.verdict == "edge" and not place.optimum.natural_bound
        ]
        return (*failures, *edges)


def analyse(
    results: Results, margin: float | None = None, *, unseal_test: bool = False, mechanisms: bool = True
) -> Analysis:
    """Ask every question of a sweep; without `mechanisms` the trials' histories and what they left are not read."""
    measured = measure(results, margin)
    against = baseline.extract(measured)
    pair = compared(measured) if mechanisms else None
    return Analysis(
        measured,
        conduct.extract(measured),
        tuple(_row(measured, cell, against) for cell in measured.cells),
        tuple(_answer(measured, knob, mechanisms) for knob in range(len(measured.knobs))),
        against,
        opened.extract(measured) if unseal_test else None,
        norms.extract(pair) if pair else None,
        sheets.extract(pair) if pair else None,
    )


def _answer(measured: Measured, index: int, mechanisms: bool) -> KnobAnswer:
    found = curve.extract(measured, measured.knobs[index])
    logged = histories.read(measured, found) if mechanisms else None
    return KnobAnswer(
        found,
        optimum.extract(measured, found),
        agreement.extract(measured, found),
        mechanism.extract(found, logged) if logged else None,
        training.extract(measured, logged) if logged else None,
        directions.extract(found, logged) if logged else None,
    )


def _row(measured: Measured, cell: MeasuredCell, against: baseline.AgainstBaselineView | None) -> CellRow:
    rows = against.comparison.rows if against else ()
    seconds = [trial.seconds for trial in cell.trials if trial.seconds > 0]
    values = [cell.values.get(seed, math.nan) for seed in measured.seeds]
    return CellRow(
        cell.label,
        cell.cell.knobs,
        cell.cell.baseline,
        mean_interval(values),
        len(cell.trials),
        next((row for row in rows if row.label == cell.label), None),
        cell.failed,
        sum(seconds) / len(seconds) if seconds else 0.0,
        tuple((trial.seed, trial.key) for trial in cell.trials),
    )
