"""Is the method better than its baseline, at each value of the knob?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tune_dml.report.analysis import Analysis, BaselineDifference
from tune_dml.report.drawing.charts import Whisker, whiskers
from tune_dml.report.questions import question
from tune_dml.report.section import (
    Block,
    Card,
    Figure,
    Section,
    Table,
    Text,
    delta_cell,
    interval_cells,
    text_cell,
    value_cell,
)
from tune_dml.stats.intervals.simultaneous import ALGORITHM
from tune_dml.stats.intervals.tuned import ALGORITHM as TUNED
from tune_dml.text import joined, value_text

_WORDS = ("better", "worse", "undecided")
_MOST_WHISKERS = 30
"""Of more cells the figure shows the best; the table has all."""


@question(order=300, unanswered={"baseline": None})
def baseline(analysis: Analysis) -> Section | None:
    """Every cell against the baseline; None without one, or when it has no numbers."""
    rows = analysis.against_baseline
    if rows is None or analysis.baseline is None:
        return None
    name = _name(analysis)
    sentence, word = _sentence(analysis, name, rows), _verdict_badge(rows)
    body: list[Block] = [Text(sentence, badge=word)]
    if rows and len(analysis.knobs) != 1:  # of one knob Figure 1 shows the same
        body.append(_figure(analysis, name, rows, sentence))
    level, algorithm = analysis.looks.level, _algorithm(analysis)
    return Section(
        "against-baseline",
        "Is it better than the baseline?",
        "Baseline",
        (*body, _table(analysis, name, rows)),
        card=Card(word, word.partition(" ")[0], f"Is it better than {name}?", sentence),
        verdicts=(sentence,),
        headline=_headline(analysis, name, rows),
        data={"baseline": {"baseline": name, "rows": rows, "alpha": level, "algorithm": algorithm}},
    )


def _name(analysis: Analysis) -> str:
    """`no SEC`, or `the best of 10 cells of no SEC` where something was tuned in it too."""
    baselines = analysis.baselines
    if len(baselines) > 1:
        return f"the best of {len(baselines)} cells of {baselines[0].cell.arm}"
    return analysis.baseline.label if analysis.baseline else ""


def _algorithm(analysis: Analysis) -> str:
    return TUNED if len(analysis.baselines) > 1 else ALGORITHM


def _verdict_badge(rows: Sequence[BaselineDifference]) -> str:
    """The verdict in a word or two."""
    verdicts: list[str] = [row.verdict for row in rows]
    unanimous = next((word for word in _WORDS if verdicts and verdicts.count(word) == len(verdicts)), "")
    better = verdicts.count("better")
    return unanimous or (f"better at {better} of {len(verdicts)}" if better else "mixed" if verdicts else "undecided")


def _sentence(analysis: Analysis, name: str, rows: Sequence[BaselineDifference]) -> str:
    if max((row.n for row in rows), default=0) < 2:
        return f"Undecided against {name}: one seed gives no noise estimate."
    labels = {word: [row.label for row in rows if row.verdict == word] for word in _WORDS}
    what = _compared(analysis)
    parts = [f"{word} {_listed(named, len(rows), what)}" for word, named in labels.items() if named]
    diverged = [cell.label for cell in analysis.cells if cell.diverged and not cell.values]
    parts += [f"diverged {_listed(diverged, 0, what)}"] if diverged else []
    parts += [f"{len(analysis.stopped)} others were stopped early and are not compared"] if analysis.stopped else []
    level = f"{100 * (1 - analysis.looks.level):.3g}%"
    return f"Against {name} ({level} simultaneous intervals): {'; '.join(parts)}."


def _listed(labels: Sequence[str], every: int, what: str) -> str:
    if len(labels) == every:
        return f"at every {what}" if every < 3 else f"at all {every} {what}s"
    return f"at {joined(labels)}" if len(labels) < 5 else f"at {len(labels)} of {every} {what}s"


def _compared(analysis: Analysis) -> str:
    """What stands against the baseline: values of the only knob, configurations of several, methods without any."""
    return ("method", "value")[len(analysis.knobs)] if len(analysis.knobs) < 2 else "configuration"


def _table(analysis: Analysis, name: str, rows: Sequence[BaselineDifference]) -> Table:
    metric = analysis.metric
    entries = tuple(
        (text_cell(row.label), value_cell(row.n), delta_cell(metric, row.difference),
         *interval_cells(metric, row.low, row.high), text_cell(row.verdict, mark=row.verdict))
        for row in rows
    )  # fmt: skip
    level = f"{100 * (1 - analysis.looks.level):.3g}%"
    caption = f"Cell minus {name}, simultaneous {level} intervals: {_algorithm(analysis)}."
    columns = ("cell", "seeds", "difference", "low", "high", "verdict")
    return Table("baseline", caption, columns, entries, folded="The differences in numbers")


def _headline(analysis: Analysis, name: str, rows: Sequence[BaselineDifference]) -> str:
    """Whether anything beats the baseline, as one would say it."""
    knobs = analysis.knobs
    what = knobs[0].symbol if len(knobs) == 1 else _compared(analysis)
    if max((row.n for row in rows), default=0) < 2:
        return ""
    labels = {word: [row.label for row in rows if row.verdict == word] for word in _WORDS}
    better, worse, open_ = labels["better"], labels["worse"], labels["undecided"]
    without = any(not (cell.values or cell is analysis.baseline) for cell in analysis.cells)
    finished = "that was let finish " if analysis.stopped else "that trained " if without else ""
    if better:
        if len(better) == len(rows):
            return f"Every {what} {finished}beats {name}."
        named = (
            joined(_short(analysis, better))
            if len(better) < 5
            else f"{len(better)} of {len(rows)} {_compared(analysis)}s"
        )
        others = "the others that trained" if without and not analysis.stopped else "the others"
        rest = f"; {others} are open" if open_ and not worse else ""
        return f"{named} {'beats' if len(better) == 1 else 'beat'} {name}{rest}."
    none = "On the seeds that chose it no" if analysis.results.confirmed else "No"
    if not open_:
        return f"{none} {what} {finished}beats {name}: all are worse."
    return f"{none} {what} {finished}certainly beats {name}" + (
        f"; {joined(_short(analysis, worse))} certainly not." if 0 < len(worse) < 4 else "."
    )


def _short(analysis: Analysis, labels: Sequence[str]) -> list[str]:
    """`rho 0.01`, `0.1`: of one knob its name stands once."""
    if len(analysis.knobs) != 1 or not set(labels) <= set(analysis.knobs[0].labels):
        return list(labels)
    values = [value_text(analysis.knobs[0].level(label)) for label in labels]
    return [f"{analysis.knobs[0].symbol} {values[0]}", *values[1:]]


def _figure(analysis: Analysis, name: str, rows: Sequence[BaselineDifference], sentence: str) -> Figure:
    """The cells by how far they are from the baseline, the best first."""
    metric = analysis.metric
    marks = {"better": ("circle", "good"), "worse": ("cross", "bad"), "undecided": ("diamond", "base")}
    ranked = sorted(
        rows, key=lambda row: -analysis.sign * row.difference if math.isfinite(row.difference) else math.inf
    )
    shown = [
        Whisker(
            row.label, row.difference, row.low, row.high, marks[row.verdict][1], marks[row.verdict][0],
            f"{row.label}: {metric.signed(row.difference)} ({metric.signed(row.low)} to {metric.signed(row.high)}), "
            f"{row.verdict}",
        )
        for row in ranked[:_MOST_WHISKERS]
    ]  # fmt: skip
    unit = f", {metric.unit}" if metric.unit else ""
    left_out = "" if len(ranked) <= _MOST_WHISKERS else f" The best {_MOST_WHISKERS} of {len(ranked)}."
    return Figure(
        "baseline",
        lambda narrow: whiskers(shown, f"{metric.label} minus {name}{unit}", narrow=narrow, band=analysis.margin),
        sentence,
        f"Paired differences to the baseline with simultaneous intervals; the margin is shaded.{left_out}",
    )
