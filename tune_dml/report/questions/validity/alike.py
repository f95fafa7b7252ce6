"""Which configurations gave exactly the same results, because the setting in which they differ is unused?"""

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import identical_cells
from tune_dml.report.questions import question
from tune_dml.report.section import Notes, Section, Text
from tune_dml.text import joined

_MAX_NAMED = 4  # maximum number of configurations that a sentence names; for more it gives their number


@question(order=341, unanswered={"alike": ()})
def identical_configurations(analysis: Analysis) -> Section | None:
    """Group the configurations with identical results; None if all differ.

    Return None for imported results as well, which have too few numbers to tell.
    """
    if analysis.results.imported is not None:
        return None
    groups = [[cell.label for cell in group] for group in identical_cells(analysis.cells)]
    if not groups:
        return None
    same = "gave exactly the same results under every seed"
    sentence = f"{len(groups)} groups of configurations {same}."
    notes = [Notes(tuple(map(joined, groups)))]
    if len(groups) == 1 and len(groups[0]) <= _MAX_NAMED:
        sentence, notes = f"{joined(groups[0])} {same}.", []
    elif len(groups) == 1:
        sentence = f"{len(groups[0])} of {len(analysis.cells)} configurations {same}."
    advice = (
        "The setting in which they differ had no effect: the method does not read it, other settings switch it off, or no "
        "batch reached it. If the configurations are equal by definition, this confirms it."
    )
    unused = any(knob.unused for knob in analysis.knobs)  # the knob's own headline then states it
    return Section(
        "alike",
        "Which configurations are identical?",
        "Identical",
        (Text(sentence), *notes, Text(advice)),
        headline="" if unused else sentence,
        data={"alike": groups},
    )
