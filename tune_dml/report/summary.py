"""A sweep in a few lines, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tune_dml.record.results import Results
from tune_dml.report.analysis import Analysis, analyse
from tune_dml.report.measured import measure
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
    """95% interval of the mean over seeds (Student's t); NaN with fewer than two seeds."""
    high: float
    difference: float
    """To the baseline, within seeds; NaN without one."""
    difference_low: float
    """Dunnett's simultaneous 95% interval."""
    difference_high: float
    note: str
    """Why the comparisons leave the cell out; empty when they do not."""


@dataclass(frozen=True)
class SweepSummary:
    """What the sweep found."""

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
    """Judge a sweep as it stands; `margin` defaults to the space's. Draws and writes nothing."""
    return summarise(analyse(results, margin, mechanisms=False))


def summarise(found: Analysis) -> SweepSummary:
    """The short form of an analysis."""
    rows = []
    for row in found.cells:
        against = row.against
        rows.append(
            SummaryRow(
                row.label,
                row.interval.n,
                row.planned,
                row.interval.mean,
                row.interval.low,
                row.interval.high,
                against.difference if against else math.nan,
                against.low if against else math.nan,
                against.high if against else math.nan,
                row.left_out,
            )
        )
    located = [answer.location for answer in found.knobs if answer.location is not None]
    return SweepSummary(
        found.measured.results.name,
        found.measured.metric.axis,
        found.measured.margin,
        tuple(rows),
        found.verdicts,
        tuple(place.command for place in located if place.command),
        dict(found.conduct.counts),
        found.findings,
    )


def seed_table(results: Results) -> SeedTable:
    """Cells x seeds of the sweep's metric, for the statistics; cells with failed trials are named, not included."""
    return measure(results).table()
