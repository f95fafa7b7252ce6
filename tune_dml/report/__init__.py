"""The sensitivity report: every question has a file that extracts its numbers and draws its picture.

    write_report(results, path)      HTML, figures, CSV, LaTeX and JSON verdicts
    summary(results)                 the same verdicts for the terminal

Loads neither torch nor Ray; the drawing library only when something is drawn.
"""

from tune_dml.report.summary import SummaryRow, SweepSummary, seed_table, summary
from tune_dml.report.write import ReportFiles, write_report

__all__ = ["ReportFiles", "SummaryRow", "SweepSummary", "seed_table", "summary", "write_report"]
