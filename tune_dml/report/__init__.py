"""The sensitivity report: every question has a file that answers it with one section (`questions`).

    write_report(results, path)      HTML, figures, CSV, LaTeX and JSON verdicts
    summary(results)                 the same verdicts for the terminal
    headline(results)                the first verdict of the answer
    judged(results)                  the same for MLflow; None before the first look

Loads neither torch nor Ray; the drawing library only when something is drawn.
"""

from tune_dml.report.export import ReportFiles, write_report
from tune_dml.report.summary import SummaryRow, SweepSummary, headline, judged, seed_table, summary

__all__ = ["ReportFiles", "SummaryRow", "SweepSummary", "headline", "judged", "seed_table", "summary", "write_report"]
