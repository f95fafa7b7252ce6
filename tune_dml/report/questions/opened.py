"""What would selecting on test have claimed? Only when the test metrics are opened."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import kendalltau

from tune_dml.record.results import open_test_metrics
from tune_dml.report.measured import Measured, MeasuredCell
from tune_dml.report.naming import MetricName, metric_name
from tune_dml.stats import Interval, SeedTable, cell_interval, paired_difference


@dataclass(frozen=True)
class OpenedRow:
    """One cell's test metric."""

    label: str
    interval: Interval
    validation: float
    """Mean validation metric over the same seeds."""
    trials: tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    """The test metrics and what honest selection gives up."""

    metric: MetricName
    rows: tuple[OpenedRow, ...]
    chosen: str
    """The cell that validation selects; empty when no cell has both numbers."""
    claimed: str
    """The cell that test would have selected."""
    optimism: Interval | None
    """Test metric of `claimed` minus that of `chosen`, within seeds."""
    tau: float
    """Kendall's tau between the validation and the test order of the cells."""
    sentences: tuple[str, ...]


def extract(measured: Measured) -> Opened | None:
    """Open the sealed metric that corresponds to the sweep's own, which is recorded; None when no trial has it."""
    key = "test/" + measured.metric.key.partition("/")[2]
    metric = metric_name(key)
    sealed = {trial: metrics[key] for trial, metrics in open_test_metrics(measured.results).items() if key in metrics}
    cells = [cell for cell in measured.cells if not cell.failed and any(t.key in sealed for t in cell.trials)]
    if not cells:
        return None
    table = SeedTable.of({cell.label: _test(cell, sealed) for cell in cells}, measured.seeds)
    rows = tuple(
        OpenedRow(
            cell.label,
            cell_interval(table, row),
            float(np.mean([cell.values[seed] for seed in _test(cell, sealed)] or [math.nan])),
            tuple(trial.key for trial in cell.trials),
        )
        for row, cell in enumerate(cells)
    )
    sign = 1.0 if measured.goal == "maximize" else -1.0
    chosen = int(np.argmax([sign * row.validation for row in rows]))
    claimed = int(np.argmax([sign * row.interval.mean for row in rows]))
    optimism = paired_difference(table, claimed, chosen)
    tau = math.nan
    if len(rows) > 2:
        tau = float(kendalltau([row.validation for row in rows], [row.interval.mean for row in rows]).statistic)
    found = Opened(metric, rows, rows[chosen].label, rows[claimed].label, optimism, tau, ())
    return replace(found, sentences=tuple(_sentences(found, rows[chosen], rows[claimed])))


def _test(cell: MeasuredCell, sealed: Mapping[str, float]) -> dict[int, float]:
    """Seed -> test metric, where both numbers are known."""
    own = {t.seed: float(sealed[t.key]) for t in cell.trials if t.key in sealed and t.seed in cell.values}
    return {seed: value for seed, value in own.items() if math.isfinite(value)}


def _sentences(found: Opened, chosen: OpenedRow, claimed: OpenedRow) -> list[str]:
    metric = found.metric
    said = [
        "These test metrics were sealed during the sweep and are opened here; the opening is recorded with the sweep.",
        f"Validation selects {chosen.label}, with {metric.label} {metric.number(chosen.interval.mean)}.",
    ]
    if claimed.label == chosen.label or found.optimism is None:
        said.append("Selecting on test would have chosen the same cell.")
    else:
        gap = found.optimism
        interval = (
            f" (95% interval {metric.number(gap.low)} to {metric.number(gap.high)}, paired t over {gap.n} seeds)"
            if math.isfinite(gap.low)
            else ""
        )
        said.append(
            f"Selecting on test would have chosen {claimed.label} and claimed {metric.number(claimed.interval.mean)}: "
            f"{metric.amount(abs(gap.mean))} too optimistic{interval}."
        )
    if math.isfinite(found.tau):
        said.append(
            f"Validation and test order the cells with Kendall's tau {found.tau:.2f} ({len(found.rows)} cells)."
        )
    return said
