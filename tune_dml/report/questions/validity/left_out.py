"""What is unknown about imported results, and about trials of the user's own program?"""

from collections.abc import Iterator

from tune_dml.report.analysis import Analysis
from tune_dml.report.naming import metric_name
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Notes, Section, Text

_OF_PROGRAMS = (
    "Which data the program reads, and whether all trials read the same data.",
    "Whether the metric is of validation. A configuration selected on test looks better than it is.",
    "What the seed changes: initial weights, batch order, split. If the program ignores it, trials are paired by chance.",
    "How well an untrained model, or chance, would do, and how many pictures or classes the metric is of.",
    "Settings that are not parameters of the sweep. A change of the script between trials is noted.",
    "Images, histograms of norms and retrieval sheets.",
)

_OF_IMPORTS = (
    "Whether all runs used the same data.",
    "Whether the metric is from validation or test. A configuration selected on test looks better than it is.",
    "How configurations were chosen, and how often results were looked at. Intervals assume one look.",
    "Differences beyond the recorded settings: code, versions, hardware.",
    "Images, histograms of norms and retrieval sheets, which only trials of tune-dml record.",
    "A next command, since only sweeps of tune-dml can be continued.",
)


def _scale_doubt(analysis: Analysis) -> Iterator[str]:
    """Yield a sentence if a program's figure is read as a fraction because it is small, so that 0.61 means 61 %."""
    metric = analysis.metric
    if metric_name(metric.key).percent and not metric.percent:
        yield (
            f"Whether {metric.key} is a fraction: no value exceeds 1, so {metric.name} is read as one. "
            "For percentages, report 61.2, not 0.612, and give the margin in points."
        )


@question(order=390)
def left_out(analysis: Analysis) -> Section | None:
    """List what is unknown about imported results or a user's program; None for trials that tune_dml trained."""
    results = analysis.results
    if results.plan.space.program is not None:
        opening = f"Each trial ran the program `{results.plan.space.program.text}`. The following is unknown:"
        unknown = (*_scale_doubt(analysis), *_OF_PROGRAMS)
    elif results.imported is not None:
        opening = "These results were imported. The following is unknown or left out:"
        runs = [trial for trial in results.trials if trial.status == "finished"]
        unknown = _OF_IMPORTS
        if not any(results.history(trial.key) for trial in runs):
            unknown += ("The course of training: no evaluations over training were found.",)
        if not any(trial.seconds for trial in runs):
            unknown += ("The cost: no times were found.",)
    else:
        return None
    body: list[Block] = [Text(opening), Notes(unknown)]
    if results.imported is not None and results.notes:
        body += [Text("Assumptions made in reading them:"), Notes(results.notes)]
    return Section("left-out", "What is unknown", "What is unknown", body, data={"left_out": unknown})
