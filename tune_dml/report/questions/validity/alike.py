"""Which configurations gave exactly the same results, because the setting in which they differ is unused?"""

from __future__ import annotations

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.alike import alike as groups_of
from tune_dml.report.questions import question
from tune_dml.report.section import Notes, Section, Text
from tune_dml.text import joined


@question(order=341, unanswered={"alike": ()})
def alike(analysis: Analysis) -> Section | None:
    """Group identical configurations; None if all differ, or for imported results, which have too few numbers to tell."""
    if analysis.results.imported is not None:
        return None
    groups = [[cell.label for cell in group] for group in groups_of(analysis.cells)]
    if not groups:
        return None
    same = "gave exactly the same results under every seed"
    sentence, listed = f"{len(groups)} groups of configurations {same}.", groups
    if len(groups) == 1:
        sentence, listed = f"{joined(groups[0])} {same}.", []
    advice = (
        "The setting in which they differ was not used: the method does not read it, other settings switch it off, or no "
        "batch reached it. If the two are equal by definition, this confirms it."
    )
    notes = [Notes(tuple(map(joined, listed)))] if listed else []
    unused = any(knob.unused for knob in analysis.knobs)  # the knob's own headline then says it
    return Section(
        "alike",
        "Which configurations are identical?",
        "Identical",
        (Text(sentence), *notes, Text(advice)),
        headline="" if unused else sentence,
        data={"alike": groups},
    )
