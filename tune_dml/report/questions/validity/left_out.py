"""What is unknown about imported results?"""

from __future__ import annotations

from tune_dml.report.analysis import Analysis
from tune_dml.report.questions import question
from tune_dml.report.section import Notes, Section, Text


@question(order=390)
def left_out(analysis: Analysis) -> Section | None:
    """List what imported results leave unknown; None for a sweep of this program."""
    results = analysis.results
    if results.imported is None:
        return None
    runs = [trial for trial in results.trials if trial.status == "finished"]
    logged = any(results.history(trial.key) for trial in runs)
    missing = (
        "Whether all runs used the same data.",
        "Whether the metric is from validation or test. A configuration selected on test looks better than it is.",
        "How configurations were chosen, and how often results were looked at. Intervals assume one look.",
        "Differences beyond the recorded settings: code, versions, hardware.",
        "Images, histograms of norms and retrieval sheets, which only trials of this program record.",
        "A next command, since only sweeps of this program can be continued.",
        *(() if logged else ("The course of training: no evaluations over training were found.",)),
        *(() if any(trial.seconds for trial in runs) else ("The cost: no times were found.",)),
    )
    opening = "These results were imported. The following is unknown or left out:"
    decided = (Text("Assumptions made in reading them:"), Notes(results.notes)) if results.notes else ()
    return Section("left-out", "What is unknown", "What is unknown", (Text(opening), Notes(missing), *decided),
                   data={"left_out": missing})  # fmt: skip
