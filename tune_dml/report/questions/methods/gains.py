"""What does each method gain over its own baseline? Judge the contrasts that the study declares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import seed_values
from tune_dml.report.analysis.comparisons import better_or_worse
from tune_dml.report.drawing.charts import Whisker, draw_whiskers
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Card, Figure, Section, Table, Text, delta_cell, interval_cells, text_cell
from tune_dml.stats.intervals.contrasts import estimate_gains
from tune_dml.stats.intervals.simultaneous import ALGORITHM
from tune_dml.stats.intervals.tuned import ALGORITHM as TUNED
from tune_dml.stats.verdicts.selection import choose_best_cells
from tune_dml.text import joined

Verdict = Literal["gains", "loses", "within the margin", "open"]
_MARKS = {"gains": "better", "loses": "worse", "within the margin": "insensitive", "open": "undecided"}
_BADGES = {"gains": "better", "loses": "worse", "within the margin": "no difference", "open": "undecided"}
_SHAPES = {"gains": ("circle", "good"), "loses": ("cross", "bad")}
_MAX_NAMED = 6
"""Maximum number of methods that a sentence names; for more methods it gives their number."""


@dataclass(frozen=True)
class ArmGain:
    """A gain of one arm over another, or a difference of two gains, with its simultaneous interval."""

    arm: str
    against: str
    """The other arm, or the arm whose gain is subtracted."""
    estimate: float
    low: float
    high: float
    verdict: Verdict

    @property
    def added(self) -> str:
        """The added method by the arm's name: `SEC` for `Triplet+SEC` over `Triplet`; empty for other names."""
        return self.arm.removeprefix(f"{self.against}+") if self.arm.startswith(f"{self.against}+") else ""


@dataclass(frozen=True)
class _Contrasts:
    """The declared contrasts, judged together; the error is divided among them."""

    gains: tuple[ArmGain, ...]
    differences: tuple[ArmGain, ...]
    lost: tuple[str, ...]
    """Arms without a trained configuration."""
    algorithm: str
    alpha: float

    @property
    def has_intervals(self) -> bool:
        return any(math.isfinite(gain.low) for gain in self.gains)


@question(order=149, unanswered={"gains": None})
def gains(analysis: Analysis) -> Section | None:
    """Judge the declared contrasts; None if the space declares none between arms that trained."""
    contrasts = _judge(analysis)
    if contrasts is None:
        return None
    sentences = _sentences(analysis, contrasts)
    word = _verdict_badge(contrasts)
    body: list[Block] = [_figure(analysis, contrasts, sentences), Text(" ".join(sentences))]
    return Section(
        "gains",
        "What does each method gain over its own baseline?",
        "Gains",
        (*body, _table(analysis, contrasts)),
        Card(word, _style(contrasts), "What does each method gain?", sentences[0]),
        tuple(sentences),
        headline=" ".join(_headline(analysis, contrasts)) if contrasts.has_intervals else "",
        data={
            "gains": {
                "rows": contrasts.gains,
                "differences": contrasts.differences,
                "lost": contrasts.lost,
                "margin": analysis.margin,
                "alpha": contrasts.alpha,
                "algorithm": contrasts.algorithm,
                "sentences": sentences,
            }
        },
    )


def _judge(analysis: Analysis) -> _Contrasts | None:
    space, arms = analysis.results.plan.space, {arm.name: arm for arm in analysis.arms}
    declared, _ = space.contrasts_among(arms.keys())
    trained = {name: arm for name, arm in arms.items() if arm.trained}
    gained, compared = space.contrasts_among(trained.keys())
    if not gained or (len(analysis.seeds) < 2 and any(len(arm.trained) > 1 for arm in trained.values())):
        return None
    tables = [analysis.sign * seed_values(arm.trained, analysis.seeds) for arm in trained.values()]
    best, row_of = choose_best_cells(tables, analysis.resolution), {name: row for row, name in enumerate(trained)}
    gain_of = {arm: index for index, (arm, _) in enumerate(gained)}
    pairs = [(row_of[arm], row_of[reference]) for arm, reference in gained]
    differences = [(gain_of[first], gain_of[second]) for first, second in compared]
    level = analysis.looks.level
    if best.tuned is None:
        effects = estimate_gains(best.values, pairs, differences, level, resolution=analysis.resolution)
    else:
        effects = best.tuned.gains(pairs, differences, level)
    estimate, low, high = (analysis.sign * side for side in (effects.estimate, effects.low, effects.high))
    low, high = np.minimum(low, high), np.maximum(low, high)
    numbers = zip(estimate.tolist(), low.tolist(), high.tolist(), strict=True)
    rows = [
        ArmGain(arm, reference, *ends, _verdict(analysis, *ends[1:]))
        for (arm, reference), ends in zip([*gained, *compared], numbers, strict=True)
    ]
    lost = tuple(dict.fromkeys(name for pair in declared for name in pair if name not in trained))
    algorithm = ALGORITHM if best.tuned is None else TUNED
    return _Contrasts(tuple(rows[: len(gained)]), tuple(rows[len(gained) :]), lost, algorithm, level)


