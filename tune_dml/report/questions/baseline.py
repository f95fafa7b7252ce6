"""Is the method better than its baseline, at each value of the knob?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tune_dml.report import figure as drawing
from tune_dml.report.measured import AgainstBaseline, Measured
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Card, Figure, Section, Table, Text, plain, signed, words
from tune_dml.stats.simultaneous import ALGORITHM

_WORDS = ("better", "worse", "undecided")


@question(order=300, unanswered={"baseline": None})
def baseline(measured: Measured) -> Section | None:
    """Every cell against the baseline; None without one, or when it has no numbers."""
    rows = measured.against_baseline
    if rows is None or measured.baseline is None:
        return None
    name = measured.baseline.label
    sentence, word = _sentence(measured, name, rows), _word(rows)
    body: list[Block] = [Text(sentence)]
    if rows:
        body.append(
            Figure(
                "baseline",
                lambda narrow, figure: _draw(measured, name, rows, narrow=narrow, figure_name=figure),
                sentence,
                "Paired differences to the baseline with simultaneous intervals; the margin is shaded.",
            )
        )
    level = measured.looks.level
    return Section(
        "against-baseline",
        "Is it better than the baseline?",
        "Baseline",
        (*body, _table(measured, name, rows)),
        card=Card(word, word.partition(" ")[0], f"Is it better than {name}?", sentence),
        verdicts=(sentence,),
        data={"baseline": {"baseline": name, "rows": rows, "alpha": level, "algorithm": ALGORITHM}},
    )


def _word(rows: Sequence[AgainstBaseline]) -> str:
    """The verdict in a word or two."""
    verdicts: list[str] = [row.verdict for row in rows]
    unanimous = next((word for word in _WORDS if verdicts and verdicts.count(word) == len(verdicts)), "")
    better = verdicts.count("better")
    return unanimous or (f"better at {better} of {len(verdicts)}" if better else "mixed" if verdicts else "undecided")


def _sentence(measured: Measured, name: str, rows: Sequence[AgainstBaseline]) -> str:
    if max((row.n for row in rows), default=0) < 2:
        return f"Undecided against {name}: one seed gives no noise estimate."
    labels = {word: [row.label for row in rows if row.verdict == word] for word in _WORDS}
    parts = [f"{word} {_listed(named, len(rows))}" for word, named in labels.items() if named]
    diverged = [cell.label for cell in measured.cells if cell.diverged and not cell.values]
    parts += [f"diverged {_listed(diverged, 0)}"] if diverged else []
    level = f"{100 * (1 - measured.looks.level):.3g}%"
    return f"Against {name} ({level} simultaneous intervals): {'; '.join(parts)}."


def _listed(labels: Sequence[str], every: int) -> str:
    if len(labels) == every:
        return "at every value" if every < 3 else f"at all {every} values"
    return f"at {' and '.join(labels)}" if len(labels) < 5 else f"at {len(labels)} of {every} values"


def _table(measured: Measured, name: str, rows: Sequence[AgainstBaseline]) -> Table:
    metric = measured.metric
    entries = tuple(
        (words(row.label), plain(row.n), signed(metric, row.difference), signed(metric, row.low),
         signed(metric, row.high), words(row.verdict, mark=row.verdict))
        for row in rows
    )  # fmt: skip
    level = f"{100 * (1 - measured.looks.level):.3g}%"
    caption = f"Cell minus {name}, simultaneous {level} intervals: {ALGORITHM}."
    columns = ("cell", "seeds", "difference", "low", "high", "verdict")
    return Table("baseline", caption, columns, entries, folded="The differences in numbers")


def _draw(measured: Measured, name: str, judged: Sequence[AgainstBaseline], *, narrow: bool, figure_name: str) -> str:
    """A whisker for each cell around the line of no difference, the margin shaded."""
    rows, metric = judged[::-1], measured.metric
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
            if math.isfinite(row.difference):
                ax.plot(row.difference, height, marker, color=colour, ms=6.5, mec="white", mew=0.6)
        ax.set_yticks(range(len(rows)), [row.label for row in rows])
        ax.set_ylim(-0.6, len(rows) - 0.4)
        ax.grid(visible=False, axis="y")
        unit = f" [{metric.unit}]" if metric.unit else ""
        ax.set_xlabel(f"{metric.label} minus {name}{unit}")
        return drawing.svg(figure, figure_name)
