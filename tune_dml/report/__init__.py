"""The sensitivity report: every question has a file that answers it with one section (`questions`).

    write_report(results, path)      write HTML, figures, CSV, LaTeX and JSON verdicts
    summary(results)                 return the same verdicts for the terminal
    headline(results)                return the first verdict of the answer
    judged(results)                  return the verdicts that MLflow shows; None before the first look

Importing this package loads neither torch nor Ray. matplotlib is loaded when the first PDF or PNG is drawn.
"""

from tune_dml.report.export import ReportFiles, write_report
from tune_dml.report.summary import SummaryRow, SweepSummary, headline, judged, summary

__all__ = ["ReportFiles", "SummaryRow", "SweepSummary", "headline", "judged", "summary", "write_report"]
