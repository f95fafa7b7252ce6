"""What a report says, in few words and numbers: what MLflow shows of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tune_dml.record.judgement import CellJudgement, Judgement
from tune_dml.report.measured import Measured
from tune_dml.report.measured.cell import MeasuredCell, best_cells
from tune_dml.report.section import Section, figures_of
from tune_dml.report.steps import Step


def judgement_of(
    measured: Measured, sections: Sequence[Section], sentences: Sequence[str], step: Step | None
) -> Judgement:
    """The answer and its numbers: each cell's comparison bar, and its difference to the baseline where there is one."""
    following = [f"Next: {step.command}"] if step else []
    labels = {cell.cell.digest: cell for cell in measured.cells}
    ranked = [labels[cell.digest] for cell in best_cells(measured.results) if not cell.baseline]
    best = ranked[0] if ranked else None
    figures = {"baseline_mean": measured.baseline.mean if measured.baseline else math.nan}
    if best is not None:
        figures |= {
            "best_mean": best.mean,
            **{f"best_{name}": value for name, value in _figures(measured, best).items()},
        }
    drawn = figures_of(sections)
    return Judgement(
        (" ".join(sentences), *following),
        figures,
        {cell.label: CellJudgement(_figures(measured, cell), _sentence(measured, cell)) for cell in measured.cells},
        drawn[0].name if drawn else "",
        best.label if best else "",
    )


def _figures(measured: Measured, cell: MeasuredCell) -> dict[str, float]:
    low, high = measured.bar(cell)
    figures = {"low": low, "high": high}
    if against := measured.against(cell):
        figures |= {"difference": against.difference, "difference_low": against.low, "difference_high": against.high}
    return figures


def _sentence(measured: Measured, cell: MeasuredCell) -> str:
    metric, against = measured.metric, measured.against(cell)
    if not cell.values:
        return f"{metric.label}: no trial has a number."
    low, high = measured.bar(cell)
    ends = f", comparison bar {metric.number(low)} to {metric.number(high)}" if math.isfinite(low) else ""
    seeds = f"{len(cell.values)} seed{'s' if len(cell.values) > 1 else ''}"
    text = f"{metric.label} {metric.amount(cell.mean)} over {seeds}{ends}."
    if against is not None:
        text += f" Against the baseline {metric.signed(against.difference)}: {against.verdict}."
    return text if not cell.lost else f"{text} Lost: {cell.lost}."
