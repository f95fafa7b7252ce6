"""Do differences to the baseline generalize beyond these classes and seeds? They are compared by query as well."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tune_dml.record.results import Results
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.report.cells import delta_cells
from tune_dml.report.naming import metric_name
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Section, Table, Text
from tune_dml.stats.verdicts.classes import Generalization, judge_generalization

if TYPE_CHECKING:
    from trainables.evidence.stored import Hits

_HALVES = {"val": "validation", "test": "test"}
_MIN_P = 0.001  # smallest printed p-value; smaller p-values are printed as `< 0.001`


@dataclass(frozen=True)
class _HalfDifference:
    """Difference of a cell to the baseline on one half of the classes."""

    half: str
    label: str
    reach: Generalization


@question(order=347, reads_traces=True, unanswered={"reach": None})
def other_classes(analysis: Analysis) -> Section | None:
    """Compare R@1 of the same queries with the baseline; None without a baseline or recorded hits."""
    baseline = analysis.baseline
    other_cells = [cell for cell in analysis.cells if cell is not baseline and cell.values]
    if baseline is None or not other_cells:
        return None
    alpha = analysis.looks.level / len(other_cells)  # shared, because the best cell is selected among them
    rows = [
        _HalfDifference(half, cell.label, difference)
        for half in _HALVES
        if (baseline_hits := _hits_by_seed(analysis.results, baseline, half))
        for cell in other_cells
        if (difference := _generalization(analysis.results, cell, baseline_hits, half, alpha))
    ]
    if not rows:
        return None
    body: list[Block] = [Text(_sentence(analysis, rows, baseline.label))]
    body += [_table(half, rows, baseline.label, alpha) for half in _HALVES]
    title = "Does it generalize to other classes?"
    return Section("reach", title, "Other classes", body, data={"reach": {"alpha": alpha, "rows": rows}})


def _hits_by_seed(results: Results, baseline: CellAnalysis, half: str) -> dict[int, Hits]:
    trials = [trial for trial in baseline.trials if trial.status == "finished" and trial.seed in baseline.values]
    return {trial.seed: hits for trial in trials if (hits := results.hits(trial.key, half)) is not None}


def _generalization(
    results: Results, cell: CellAnalysis, baseline_hits: Mapping[int, Hits], half: str, alpha: float
) -> Generalization | None:
    """Compare a cell with the baseline over the seeds with equal queries.

    Return None without such seeds, or with fewer than two classes.
    """
    differences: list[dict[int, tuple[int, int]]] = []
    first = second = 0
    for trial in cell.trials:
        own = results.hits(trial.key, half) if trial.status == "finished" else None
        reference = baseline_hits.get(trial.seed)
        if own is None or reference is None or not np.array_equal(own.pictures, reference.pictures):
            continue
        by_class = zip((own.by_class - reference.by_class).tolist(), own.counts.tolist(), strict=True)
        differences.append(dict(zip(own.classes.tolist(), by_class, strict=True)))
        first += int((own.hit & ~reference.hit).sum())
        second += int((reference.hit & ~own.hit).sum())
    classes = sorted({number for seed in differences for number in seed})
    if len(classes) < 2:
        return None
    pairs = np.array([[seed.get(number, (0, 0)) for seed in differences] for number in classes], dtype=np.float64)
    return judge_generalization(pairs[..., 0], pairs[..., 1], (first, second), alpha=alpha)


def _sentence(analysis: Analysis, rows: list[_HalfDifference], baseline: str) -> str:
    by_label = {cell.label: cell for cell in analysis.cells}
    best = max(rows, key=lambda row: (row.half == "test", analysis.sign * by_label[row.label].mean))
    metric, reached = metric_name(f"{best.half}/recall_at_1"), best.reach
    half, ends = _HALVES[best.half], f"{metric.signed(reached.low)} to {metric.signed(reached.high)}"
    difference = f"{best.label} against {baseline}: {metric.signed(reached.estimate)}"
    if reached.seeds < 2:
        return (
            f"{difference}, interval over {reached.classes} {half} classes {ends}. "
            "One seed: interval and p-values leave out the variation over seeds."
        )
    is_significant = reached.low > 0 or reached.high < 0
    text = (
        f"{difference}, interval over {reached.seeds} seeds and the {reached.classes} {half} classes that they drew {ends}: "
        f"it {'generalizes' if is_significant else 'is not shown to generalize'} beyond these classes and seeds."
    )
    if not is_significant and reached.per_query < 0.05:
        p = _p_text(reached.per_query) if reached.per_query < _MIN_P else f"= {_p_text(reached.per_query)}"
        text += (
            f" Query by query the difference looks significant (McNemar's p {p}), but that treats "
            "queries of one class as independent and ignores seeds."
        )
    return text


def _table(half: str, rows: list[_HalfDifference], baseline: str, alpha: float) -> Table:
    metric = metric_name(f"{half}/recall_at_1")
    entries = [
        (row.label, reach.classes, reach.seeds, *delta_cells(metric, reach.estimate, reach.low, reach.high),
         *map(_p_text, (reach.per_query, reach.these_networks, reach.trained_anew)))
        for row in rows
        if row.half == half and (reach := row.reach)
    ]  # fmt: skip
    caption = (
        f"{metric.axis} minus that of {baseline}, with {100 * (1 - alpha):.4g}% intervals over classes and seeds (two-way "
        "clustered; the cells share the error). p-values, each for one cell alone: per query (McNemar: queries independent, "
        "networks given), over classes (the same networks), over classes and seeds (newly trained networks)."
    )
    columns = ("cell", "classes", "seeds", "difference", "low", "high", "p per query", "p over classes", "p over both")
    return Table(f"reach-{half}", caption, columns, entries, folded=f"Every cell over {_HALVES[half]} classes")


def _p_text(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"< {_MIN_P:g}" if value < _MIN_P else f"{value:.3f}"