def _verdict(analysis: Analysis, low: float, high: float) -> Verdict:
    if max(abs(low), abs(high)) < analysis.margin:
        return "within the margin"
    words: dict[str, Verdict] = {"better": "gains", "worse": "loses", "undecided": "open"}
    return words[better_or_worse(low, high, analysis.sign)]


def _with_verdict(rows: Sequence[ArmGain], verdict: Verdict) -> list[ArmGain]:
    return [row for row in rows if row.verdict == verdict]


def _verdict_badge(contrasts: _Contrasts) -> str:
    verdicts = {gain.verdict for gain in contrasts.gains}
    if len(verdicts) == 1:
        (only,) = verdicts
        return _BADGES[only]
    return f"{len(_with_verdict(contrasts.gains, 'gains'))} of {len(contrasts.gains)} gain"


def _style(contrasts: _Contrasts) -> str:
    gain, lose = _with_verdict(contrasts.gains, "gains"), _with_verdict(contrasts.gains, "loses")
    return "better" if gain else "worse" if lose else "undecided"


def _groups(rows: Sequence[ArmGain]) -> dict[tuple[str, str], list[ArmGain]]:
    """Group gains by (what is added, "") or, if unknown, by ("", the arm compared with)."""
    groups: dict[tuple[str, str], list[ArmGain]] = {}
    for row in rows:
        groups.setdefault((row.added, "") if row.added else ("", row.against), []).append(row)
    return groups


def _headline(analysis: Analysis, contrasts: _Contrasts) -> list[str]:
    """Return a sentence for each difference of gains, then one for each group of gains."""
    sentences = [_difference(analysis, row) for row in contrasts.differences]
    for (added, against), rows in _groups(contrasts.gains).items():
        sentences.append(_single(analysis, rows[0]) if len(rows) == 1 else _group(analysis, added, against, rows))
    return sentences


def _group(analysis: Analysis, added: str, against: str, rows: Sequence[ArmGain]) -> str:
    """Describe a group: `SEC improves 2 of 5 methods (Triplet +1.20, TML +1.00); it worsens none; 3 are undecided.`."""
    up, down = _with_verdict(rows, "gains"), _with_verdict(rows, "loses")
    within, undecided = _with_verdict(rows, "within the margin"), _with_verdict(rows, "open")
    everything = "both methods" if len(rows) == 2 else f"all {len(rows)} methods"
    share = everything if len(up) == len(rows) else f"{len(up) or 'none'} of {len(rows)} methods"
    head = f"{added} improves {share}" if added else f"{share.capitalize()} {_are(up)} better than {against}"
    parts = [head + _listed(analysis, up, added)]
    if len(up) < len(rows):
        named = f"{len(down) or 'none'}{_listed(analysis, down, added)}"
        parts.append(f"it worsens {named}" if added else f"{named} {_are(down)} worse")
    if within:
        differ = "differs" if len(within) == 1 else "differ"
        parts.append(f"{len(within)} {differ} by less than {analysis.metric.rough(analysis.margin)}")
    if undecided:
        prefix = "all " if 1 < len(undecided) == len(rows) else ""
        parts.append(f"{prefix}{len(undecided)} {_are(undecided)} undecided")
    return "; ".join(parts) + "."


def _are(rows: Sequence[ArmGain]) -> str:
    return "is" if len(rows) < 2 else "are"


def _listed(analysis: Analysis, rows: Sequence[ArmGain], added: str) -> str:
    if not rows or len(rows) > _MAX_NAMED:
        return ""
    named = ((row.against if added else row.arm, analysis.metric.signed(row.estimate)) for row in rows)
    return f" ({', '.join(f'{name} {amount}' for name, amount in named)})"


