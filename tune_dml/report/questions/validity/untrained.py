"""Did every configuration learn? If the loss is always 0, there is no gradient."""

from tune_dml.record.results import Results, TrialResult
from tune_dml.report.analysis import Analysis
from tune_dml.report.questions import question
from tune_dml.report.section import Notes, Section, Text


@question(order=148, unanswered={"untrained": ()})
def untrained(analysis: Analysis) -> Section | None:
    """Name the configurations whose loss was 0 at every logged step; None if there are none."""
    results = analysis.results
    labels = [cell.label for cell in analysis.cells if all(_is_untrained(results, trial) for trial in cell.trials)]
    if not labels:
        return None
    subject = labels[0] if len(labels) == 1 else f"{len(labels)} configurations"
    sentence = f"{subject} learned nothing: the loss was 0 at every logged step, so there was no gradient."
    advice = (
        "No pair or triplet gave a loss. Differences to such a configuration show the value of training, not which method is "
        "better. Try another margin, threshold or initial network."
    )
    return Section(
        "untrained",
        "Which configurations learned nothing?",
        "Untrained",
        (Text(sentence), Notes(tuple(labels)), Text(advice)),
        findings=tuple(f"{label}: the loss was 0 at every logged step: nothing was learned" for label in labels),
        headline=sentence,
        data={"untrained": labels},
    )


def _is_untrained(results: Results, trial: TrialResult) -> bool:
    if trial.status != "finished" or trial.metrics.get("train/loss") != 0:
        return False
    losses = [row["train/loss"] for row in results.history(trial.key) if "train/loss" in row]
    return bool(losses) and not any(losses)
