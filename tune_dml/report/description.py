"""Summary of a report for MLflow, in sentences and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tune_dml.record.judging.judgement import CellJudgement, Judgement
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis, best_cells
from tune_dml.report.section import Section, figures_of
from tune_dml.report.steps import Step


def judgement_of(
    analysis: Analysis, sections: Sequence[Section], sentences: Sequence[str], step: Step | None
) -> Judgement:
    """Return the answer, and each cell's comparison bar and difference to the baseline."""
    following = [f"Next: {step.command}"] if step else []
    labels = {cell.cell.digest: cell for cell in analysis.cells}
    ranked = [labels[cell.digest] for cell in best_cells(analysis.results) if not cell.baseline]
    best = ranked[0] if ranked else None
    figures = {"baseline_mean": analysis.baseline.mean if analysis.baseline else math.nan}
    if best is not None:
        figures |= {
            "best_mean": best.mean,
            **{f"best_{name}": value for name, value in _figures(analysis, best).items()},
        }
    drawn = figures_of(sections)
    return Judgement(
        (" ".join(sentences), *following),
        figures,
        {cell.label: CellJudgement(_figures(analysis, cell), _sentence(analysis, cell)) for cell in analysis.cells},
        drawn[0].name if drawn else "",
        best.label if best else "",
    )


def _figures(analysis: Analysis, cell: CellAnalysis) -> dict[str, float]:
    low, high = analysis.bar(cell)
    known = not analysis.metric.percent or high - low < 100  # a bar over all percentages is no information
    figures = {"low": low, "high": high} if known else {}
    if against := analysis.against(cell):
        figures |= {"difference": against.difference, "difference_low": against.low, "difference_high": against.high}
    return figures


def _sentence(analysis: Analysis, cell: CellAnalysis) -> str:
    metric, against = analysis.metric, analysis.against(cell)
    if not cell.values:
        return f"{metric.label}: no trial has a number."
    low, high = analysis.bar(cell)
    ends = f", comparison bar {metric.number(low)} to {metric.number(high)}" if math.isfinite(low) else ""
    seeds = f"{len(cell.values)} seed{'s' if len(cell.values) > 1 else ''}"
    text = f"{metric.label} {metric.amount(cell.mean)} over {seeds}{ends}."
    if against is not None:
        text += f" Against the baseline {metric.signed(against.difference)}: {against.verdict}."
    return text if not cell.lost else f"{text} Lost: {cell.lost}."
