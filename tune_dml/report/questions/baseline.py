"""Is the method better than its baseline, at each value of the knob?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tune_dml.report import figure as drawing
from tune_dml.report.measured import Measured
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Card, Figure, Section, Table, Text, plain, signed, words
from tune_dml.stats import BaselineComparison

_WORDS = ("better", "worse", "undecided")


@question(order=300, unanswered={"baseline": None})
def baseline(measured: Measured) -> Section | None:
    """Every cell against the baseline; None without one, or when it has no numbers."""
    comparison = measured.against_baseline
    if comparison is None:
        return None
    sentence, word = _sentence(comparison), _word(comparison)
    body: list[Block] = [Text(sentence)]
    if comparison.rows:
        body.append(
            Figure(
                "baseline",
                lambda narrow, name: _draw(measured, comparison, narrow=narrow, name=name),
                sentence,
                "Paired differences to the baseline with simultaneous intervals; the margin is shaded.",
            )
        )
    return Section(
        "against-baseline",
        "Is it better than the baseline?",
        "Baseline",
        (*body, _table(measured, comparison)),
        card=Card(word, word.partition(" ")[0], f"Is it better than {comparison.baseline}?", sentence),
        verdicts=(sentence,),
        data={"baseline": comparison},
    )


def _word(comparison: BaselineComparison) -> str:
    """The verdict in a word or two."""
    verdicts: list[str] = [row.verdict for row in comparison.rows]
    unanimous = next((word for word in _WORDS if verdicts.count(word) == len(verdicts)), "")
    better = verdicts.count("better")
    return unanimous or (f"better at {better} of {len(verdicts)}" if better else "mixed")


def _sentence(comparison: BaselineComparison) -> str:
    if comparison.df < 1:
        return f"Undecided against {comparison.baseline}: one seed gives no noise estimate."
    labels = {word: [row.label for row in comparison.rows if row.verdict == word] for word in _WORDS}
    parts = [f"{word} {_listed(named, len(comparison.rows))}" for word, named in labels.items() if named]
    level = f"{100 * comparison.confidence:.3g}%"
    return f"Against {comparison.baseline} ({level} simultaneous intervals, Dunnett): {'; '.join(parts)}."


def _listed(labels: Sequence[str], every: int) -> str:
    if len(labels) == every:
        return "at every value" if every < 3 else f"at all {every} values"
    return f"at {' and '.join(labels)}" if len(labels) < 5 else f"at {len(labels)} of {every} values"


def _table(measured: Measured, comparison: BaselineComparison) -> Table:
    metric = measured.metric
    rows = tuple(
        (words(row.label), plain(row.n), signed(metric, row.difference), signed(metric, row.low),
         signed(metric, row.high), words(row.verdict, mark=row.verdict))
        for row in comparison.rows
    )  # fmt: skip
    level = f"{100 * comparison.confidence:.3g}%"
    caption = f"Cell minus {comparison.baseline}, simultaneous {level} intervals. {comparison.algorithm}."
    columns = ("cell", "seeds", "difference", "low", "high", "verdict")
    return Table("baseline", caption, columns, rows, folded="The differences in numbers")


def _draw(measured: Measured, comparison: BaselineComparison, *, narrow: bool, name: str) -> str:
    """A whisker for each cell around the line of no difference, the margin shaded."""
    rows, metric = comparison.rows[::-1], measured.metric
    with drawing.canvas(narrow=narrow, height=1.1 + 0.28 * len(rows)) as figure:
        (ax,) = drawing.panels(figure, 1, narrow=narrow)
        ax.axvspan(-measured.margin, measured.margin, color=drawing.GREY, alpha=0.14, lw=0)
        ax.axvline(0, color=drawing.GREY, lw=1, ls="--")
        marks = {
            "better": ("o", drawing.BLUE),
            "worse": ("X", drawing.VERMILLION),
            "undecided": ("D", drawing.GREY),
        }
        for height, row in enumerate(rows):
            marker, colour = marks[row.verdict]
            if math.isfinite(row.low):
                ax.plot([row.low, row.high], [height, height], color=colour, lw=1.6, solid_capstyle="butt")
            ax.plot(row.difference, height, marker, color=colour, ms=6.5, mec="white", mew=0.6)
        ax.set_yticks(range(len(rows)), [row.label for row in rows])
        ax.set_ylim(-0.6, len(rows) - 0.4)
        ax.grid(visible=False, axis="y")
        unit = f" [{metric.unit}]" if metric.unit else ""
        ax.set_xlabel(f"{metric.label} minus {comparison.baseline}{unit}")
        return drawing.svg(figure, name)
