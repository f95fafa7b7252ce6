"""What did it cost?"""

from __future__ import annotations

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.report.questions import question
from tune_dml.report.section import Section, Table, TableCell, text_cell, value_cell
from tune_dml.text import duration


@question(order=610)
def cost(analysis: Analysis) -> Section:
    """List the training time of each cell."""
    rows = tuple(_row(cell) for cell in analysis.cells)
    columns = ("cell", "trials", "mean of a trial", "in all")
    table = Table("cost", "Training time over all attempts.", columns, rows, for_paper=False)
    return Section("cost", "What did it cost?", "Cost", (table,))


def _row(cell: CellAnalysis) -> tuple[TableCell, ...]:
    n, total = len(cell.seconds), sum(cell.seconds)
    mean = TableCell(duration(total / n), total / n) if n else TableCell("-")
    return text_cell(cell.label), value_cell(n), mean, TableCell(duration(total), total)
