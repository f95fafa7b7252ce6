"""Several knobs: how much of the outcome does each explain, by itself and together with others?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import ArmAnalysis, CellAnalysis
from tune_dml.report.analysis.knob import level_key
from tune_dml.report.drawing.charts import Whisker, whiskers
from tune_dml.report.naming import slug, symbol_of
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Card, Figure, Heading, Section, Table, TableCell, Text, text_cell
from tune_dml.report.steps import Step, extend
from tune_dml.space import Grid, Knob, Value
from tune_dml.stats.verdicts.importance import Importance, importance_of_grid, importance_of_search, levels_a_knob

_MOST_CELLS_OF_A_GRID = 2000
"""Of a larger grid no shares are taken: each is a contrast of all cells."""


@dataclass(frozen=True)
class KnobShare:
    """What a knob explains."""

    knob: str
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class PairShare:
    """What two knobs explain together beyond what each does by itself."""

    first: str
    second: str
    share: float


@dataclass(frozen=True)
class ImportanceOfArm:
    """The knobs of one method, those that explain most first; no shares where none is claimed."""

    arm: str
    searched: bool
    cells: int
    shares: tuple[KnobShare, ...]
    pairs: tuple[PairShare, ...]
    predicted: float
    problem: str
    sentence: str


@question(order=303, unanswered={"importance": ()})
def importance(analysis: Analysis) -> Section | None:
    """None unless an arm has several knobs that were searched or fully crossed; a race's cells have unequal seeds."""
    if analysis.race is not None:
        return None
    level = analysis.looks.level
    arms = [arm for arm in analysis.arms if not arm.baseline and len(arm.knobs) > 1]
    importances = [one for arm in arms if (one := _importance_of(analysis, arm, level / len(arms))) is not None]
    if not importances:
        return None
    first, sentences = importances[0], tuple(one.sentence for one in importances)
    body: list[Block] = []
    for one in importances:
        body += [Heading(one.arm)] if one.arm else []
        body.append(Text(one.sentence, badge="undecided" if one.problem else ""))
        body += [_figure(analysis, one), _table(analysis, one, level / len(arms))] if one.shares else []
    return Section(
        "importance-of-knobs",
        f"What each knob explains of {analysis.metric.label}",
        "Importance",
        tuple(body),
        Card(
            first.shares[0].knob if first.shares else "open", "undecided" if first.problem else "sensitive",
            "Which knob explains most?", sentences[0],
        ),
        sentences,
        steps=_steps(analysis, importances),
        data={"importance": importances},
    )  # fmt: skip


def _importance_of(analysis: Analysis, arm: ArmAnalysis, level: float) -> ImportanceOfArm | None:
    searched = analysis.results.plan.search.num_samples > 0
    trained, stopped = arm.trained, sum(cell.stopped is not None for cell in arm.cells)
    if stopped:
        problem = (
            f"{stopped} of {len(arm.cells)} configurations were stopped early, and the others are no sample of all"
        )
        where = f" in {arm.name}" if arm.name else ""
        sentence = f"How much each knob mattered{where} is not claimed: {problem}."
        return ImportanceOfArm(arm.name, searched, len(trained), (), (), math.nan, problem, sentence)
    if not trained or (not searched and len(trained) > _MOST_CELLS_OF_A_GRID):
        return None
    values = np.array([[cell.values.get(seed, math.nan) for seed in analysis.seeds] for cell in trained])
    if searched:
        places = [_places(knob, trained, len(arm.knobs)) for knob in arm.knobs]
        judged = importance_of_search([tried for tried, _ in places], [all_ for _, all_ in places], values, level)
    else:
        shape = _full_grid(arm)
        if shape is None:
            return None
        order, sizes = shape
        judged = importance_of_grid(values[order].reshape(*sizes, -1), level, resolution=analysis.resolution)
    names = [symbol_of(knob) for knob in arm.knobs]
    shares = sorted(
        map(KnobShare, names, judged.share.tolist(), judged.low.tolist(), judged.high.tolist()),
        key=lambda row: -row.share,
    )
    pairs = [
        PairShare(names[i], names[k], float(judged.pairs[i, k])) for i, k in combinations(range(len(names)), 2)
    ]  # fmt: skip
    if judged.problem:
        shares, pairs = [], []
    sentence = _sentence(analysis, arm, judged, shares, pairs)
    return ImportanceOfArm(
        arm.name, searched, len(trained), tuple(shares), tuple(pairs), judged.predicted, judged.problem, sentence
    )


