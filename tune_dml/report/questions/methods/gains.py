"""What does each method gain over its own baseline? Judge the contrasts that the study declares."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tune_dml.planning.grouping import grouped
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import seed_values
from tune_dml.report.analysis.comparisons import better_or_worse
from tune_dml.report.cells import interval_cells, text_cell
from tune_dml.report.drawing.charts import draw_whiskers, verdict_whisker
from tune_dml.report.naming import confidence
from tune_dml.report.questions import question
from tune_dml.report.section import Card, Figure, Section, Table, Text
from tune_dml.stats.intervals.contrasts import estimate_gains
from tune_dml.stats.intervals.simultaneous import ALGORITHM
from tune_dml.stats.intervals.tuned import ALGORITHM as TUNED
from tune_dml.stats.verdicts.selection import choose_best_cells
from tune_dml.text import counted, joined

Verdict = Literal["gains", "loses", "within the margin", "open"]
_MARKS = {"gains": "better", "loses": "worse", "within the margin": "insensitive", "open": "undecided"}
_BADGES = {"gains": "better", "loses": "worse", "within the margin": "no difference", "open": "undecided"}
_BY_WHAT_MATTERS = " by an amount that matters"
_MAX_NAMED = 6  # maximum number of methods that a sentence names; for more methods it gives their number


@dataclass(frozen=True)
class ArmGain:
    """A gain of one arm over another, or a difference of two gains, with its simultaneous interval."""

    arm: str
    against: str  # the other arm, or the arm whose gain is subtracted
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

    rows: tuple[ArmGain, ...]
    differences: tuple[ArmGain, ...]
    lost: tuple[str, ...]
    margin: float
    alpha: float
    algorithm: str

    @property
    def has_intervals(self) -> bool:
        return any(math.isfinite(gain.low) for gain in self.rows)


@question(order=149, unanswered={"gains": None})
def gains(analysis: Analysis) -> Section | None:
    """Judge the declared contrasts; None if the space declares none between arms that trained."""
    contrasts = _judge(analysis)
    if contrasts is None:
        return None
    sentences = _sentences(analysis, contrasts)
    figure, text = _figure(analysis, contrasts, sentences), Text(" ".join(sentences))
    return Section(
        "gains",
        "What does each method gain over its own baseline?",
        "Gains",
        (figure, text, _table(analysis, contrasts)),
        _card(contrasts),
        tuple(sentences),
        headline=" ".join(_headline(analysis, contrasts)) if contrasts.has_intervals else "",
        data={"gains": {**vars(contrasts), "sentences": sentences}},
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
    pairs_of_gains = [(gain_of[first], gain_of[second]) for first, second in compared]
    level = analysis.looks.level
    if best.tuned is None:
        effects = estimate_gains(best.values, pairs, pairs_of_gains, level, resolution=analysis.resolution)
    else:
        effects = best.tuned.gains(pairs, pairs_of_gains, level)
    rows = [
        ArmGain(arm, reference, *ends, _verdict(analysis, *ends[1:]))
        for (arm, reference), ends in zip([*gained, *compared], effects.times(analysis.sign).rows(), strict=True)
    ]
    lost = tuple(dict.fromkeys(name for pair in declared for name in pair if name not in trained))
    gains, differences = tuple(rows[: len(gained)]), tuple(rows[len(gained) :])
    return _Contrasts(gains, differences, lost, analysis.margin, level, ALGORITHM if best.tuned is None else TUNED)


def _verdict(analysis: Analysis, low: float, high: float) -> Verdict:
    if max(abs(low), abs(high)) < analysis.margin:
        return "within the margin"
    words: dict[str, Verdict] = {"better": "gains", "worse": "loses", "undecided": "open"}
    return words[better_or_worse(low, high, analysis.sign)]


def _with_verdict(rows: Sequence[ArmGain], verdict: Verdict) -> list[ArmGain]:
    return [row for row in rows if row.verdict == verdict]


def _card(contrasts: _Contrasts) -> Card:
    verdicts = [gain.verdict for gain in contrasts.rows]
    style = "better" if "gains" in verdicts else "worse" if "loses" in verdicts else "undecided"
    unanimous = len(set(verdicts)) == 1
    return Card(_BADGES[verdicts[0]] if unanimous else f"{verdicts.count('gains')} of {len(verdicts)} gain", style)


def _groups(rows: Sequence[ArmGain]) -> dict[tuple[str, str], list[ArmGain]]:
    """Group gains by (what is added, "") or, if unknown, by ("", the arm compared with)."""
    return grouped(rows, lambda row: (row.added, "") if row.added else ("", row.against))


def _headline(analysis: Analysis, contrasts: _Contrasts) -> list[str]:
    """Return a sentence for each difference of gains, then one for each group of gains."""
    sentences = [_difference(analysis, row) for row in contrasts.differences]
    for (added, against), rows in _groups(contrasts.rows).items():
        sentences.append(_single(analysis, rows[0]) if len(rows) == 1 else _group(analysis, added, against, rows))
    return sentences


def _group(analysis: Analysis, added: str, against: str, rows: Sequence[ArmGain]) -> str:
    """Describe a group: `SEC improves 2 of 5 methods (Triplet +1.20, TML +1.00); it worsens none; 3 are undecided.`."""
    up, down = _with_verdict(rows, "gains"), _with_verdict(rows, "loses")
    within, undecided = _with_verdict(rows, "within the margin"), _with_verdict(rows, "open")
    better, worse = (_count_significant(analysis, within, word) for word in ("better", "worse"))
    everything = "both methods" if len(rows) == 2 else f"all {len(rows)} methods"
    share = everything if len(up) == len(rows) else f"{len(up) or 'none'} of {len(rows)} methods"
    head = f"{added} improves {share}" if added else f"{share.capitalize()} {_are(up)} better than {against}"
    parts = [head + (_BY_WHAT_MATTERS if better and not up else "") + _listed(analysis, up, added)]
    if len(up) < len(rows):
        named = f"{len(down) or 'none'}{_listed(analysis, down, added)}"
        text = f"it worsens {named}" if added else f"{named} {_are(down)} worse"
        parts.append(text + (_BY_WHAT_MATTERS if worse and not down else ""))
    if within:
        differ = "differs" if len(within) == 1 else "differ"
        counts = [f"{count} significantly {word}" for word, count in (("better", better), ("worse", worse)) if count]
        listed = f" ({', '.join(counts)})" if counts else ""
        parts.append(f"{len(within)} {differ} by less than {analysis.metric.rough(analysis.margin)}{listed}")
    if undecided:
        prefix = "all " if 1 < len(undecided) == len(rows) else ""
        parts.append(f"{prefix}{len(undecided)} {_are(undecided)} undecided")
    return "; ".join(parts) + "."


def _count_significant(analysis: Analysis, rows: Sequence[ArmGain], word: str) -> int:
    return sum(better_or_worse(row.low, row.high, analysis.sign) == word for row in rows)


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
    count = len(contrasts.rows) + len(contrasts.differences)
    if not contrasts.has_intervals:
        why = "one seed gives no noise estimate" if len(analysis.seeds) == 1 else "no two arms share two seeds"
        return [f"It is undecided what the methods gain: {why}."]
    level = f"{confidence(contrasts.alpha)} simultaneous intervals of the {counted(count, 'declared comparison')} alone"
    sentences = [*_headline(analysis, contrasts)]
    sentences[0] = f"{sentences[0][:-1]} ({level})."
    if contrasts.algorithm == TUNED:
        sentences.append("Each method is at its best configuration; the intervals allow for the choice.")
    if contrasts.lost:
        sentences.append(f"Every configuration of {joined(contrasts.lost)} diverged or failed.")
    return sentences


def _rows(contrasts: _Contrasts) -> list[tuple[str, str, ArmGain]]:
    grouped = [row for rows in _groups(contrasts.rows).values() for row in rows]
    pairs = [("difference of gains", f"{row.arm} rather than {row.against}", row) for row in contrasts.differences]
    return pairs + [("gain", f"{row.arm} over {row.against}", row) for row in grouped]


def _table(analysis: Analysis, contrasts: _Contrasts) -> Table:
    metric = analysis.metric
    rows = [
        (row.arm, row.against, kind, *interval_cells(metric, row.estimate, row.low, row.high),
         text_cell(_BADGES[row.verdict], mark=_MARKS[row.verdict]))
        for kind, _, row in _rows(contrasts)
    ]  # fmt: skip
    caption = (
        f"The contrasts that the study declares, {metric.label}: the first arm minus the second, or the gain of the first "
        f"minus that of the second, with simultaneous {confidence(contrasts.alpha)} intervals of these alone. The smallest "
        f"difference that matters is {metric.amount(analysis.margin)}."
    )
    columns = ("first", "second", "what", "difference", "low", "high", "verdict")
    return Table("gains", caption, columns, rows, folded="The gains in numbers")


def _figure(analysis: Analysis, contrasts: _Contrasts, sentences: Sequence[str]) -> Figure:
    metric, rows = analysis.metric, _rows(contrasts)
    items = [
        verdict_whisker(metric, label, (row.estimate, row.low, row.high), _BADGES[row.verdict])
        for _, label, row in rows
    ]
    arms = [row.arm for *_, row in rows]  # on a phone labels omit the baseline, unless that makes labels equal
    distinct = len(set(arms)) == len(arms) and not contrasts.differences
    short = [replace(item, label=arm) for arm, item in zip(arms, items, strict=True)] if distinct else items
    title = f"gain in {metric.label}{metric.unit_after}"
    return Figure(
        "gains",
        lambda narrow: draw_whiskers(short if narrow else items, title, narrow=narrow, band=analysis.margin),
        " ".join(sentences),
        "What each method gains over its own baseline, within seeds, with simultaneous intervals. Shaded: too small to matter.",
    )
