"""Are some configurations one and the same? Those that trained to the same numbers differ by something that was not used."""

from __future__ import annotations

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.alike import alike as groups_of
from tune_dml.report.questions import question
from tune_dml.report.section import Notes, Section, Text
from tune_dml.text import joined


@question(order=147, unanswered={"alike": ()})
def alike(analysis: Analysis) -> Section | None:
    """None where all differ; what another program trained has too few numbers to tell."""
    if analysis.results.imported is not None:
        return None
    groups = [[cell.label for cell in group] for group in groups_of(analysis.cells)]
    if not groups:
        return None
    same = "trained to the same numbers under every seed, to the last digit"
    sentence, listed = f"{len(groups)} groups of configurations {same} within the group.", groups
    if len(groups) == 1:
        sentence, listed = f"{joined(groups[0])} {same}.", []
    advice = (
        "What tells them apart was not used: the method does not read it, other settings switch it off, or no batch reached it. "
        "Where an identity says that they are one and the same, this is its proof."
    )
    notes = [Notes(tuple(map(joined, listed)))] if listed else []
    unused = any(knob.unused for knob in analysis.knobs)  # then the knob's own sentence says it
    return Section(
        "alike",
        "Which configurations are one and the same?",
        "The same",
        (Text(sentence), *notes, Text(advice)),
        headline="" if unused else sentence,
        data={"alike": groups},
    )
