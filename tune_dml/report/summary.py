"""A sweep in a few lines, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tune_dml.record.results import Results
from tune_dml.report.cell import MeasuredCell
from tune_dml.report.measured import Measured, measure
from tune_dml.report.questions import answers
from tune_dml.report.section import Section
from tune_dml.stats import SeedTable


@dataclass(frozen=True)
class SummaryRow:
    """One cell."""

    label: str
    n: int
    """Seeds with a number, of `planned`."""
    planned: int
    mean: float
    low: float
    """Ends of the comparison bar: cells whose bars do not overlap differ; NaN without a noise estimate."""
    high: float
    difference: float
    """To the baseline, within seeds; NaN without one."""
    difference_low: float
    """Simultaneous interval, within seeds; NaN where the data say nothing."""
    difference_high: float
    note: str
    """The seeds without a number, and why; empty when none was lost."""


@dataclass(frozen=True)
class SweepSummary:
    """What a sweep says."""

    name: str
    metric: str
    """As people read it: `validation R@1 [%]`."""
    margin: float
    rows: tuple[SummaryRow, ...]
    verdicts: tuple[str, ...]
    """Sentences: sensitivity, optimum, agreement with the papers, baseline."""
    commands: tuple[str, ...]
    """What to run next, ready to paste."""
    counts: Mapping[str, int]
    """Status -> trials."""
    findings: tuple[str, ...]
    """Failed trials and extendable edges; empty when a check passes."""


def summary(results: Results, margin: float | None = None) -> SweepSummary:
    """Judge a sweep as it stands; `margin` defaults to the planned one. Draws and writes nothing, reads no history."""
    measured = measure(results, margin)
    return summarise(measured, answers(measured, traces=False))


def summarise(measured: Measured, sections: Sequence[Section]) -> SweepSummary:
    """The short form of a report."""
    return SweepSummary(
        measured.results.name,
        measured.metric.axis,
        measured.margin,
        tuple(_row(measured, cell) for cell in measured.cells),
        tuple(sentence for section in sections for sentence in section.verdicts),
        tuple(command for section in sections for command in section.commands),
        measured.counts,
        tuple(finding for section in sections for finding in section.findings),
    )


def _row(measured: Measured, cell: MeasuredCell) -> SummaryRow:
    against = measured.against(cell)
    numbers = (against.difference, against.low, against.high) if against else (math.nan,) * 3
    difference, low, high = (value if math.isfinite(value) else math.nan for value in numbers)
    ends = measured.bar(cell)
    return SummaryRow(
        cell.label, len(cell.values), len(cell.trials), cell.mean, *ends, difference, low, high, cell.lost
    )


def seed_table(results: Results) -> SeedTable:
    """Cells x seeds of the sweep's metric, for the statistics; cells that lost every seed are named, not included."""
    return measure(results).table
