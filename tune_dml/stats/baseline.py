"""Each value of the knob against the baseline: better, worse or undecided, all at once.

Differences are paired by seed in the block design; intervals are Dunnett's two-sided many-to-one intervals, so that they hold
simultaneously for all values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tune_dml.stats.blocks import fit_blocks
from tune_dml.stats.critical import dunnett
from tune_dml.stats.table import Excluded, SeedTable

DUNNETT = "Dunnett's many-to-one intervals on a randomised block design (seeds are blocks)"


@dataclass(frozen=True)
class AgainstBaseline:
    """mean(cell) - mean(baseline), with its simultaneous interval (NaN without a noise estimate)."""

    label: str
    n: int
    """Seeds that both have."""
    difference: float
    low: float
    high: float
    verdict: Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class BaselineComparison:
    """All cells against one baseline."""

    baseline: str
    rows: tuple[AgainstBaseline, ...]
    confidence: float
    algorithm: str
    df: int
    excluded: tuple[Excluded, ...]


def compare_with_baseline(
    table: SeedTable,
    baseline: str,
    *,
    goal: Literal["maximize", "minimize"] = "maximize",
    confidence: float = 0.95,
) -> BaselineComparison | None:
    """Compare every other cell of the table with `baseline`; None when the baseline has no numbers."""
    fit = fit_blocks(table)
    labels = fit.table.labels
    if baseline not in labels or len(labels) < 2:
        return None
    row = labels.index(baseline)
    critical = dunnett(len(labels) - 1, fit.df, confidence) if fit.df > 0 else np.nan
    errors = fit.standard_errors()
    present = np.isfinite(fit.table.values)
    rows = []
    for cell, label in enumerate(labels):
        if cell == row:
            continue
        difference, reach = float(fit.means[cell] - fit.means[row]), float(critical * errors[cell, row])
        low, high = difference - reach, difference + reach
        rows.append(
            AgainstBaseline(
                label,
                int((present[cell] & present[row]).sum()),
                difference,
                low,
                high,
                _word(low, high, goal),
            )
        )
    return BaselineComparison(baseline, tuple(rows), confidence, DUNNETT, fit.df, fit.table.excluded)


def _word(low: float, high: float, goal: str) -> Literal["better", "worse", "undecided"]:
    if low > 0:
        return "better" if goal == "maximize" else "worse"
    if high < 0:
        return "worse" if goal == "maximize" else "better"
    return "undecided"
