"""Is the method better than its baseline, at each value of the knob?"""

import math
import re
from collections.abc import Sequence

from tune_dml.report.analysis import Analysis, BaselineDifference
from tune_dml.report.cells import interval_cells, text_cell
from tune_dml.report.drawing.charts import verdict_whisker
from tune_dml.report.naming import prose_label
from tune_dml.report.questions import question
from tune_dml.report.questions.validity.caveats import if_lost_by_result
from tune_dml.report.section import Block, Card, Figure, Section, Table, Text, whisker_figure
from tune_dml.stats.intervals.simultaneous import ALGORITHM
from tune_dml.stats.intervals.tuned import ALGORITHM as TUNED
from tune_dml.text import counted, joined

_VERDICTS = ("better", "worse", "undecided")
_MAX_WHISKERS = 30  # maximum number of cells in the figure, which shows the best cells; the table has all cells


@question(order=300, unanswered={"baseline": None})
def baseline(analysis: Analysis) -> Section | None:
    """Compare every cell with the baseline; None without a baseline that has results."""
    rows = analysis.against_baseline
    if rows is None or analysis.baseline is None:
        return None
    name = _name(analysis)
    sentence, word = _sentence(analysis, name, rows), _verdict_badge(rows)
    body: list[Block] = [Text(sentence, badge=word)]
    if rows and len(analysis.knobs) != 1:  # for a single knob, Figure 1 shows the same
        body.append(_figure(analysis, name, rows, sentence))
    level, algorithm = analysis.looks.level, _algorithm(analysis)
    return Section(
        "against-baseline",
        "Is it better than the baseline?",
        "Baseline",
        (*body, _table(analysis, name, rows)),
        Card(word, word.partition(" ")[0]),
        (sentence,),
        headline=_headline(analysis, name, rows),
        data={"baseline": {"baseline": name, "rows": rows, "alpha": level, "algorithm": algorithm}},
    )


def _name(analysis: Analysis) -> str:
    """Return the baseline's name: `no SEC`, or `the best of 10 cells of no SEC` if the baseline was tuned."""
    baselines = analysis.baselines
    if len(baselines) > 1:
        return f"the best of {len(baselines)} cells of {baselines[0].cell.arm}"
    return analysis.baseline.label if analysis.baseline else ""


def _algorithm(analysis: Analysis) -> str:
    return TUNED if len(analysis.baselines) > 1 else ALGORITHM


def _verdict_badge(rows: Sequence[BaselineDifference]) -> str:
    verdicts: list[str] = [row.verdict for row in rows]
    unanimous = next((word for word in _VERDICTS if verdicts and verdicts.count(word) == len(verdicts)), "")
    better = verdicts.count("better")
    return unanimous or (f"better at {better} of {len(verdicts)}" if better else "mixed" if verdicts else "undecided")


def _sentence(analysis: Analysis, name: str, rows: Sequence[BaselineDifference]) -> str:
    what = _cell_noun(analysis)
    if not rows:
        return f"Nothing can be compared with {name}: no other {what} has results."
    if max(row.n for row in rows) < 2:
        why = "one seed gives no noise estimate" if len(analysis.seeds) < 2 else f"no {what} shares two seeds with it"
        return f"Undecided against {name}: {why}."
    labels = {word: [row.label for row in rows if row.verdict == word] for word in _VERDICTS}
    parts = [f"{word} {_listed(named, len(rows), what)}" for word, named in labels.items() if named]
    diverged = [cell.label for cell in analysis.cells if cell.diverged and not cell.values]
    tried = sum(not cell.cell.baseline for cell in analysis.cells)
    parts += [f"diverged {_listed(diverged, tried, what)}"] if diverged else []
    if count := len(analysis.stopped):
        parts.append(f"{counted(count, 'other')} {'was' if count == 1 else 'were'} stopped early and not compared")
    sentence = f"Against {name} ({analysis.looks.confidence} simultaneous intervals): {'; '.join(parts)}."
    return f"{sentence} {if_lost_by_result(analysis.cells)}".strip()


def _listed(labels: Sequence[str], total: int, what: str) -> str:
    if len(labels) == total > 1:
        return f"at every {what}" if total < 3 else f"at all {total} {what}s"
    return f"at {joined(labels)}" if len(labels) < 5 else f"at {len(labels)} of {total} {what}s"


