"""Did every configuration learn? One whose loss is 0 from the first step on has its initial network to show, and no result."""

from __future__ import annotations

from tune_dml.record.results import Results, TrialResult
from tune_dml.report.analysis import Analysis
from tune_dml.report.questions import question
from tune_dml.report.section import Notes, Section, Text


@question(order=148, unanswered={"untrained": ()})
def untrained(analysis: Analysis) -> Section | None:
    """None where every configuration had a loss at some step that was logged."""
    labels = [
        cell.label for cell in analysis.cells if cell.trials and all(_idle(analysis.results, t) for t in cell.trials)
    ]
    if not labels:
        return None
    count = labels[0] if len(labels) == 1 else f"{len(labels)} configurations"
    sentence = f"{count} learnt nothing: the loss was 0 at every logged step, and the network is as it began."
    advice = (
        "No pair that the loss looks at had one. Differences to such a configuration say what training is worth, not which "
        "method is better. Another margin, threshold or initial network gives it something to learn from."
    )
    return Section(
        "untrained",
        "Which configurations learnt nothing?",
        "Untrained",
        (Text(sentence), Notes(tuple(labels)), Text(advice)),
        findings=tuple(f"{label}: the loss was 0 at every logged step: nothing was learnt" for label in labels),
        headline=sentence,
        data={"untrained": labels},
    )


def _idle(results: Results, trial: TrialResult) -> bool:
    if trial.status != "finished" or trial.metrics.get("train/loss") != 0:
        return False
    return all(row.get("train/loss", 0.0) == 0 for row in results.history(trial.key))
