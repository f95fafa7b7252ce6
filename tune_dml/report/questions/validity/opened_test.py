"""What would selection on test have claimed? The question is answered only if the test metrics are opened."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tune_dml.record.events import Opened
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.report.cells import metric_cell, metric_cells
from tune_dml.report.naming import MetricName, metric_of
from tune_dml.report.questions import question
from tune_dml.report.section import Section, Table, Text
from tune_dml.stats import Difference, SeedTable
from tune_dml.stats.intervals.simultaneous import all_pairs, at_most, comparison_bars
from tune_dml.stats.verdicts.ranks import kendall_tau
from tune_dml.text import counted


@dataclass(frozen=True)
class _OpenedRow:
    label: str
    n: int
    mean: float
    low: float  # lower end of the comparison bar; NaN without a noise estimate
    high: float
    validation: float  # mean validation metric over the same seeds
    trials: tuple[str, ...]


@dataclass(frozen=True)
class _OpenedTest:
    """The test metrics, and the optimism of selecting on them."""

    opening: Opened
    late: int
    """Number of trials that ended after the opening, so that the test metrics may have influenced their settings."""
    metric: MetricName
    rows: tuple[_OpenedRow, ...]
    chosen: str  # the cell that validation selects
    claimed: str  # the cell that test would select
    optimism: Difference | None
    """Test metric of `claimed` minus that of `chosen`, within seeds; None if they are the same cell."""
    tau: float


@question(order=500, unanswered={"opened_test": None})
def opened_test(analysis: Analysis) -> Section | None:
    """Show the test metric that corresponds to the sweep's metric.

    Return None while it is sealed, if it was not measured, or if every cell diverged under some seed, because
    validation then selects none.
    """
    opening = analysis.results.opening
    opened = _compare_selections(analysis, opening) if opening else None
    if opened is None:
        return None
    title, sentences = "Opened test metrics", _sentences(opened)
    body = (Text(" ".join(sentences)), _table(analysis.metric, opened))
    recorded = {"time": opened.opening.time, **opened.opening.body()}
    data = {"opened_test": {**vars(opened), "opening": recorded, "sentences": sentences}}
    return Section("opened", title, title, body, data=data, style="opened")


def _compare_selections(analysis: Analysis, opening: Opened) -> _OpenedTest | None:
    key = "test/" + analysis.metric.key.partition("/")[2]
    trials = [trial for cell in analysis.cells for trial in cell.trials]
    sealed = {trial.key: trial.metrics[key] for trial in trials if key in trial.metrics}
    cells = [cell for cell in analysis.cells if cell.values and any(t.key in sealed for t in cell.trials)]
    selectable = [cells.index(cell) for cell in analysis.selectable if cell in cells]
    if not selectable:
        return None
    resolution = analysis.results.resolution_of(key)
    table = SeedTable.of({cell.label: _values(cell, sealed) for cell in cells}, analysis.seeds, resolution=resolution)
    bounds = all_pairs(table.values, analysis.looks.level, table.noise)
    bars, metric = comparison_bars(bounds, np.nanmean(table.values, axis=1)).tolist(), metric_of(analysis.results, key)
    rows = tuple(_row(metric, cell, _values(cell, sealed), bar) for cell, bar in zip(cells, bars, strict=True))
    chosen = selectable[0]
    claimed = int(np.argmax([analysis.sign * row.mean for row in rows]))
    pair, optimism = (claimed, chosen), None
    if claimed != chosen:
        ends = metric.change_ends(float(bounds.low[pair]), float(bounds.high[pair]))
        numbers = (float(bounds.estimate[pair]), *ends)
        limit = float(at_most(table.values, analysis.looks.level, table.noise)[pair])
        optimism = Difference(rows[claimed].label, rows[chosen].label, *numbers, limit)
    tau = kendall_tau([row.validation for row in rows], [row.mean for row in rows])
    late = sum(trial.ended > opening.time for trial in trials)
    return _OpenedTest(opening, late, metric, rows, rows[chosen].label, rows[claimed].label, optimism, tau)


def _row(metric: MetricName, cell: CellAnalysis, test: Mapping[int, float], bar: float) -> _OpenedRow:
    mean = float(np.mean(list(test.values()) or [math.nan]))
    ends = metric.level_ends(mean - bar, mean + bar)
    validation = float(np.mean([cell.values[seed] for seed in test] or [math.nan]))
    return _OpenedRow(cell.label, len(test), mean, *ends, validation, tuple(trial.key for trial in cell.trials))


def _values(cell: CellAnalysis, sealed: Mapping[str, float]) -> dict[int, float]:
    """Return a cell's test metric by seed, for the seeds that have a validation metric as well."""
    values = {t.seed: float(sealed[t.key]) for t in cell.trials if t.key in sealed and t.seed in cell.values}
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


def _sentences(opened: _OpenedTest) -> list[str]:
    metric, gap = opened.metric, opened.optimism
    means = {row.label: metric.number(row.mean) for row in opened.rows}
    sentences = [
        f"These test metrics were sealed until they were {opened.opening}.",
        f"Validation selects {opened.chosen}, with {metric.label} {means[opened.chosen]}.",
    ]
    if gap is None:
        sentences.append("Selection on test would choose the same cell.")
    else:
        ends = metric.interval(gap.low, gap.high)
        interval = f" (simultaneous interval {ends}, within seeds)" if ends else ""
        sentences.append(
            f"Selection on test would choose {opened.claimed} and claim {means[opened.claimed]}, a mean "
            f"{metric.amount(abs(gap.estimate))} better than that of {opened.chosen}{interval}."
        )
    if opened.late:
        late = counted(opened.late, "trial")
        sentences.append(f"{late} ended after the opening, so the test metrics may have influenced their settings.")
    if math.isfinite(opened.tau):
        tau = f"Kendall's tau {opened.tau:.2f} ({len(opened.rows)} cells)"
        sentences.append(f"The orders by validation and test agree with {tau}.")
    return sentences


def _table(validation: MetricName, opened: _OpenedTest) -> Table:
    metric = opened.metric
    rows = [
        (row.label, row.n, metric_cell(validation, row.validation), *metric_cells(metric, row.mean, row.low, row.high))
        for row in opened.rows
    ]
    caption = (
        f"Test metrics, {opened.opening}: {metric.axis}, mean over seeds with its comparison bar: cells whose bars do not "
        "overlap differ."
    )
    return Table("opened-test", caption, ("cell", "seeds", validation.axis, metric.axis, "low", "high"), rows)