def _cell_noun(analysis: Analysis) -> str:
    """Return the noun for the compared cells: `value` of one knob, `configuration` of several, else `method`."""
    if not analysis.knobs:
        return "method"
    return "value" if len(analysis.knobs) == 1 and analysis.knobs[0].cells else "configuration"


def _table(analysis: Analysis, name: str, rows: Sequence[BaselineDifference]) -> Table:
    entries = [
        (row.label, row.n, *interval_cells(analysis.metric, row.difference, row.low, row.high),
         text_cell(row.verdict, mark=row.verdict))
        for row in rows
    ]  # fmt: skip
    caption = f"Cell minus {name}, simultaneous {analysis.looks.confidence} intervals: {_algorithm(analysis)}."
    columns = ("cell", "seeds", "difference", "low", "high", "verdict")
    return Table("baseline", caption, columns, entries, folded="The differences in numbers")


def _headline(analysis: Analysis, name: str, rows: Sequence[BaselineDifference]) -> str:
    """Return a sentence on whether any cell beats the baseline; empty with one seed."""
    if max((row.n for row in rows), default=0) < 2:
        return ""
    knobs, than = analysis.knobs, re.sub("^no ", "training without ", name)
    what = f"value of {knobs[0].symbol}" if len(knobs) == 1 else _cell_noun(analysis)
    better, worse, undecided = ([row.label for row in rows if row.verdict == word] for word in _VERDICTS)
    has_lost_cells = any(not (cell.values or cell is analysis.baseline) for cell in analysis.cells)
    finished = " that finished training" if analysis.stopped or has_lost_cells else ""
    for word, labels in (("better", better), ("worse", worse)):
        if len(labels) == len(rows):
            return f"Every {what}{finished} is significantly {word} than {than}."
    if better:
        parts = [f"{_listed_in_prose(analysis, better, len(rows), name_knob=True)} significantly better than {than}"]
    else:
        none = "On the selection seeds, no" if analysis.results.confirmed else "No"
        parts = [f"{none} {what}{finished} is significantly better than {than}"]
        parts += _best_mean_below(analysis, rows)
    parts += [f"{_listed_in_prose(analysis, worse, len(rows))} significantly worse"] if worse else []
    others = "the other{} is" if len(undecided) == 1 else "the others{} are"
    parts += [f"{others.format(finished)} undecided"] if better and undecided else []
    return "; ".join(parts) + "."


def _best_mean_below(analysis: Analysis, rows: Sequence[BaselineDifference]) -> list[str]:
    best = max(rows, key=lambda row: analysis.sign * row.difference if math.isfinite(row.difference) else -math.inf)
    size = analysis.metric.rough(abs(best.difference))
    if not analysis.sign * best.difference < 0 or size == analysis.metric.rough(0.0):
        return []
    return [f"even the best mean ({prose_label(best.label)}) is {size} {'lower' if best.difference < 0 else 'higher'}"]


def _listed_in_prose(analysis: Analysis, labels: Sequence[str], total: int, *, name_knob: bool = False) -> str:
    """Return subject and verb: `0.01 and 0.1 are` for values of the only knob, `5 of 12 values are` for many."""
    verb = "is" if len(labels) == 1 else "are"
    if len(labels) > 4:
        return f"{len(labels)} of {total} {_cell_noun(analysis)}s {verb}"
    if len(analysis.knobs) != 1 or not set(labels) <= set(analysis.knobs[0].labels):
        return f"{joined(list(map(prose_label, labels)))} {verb}"
    knob = analysis.knobs[0]
    values = joined(list(map(knob.text_of, labels)))
    return f"{knob.symbol} = {values} {verb}" if name_knob else f"{values} {verb}"


def _figure(analysis: Analysis, name: str, rows: Sequence[BaselineDifference], sentence: str) -> Figure:
    metric, sign = analysis.metric, analysis.sign
    ranked = sorted(rows, key=lambda row: -sign * row.difference if math.isfinite(row.difference) else math.inf)
    shown = [
        verdict_whisker(metric, row.label, (row.difference, row.low, row.high), row.verdict)
        for row in ranked[:_MAX_WHISKERS]
    ]
    caption = "Paired differences to the baseline with simultaneous intervals. Shaded: differences too small to matter."
    caption += "" if len(ranked) <= _MAX_WHISKERS else f" The best {_MAX_WHISKERS} of {len(ranked)}."
    title = f"{metric.label} minus {name}{metric.unit_after}"
    return whisker_figure("baseline", shown, title, sentence, caption, band=analysis.margin)