def _single(analysis: Analysis, row: ArmGain) -> str:
    amount = analysis.metric.rough(abs(row.estimate))
    return {
        "gains": f"{row.arm} is {amount} better than {row.against}.",
        "loses": f"{row.arm} is {amount} worse than {row.against}.",
        "within the margin": f"{row.arm} and {row.against} differ by less than {analysis.metric.rough(analysis.margin)}.",
        "open": f"It is undecided whether {row.arm} beats {row.against} ({analysis.metric.signed(row.estimate)}).",
    }[row.verdict]


def _difference(analysis: Analysis, row: ArmGain) -> str:
    metric, both = analysis.metric, f"that of {row.against}"
    amount = metric.rough(abs(row.estimate))
    return {
        "gains": f"The gain of {row.arm} is {amount} larger than {both}.",
        "loses": f"The gain of {row.arm} is {amount} smaller than {both}.",
        "within the margin": f"The gains of {row.arm} and {row.against} differ by less than {metric.rough(analysis.margin)}.",
        "open": f"It is undecided whether the gain of {row.arm} is larger than {both} ({metric.signed(row.estimate)}).",
    }[row.verdict]


def _sentences(analysis: Analysis, contrasts: _Contrasts) -> list[str]:
    count = len(contrasts.gains) + len(contrasts.differences)
    if not contrasts.has_intervals:
        why = "one seed gives no noise estimate" if len(analysis.seeds) == 1 else "no two arms share two seeds"
        return [f"It is undecided what the methods gain: {why}."]
    level = f"{100 * (1 - contrasts.alpha):.3g}% simultaneous intervals of the {count} declared comparisons alone"
    sentences = [*_headline(analysis, contrasts)]
    sentences[0] = f"{sentences[0][:-1]} ({level})."
    if contrasts.algorithm == TUNED:
        sentences.append("Each method is at its best configuration; the intervals allow for the choice.")
    if contrasts.lost:
        sentences.append(f"Every configuration of {joined(contrasts.lost)} diverged or failed.")
    return sentences


def _label(row: ArmGain, *, difference: bool) -> str:
    return f"{row.arm} rather than {row.against}" if difference else f"{row.arm} over {row.against}"


def _rows(contrasts: _Contrasts) -> list[tuple[str, ArmGain]]:
    grouped = [row for rows in _groups(contrasts.gains).values() for row in rows]
    pairs = [(_label(row, difference=True), row) for row in contrasts.differences]
    return pairs + [(_label(row, difference=False), row) for row in grouped]


def _table(analysis: Analysis, contrasts: _Contrasts) -> Table:
    metric = analysis.metric
    rows = tuple(
        (text_cell(row.arm), text_cell(row.against), text_cell("difference of gains" if row in contrasts.differences else "gain"),
         delta_cell(metric, row.estimate), *interval_cells(metric, row.low, row.high),
         text_cell(_BADGES[row.verdict], mark=_MARKS[row.verdict]))
        for _, row in _rows(contrasts)
    )  # fmt: skip
    caption = (
        f"The contrasts that the study declares, {metric.label}: the first arm minus the second, or the gain of the first "
        f"minus that of the second, with simultaneous {100 * (1 - contrasts.alpha):.3g}% intervals of these alone. The smallest "
        f"difference that matters is {metric.amount(analysis.margin)}."
    )
    columns = ("first", "second", "what", "difference", "low", "high", "verdict")
    return Table("gains", caption, columns, rows, folded="The gains in numbers")


def _figure(analysis: Analysis, contrasts: _Contrasts, sentences: Sequence[str]) -> Figure:
    metric = analysis.metric
    items, rows = [], _rows(contrasts)
    for label, row in rows:
        shape, colour = _SHAPES.get(row.verdict, ("diamond", "base"))
        spread = f"{metric.signed(row.low)} to {metric.signed(row.high)}"
        tip = f"{label}: {metric.signed(row.estimate)} ({spread}), {_BADGES[row.verdict]}"
        items.append(Whisker(label, row.estimate, row.low, row.high, colour, shape, tip))
    arms = [row.arm for _, row in rows]  # on a phone labels omit the baseline, unless that makes labels equal
    distinct = len(set(arms)) == len(arms) and not contrasts.differences
    short = [replace(item, label=arm) for arm, item in zip(arms, items, strict=True)] if distinct else items
    return Figure(
        "gains",
        lambda narrow: draw_whiskers(
            short if narrow else items,
            f"gain in {metric.label}{metric.unit_after}",
            narrow=narrow,
            band=analysis.margin,
        ),
        " ".join(sentences),
        "What each method gains over its own baseline, within seeds, with simultaneous intervals. Shaded: too small to matter.",
    )