def _full_grid(arm: ArmAnalysis) -> tuple[list[int], list[int]] | None:
    """The order of the cells, last knob fastest, and the levels a knob; None unless every combination trained."""
    keys = [tuple(level_key(cell.cell.knobs[knob.path]) for knob in arm.knobs) for cell in arm.cells]
    levels = [sorted({key[index] for key in keys}) for index in range(len(arm.knobs))]
    sizes = [len(level) for level in levels]
    if not len(set(keys)) == len(keys) == math.prod(sizes) == len(arm.trained):
        return None
    ranks = [tuple(level.index(part) for level, part in zip(levels, key, strict=True)) for key in keys]
    return sorted(range(len(keys)), key=lambda row: ranks[row]), sizes


def _places(knob: Knob, cells: Sequence[CellAnalysis], knobs: int) -> tuple[np.ndarray, np.ndarray]:
    """Where a knob was in each cell, and the places its effect is taken over, in columns from 0 to 1."""
    tried: list[Value] = [cell.cell.knobs[knob.path] for cell in cells]
    domain = knob.domain
    if isinstance(domain, Grid):
        keys = [level_key(value) for value in domain.values]
        every = np.eye(len(keys)) if domain.scale == "category" else np.linspace(0, 1, len(keys))[:, None]
        return every[[keys.index(level_key(value)) for value in tried]], every
    low, high = float(domain.low), float(domain.high)
    numbers = np.array(tried, dtype=float)
    if domain.scale == "log":
        low, high, numbers = math.log(low), math.log(high), np.log(numbers)
    shares = (numbers - low) / (high - low) if high > low else np.zeros(len(numbers))
    count = levels_a_knob(knobs)
    return shares[:, None], ((np.arange(count) + 0.5) / count)[:, None]


def _sentence(
    analysis: Analysis,
    arm: ArmAnalysis,
    judged: Importance,
    shares: Sequence[KnobShare],
    pairs: Sequence[PairShare],
) -> str:
    where = f" in {arm.name}" if arm.name else ""
    if judged.problem:
        return f"How much each knob mattered{where} is not claimed: {judged.problem}."
    first, others = shares[0], shares[1:]
    certain = "certainly " if first.low > max(other.high for other in others) else ""
    listed = ", ".join(f"{row.knob} {row.share:.0%} (from {row.low:.0%} to {row.high:.0%})" for row in shares)
    text = f"{first.knob} {certain}mattered most{where}: of what the knobs explain of {analysis.metric.label}, {listed}"
    if not certain:
        text += "; the order is not certain"
    strongest = max(pairs, key=lambda pair: pair.share)
    if strongest.share >= 0.05:
        text += f"; {strongest.share:.0%} is what {strongest.first} and {strongest.second} do only together"
    if analysis.results.plan.search.num_samples:
        text += (
            f". A model of {len(arm.trained)} configurations says so, which predicts {judged.predicted:.0%} of the variance "
            "of those it has not seen"
        )
    lost = sum(cell.diverged for cell in arm.cells)
    return f"{text}. Among the configurations that trained: {lost} diverged." if lost else f"{text}."


def _steps(analysis: Analysis, importances: Sequence[ImportanceOfArm]) -> tuple[Step, ...]:
    """More cells where a search is too small for a model."""
    if not any(one.searched and one.problem for one in importances):
        return ()
    more = max(10, analysis.results.plan.search.num_samples)
    return extend(
        analysis.results, "which knob mattered, if a model of the configurations can tell", 25, num_samples=more
    )


def _figure(analysis: Analysis, one: ImportanceOfArm) -> Figure:
    items = [
        Whisker(row.knob, 100 * row.share, 100 * row.low, 100 * row.high, tip=f"{row.knob}: {row.share:.0%}")
        for row in one.shares
    ]
    return Figure(
        f"shares-{slug(one.arm)}" if one.arm else "shares",
        lambda narrow: whiskers(items, "share of what the knobs explain, %", narrow=narrow, zero=True),
        one.sentence,
        f"Shapley effects on {analysis.metric.label}: what knobs do together is shared equally between them.",
    )


def _table(analysis: Analysis, one: ImportanceOfArm, level: float) -> Table:
    rows = [(text_cell(row.knob), _share(row.share), _share(row.low), _share(row.high)) for row in one.shares]
    rows += [
        (text_cell(f"{pair.first} with {pair.second} only"), _share(pair.share), _share(math.nan), _share(math.nan))
        for pair in one.pairs
    ]
    caption = (
        f"Shares of what the knobs explain of {analysis.metric.label} (Shapley effects), with {100 * (1 - level):.3g}% "
        "intervals for all knobs at once; pairs are in the knobs' shares already."
    )
    name = f"importance-{slug(one.arm)}" if one.arm else "importance-of-knobs"
    return Table(name, caption, ("knob", "share", "low", "high"), tuple(rows), folded="Shares in numbers")


def _share(value: float) -> TableCell:
    return TableCell(f"{value:.0%}", value) if math.isfinite(value) else TableCell("-")
