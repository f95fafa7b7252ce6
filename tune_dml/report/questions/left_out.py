"""What cannot be said of results that no sweep of ours made?"""

from __future__ import annotations

from tune_dml.report.analysis import Analysis
from tune_dml.report.questions import question
from tune_dml.report.section import Notes, Section, Text


@question(order=390)
def left_out(analysis: Analysis) -> Section | None:
    """None for a sweep of ours, of which the record says all of it."""
    results = analysis.results
    if results.imported is None:
        return None
    runs = [trial for trial in results.trials if trial.status == "finished"]
    logged = any(results.history(trial.key) for trial in runs)
    missing = (
        "Whether all trainings saw the same data: the source does not say.",
        "Whether the metric is from validation or test: a best configuration that test chose looks better than it is.",
        "How the configurations were chosen, and how often somebody looked: intervals assume one look.",
        "What differs beside the settings that were written down: code, versions, hardware.",
        "Pictures, histograms of norms and retrieval sheets: only our own trials leave them.",
        "A next command: only a sweep of ours can be continued.",
        *(() if logged else ("How training went: no evaluations over training were found.",)),
        *(() if any(trial.seconds for trial in runs) else ("What it cost: no times were found.",)),
    )
    opening = "These results were read from elsewhere, so this page leaves out, and takes on trust:"
    decided = (Text("What was decided in reading them:"), Notes(results.notes)) if results.notes else ()
    return Section("left-out", "What cannot be said", "What cannot be said", (Text(opening), Notes(missing), *decided),
                   data={"left_out": missing})  # fmt: skip
