"""Is the method better than its baseline, at each value of the knob?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tune_dml.report.drawing.charts import Whisker, whiskers
from tune_dml.report.measured import AgainstBaseline, Measured
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Card, Figure, Section, Table, Text, ends, plain, signed, words
from tune_dml.stats.simultaneous import ALGORITHM
from tune_dml.stats.tuned import ALGORITHM as TUNED
from tune_dml.text import joined, value_text

_WORDS = ("better", "worse", "undecided")
_MOST_WHISKERS = 30
"""Of more cells the figure shows the best; the table has all."""


@question(order=300, unanswered={"baseline": None})
def baseline(measured: Measured) -> Section | None:
    """Every cell against the baseline; None without one, or when it has no numbers."""
    rows = measured.against_baseline
    if rows is None or measured.baseline is None:
        return None
    name = _name(measured)
    sentence, word = _sentence(measured, name, rows), _word(rows)
    body: list[Block] = [Text(sentence, badge=word)]
    if rows and len(measured.knobs) != 1:  # of one knob Figure 1 shows the same
        body.append(_figure(measured, name, rows, sentence))
    level, algorithm = measured.looks.level, _algorithm(measured)
    return Section(
        "against-baseline",
        "Is it better than the baseline?",
        "Baseline",
        (*body, _table(measured, name, rows)),
        card=Card(word, word.partition(" ")[0], f"Is it better than {name}?", sentence),
        verdicts=(sentence,),
        plain=_plain(measured, name, rows),
        data={"baseline": {"baseline": name, "rows": rows, "alpha": level, "algorithm": algorithm}},
    )


def _name(measured: Measured) -> str:
    """`no SEC`, or `the best of 10 cells of no SEC` where something was tuned in it too."""
    baselines = measured.baselines
    if len(baselines) > 1:
        return f"the best of {len(baselines)} cells of {baselines[0].cell.arm}"
    return measured.baseline.label if measured.baseline else ""


def _algorithm(measured: Measured) -> str:
    return TUNED if len(measured.baselines) > 1 else ALGORITHM


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
    what = _compared(measured)
    parts = [f"{word} {_listed(named, len(rows), what)}" for word, named in labels.items() if named]
    diverged = [cell.label for cell in measured.cells if cell.diverged and not cell.values]
    parts += [f"diverged {_listed(diverged, 0, what)}"] if diverged else []
    parts += [f"{len(measured.stopped)} others were stopped early and are not compared"] if measured.stopped else []
    level = f"{100 * (1 - measured.looks.level):.3g}%"
    return f"Against {name} ({level} simultaneous intervals): {'; '.join(parts)}."


def _listed(labels: Sequence[str], every: int, what: str) -> str:
    if len(labels) == every:
        return f"at every {what}" if every < 3 else f"at all {every} {what}s"
    return f"at {joined(labels)}" if len(labels) < 5 else f"at {len(labels)} of {every} {what}s"


def _compared(measured: Measured) -> str:
    """What stands against the baseline: values of the only knob, configurations of several, methods without any."""
    return ("method", "value")[len(measured.knobs)] if len(measured.knobs) < 2 else "configuration"


def _table(measured: Measured, name: str, rows: Sequence[AgainstBaseline]) -> Table:
    metric = measured.metric
    entries = tuple(
        (words(row.label), plain(row.n), signed(metric, row.difference),
         *ends(metric, row.low, row.high), words(row.verdict, mark=row.verdict))
        for row in rows
    )  # fmt: skip
    level = f"{100 * (1 - measured.looks.level):.3g}%"
    caption = f"Cell minus {name}, simultaneous {level} intervals: {_algorithm(measured)}."
    columns = ("cell", "seeds", "difference", "low", "high", "verdict")
    return Table("baseline", caption, columns, entries, folded="The differences in numbers")


def _plain(measured: Measured, name: str, rows: Sequence[AgainstBaseline]) -> str:
    """Whether anything beats the baseline, as one would say it."""
    knobs = measured.knobs
    what = knobs[0].symbol if len(knobs) == 1 else _compared(measured)
    if max((row.n for row in rows), default=0) < 2:
        return ""
    labels = {word: [row.label for row in rows if row.verdict == word] for word in _WORDS}
    better, worse, open_ = labels["better"], labels["worse"], labels["undecided"]
    without = any(not (cell.values or cell is measured.baseline) for cell in measured.cells)
    finished = "that was let finish " if measured.stopped else "that trained " if without else ""
    if better:
        if len(better) == len(rows):
            return f"Every {what} {finished}beats {name}."
        named = (
            joined(_short(measured, better))
            if len(better) < 5
            else f"{len(better)} of {len(rows)} {_compared(measured)}s"
        )
        others = "the others that trained" if without and not measured.stopped else "the others"
        rest = f"; {others} are open" if open_ and not worse else ""
        return f"{named} {'beats' if len(better) == 1 else 'beat'} {name}{rest}."
    none = "On the seeds that chose it no" if measured.results.confirmed else "No"
    if not open_:
        return f"{none} {what} {finished}beats {name}: all are worse."
    return f"{none} {what} {finished}certainly beats {name}" + (
        f"; {joined(_short(measured, worse))} certainly not." if 0 < len(worse) < 4 else "."
    )


def _short(measured: Measured, labels: Sequence[str]) -> list[str]:
    """`rho 0.01`, `0.1`: of one knob its name stands once."""
    if len(measured.knobs) != 1 or not set(labels) <= set(measured.knobs[0].labels):
        return list(labels)
    values = [value_text(measured.knobs[0].level(label)) for label in labels]
    return [f"{measured.knobs[0].symbol} {values[0]}", *values[1:]]


def _figure(measured: Measured, name: str, rows: Sequence[AgainstBaseline], sentence: str) -> Figure:
    """The cells by how far they are from the baseline, the best first."""
    metric = measured.metric
    marks = {"better": ("circle", "good"), "worse": ("cross", "bad"), "undecided": ("diamond", "base")}
    ranked = sorted(
        rows, key=lambda row: -measured.sign * row.difference if math.isfinite(row.difference) else math.inf
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
        lambda narrow: whiskers(shown, f"{metric.label} minus {name}{unit}", narrow=narrow, band=measured.margin),
        sentence,
        f"Paired differences to the baseline with simultaneous intervals; the margin is shaded.{left_out}",
    )
