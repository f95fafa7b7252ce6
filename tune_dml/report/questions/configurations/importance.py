"""Several knobs: how much of the variance does each knob explain, and each pair of knobs together?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import ArmAnalysis, CellAnalysis, seed_values
from tune_dml.report.analysis.knob import full_grid, grid_positions, positions_of
from tune_dml.report.cells import TableCell
from tune_dml.report.drawing.charts import Whisker
from tune_dml.report.naming import confidence, symbol_of
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Card, Figure, Heading, Section, Table, Text, whisker_figure
from tune_dml.report.steps import Step, extend
from tune_dml.space import Grid
from tune_dml.stats.intervals import Mask
from tune_dml.stats.verdicts.importance import Importance, importance_of_grid, importance_of_search, levels_per_knob
from tune_dml.text import counted

_MAX_GRID_CELLS = 2000
"""Maximum number of cells of a grid whose importance is computed, because each share uses all cells."""


@dataclass(frozen=True)
class KnobShare:
    """The share of the variance that a knob explains."""

    knob: str
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class PairShare:
    """The share that two knobs explain only together."""

    first: str
    second: str
    share: float


@dataclass(frozen=True)
class ImportanceOfArm:
    """The importance of one method's knobs, largest first; without shares if none is reported."""

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
    """Compute importance for arms with several knobs, searched or fully crossed; None for a race."""
    if analysis.race is not None:
        return None
    level = analysis.looks.level
    arms = [arm for arm in analysis.arms if not arm.baseline and len(arm.knobs) > 1]
    importances = [item for arm in arms if (item := _importance_of(analysis, arm, level / len(arms))) is not None]
    if not importances:
        return None
    first, sentences = importances[0], tuple(item.sentence for item in importances)
    body: list[Block] = []
    for item in importances:
        body += [Heading(item.arm)] if item.arm else []
        body.append(Text(item.sentence, badge="undecided" if item.problem else ""))
        if item.shares:
            arm = next((f"-{arm.slug}" for arm in arms if arm.name == item.arm != ""), "")
            body.append(_figure(analysis, item, f"shares{arm}"))
            body.append(_table(analysis, item, f"importance{arm or '-of-knobs'}", level / len(arms)))
    return Section(
        "importance-of-knobs",
        f"What each knob explains of {analysis.metric.label}",
        "Importance",
        body,
        Card(first.shares[0].knob, "sensitive") if _leads(first.shares) else Card("undecided", "undecided"),
        sentences,
        steps=_steps(analysis, importances),
        data={"importance": importances},
    )


def _importance_of(analysis: Analysis, arm: ArmAnalysis, level: float) -> ImportanceOfArm | None:
    searched = analysis.results.plan.search.num_samples > 0
    trained, stopped = arm.trained, sum(cell.stopped is not None for cell in arm.cells)
    if stopped:
        problem = f"{stopped} of {len(arm.cells)} configurations were stopped early, so the others are a biased sample"
        where = f" in {arm.name}" if arm.name else ""
        sentence = f"The importance of the knobs{where} is unknown: {problem}."
        return ImportanceOfArm(arm.name, searched, len(trained), (), (), math.nan, problem, sentence)
    if not trained or (not searched and len(trained) > _MAX_GRID_CELLS):
        return None
    if searched:
        judged = _importance_of_search(analysis, arm, level)
    else:
        values = seed_values(trained, analysis.seeds)
        grid = full_grid(arm)
        if grid is None or len(trained) < len(arm.cells):
            return None
        ranks, sizes = grid
        order = sorted(range(len(ranks)), key=lambda row: ranks[row])  # the last knob varies fastest
        failed = _failed(trained, analysis.seeds)
        shape = (*sizes, values.shape[1])
        judged = importance_of_grid(
            analysis.sign * values[order].reshape(shape), level,
            failed=failed[order].reshape(shape), resolution=analysis.resolution,
        )  # fmt: skip
    names = [symbol_of(knob) for knob in arm.knobs]
    shares = sorted(
        map(KnobShare, names, judged.share.tolist(), judged.low.tolist(), judged.high.tolist()),
        key=lambda row: -row.share,
    )
    pairs = [PairShare(names[i], names[k], float(judged.pairs[i, k])) for i, k in combinations(range(len(names)), 2)]
    if judged.problem:
        shares, pairs = [], []
    sentence = _sentence(analysis, arm, judged, shares, pairs)
    return ImportanceOfArm(
        arm.name, searched, len(trained), tuple(shares), tuple(pairs), judged.predicted, judged.problem, sentence
    )


def _importance_of_search(analysis: Analysis, arm: ArmAnalysis, level: float) -> Importance:
    """Judge all cells that have ended; one with a diverged trial counts as failed."""
    even = ((np.arange(count := levels_per_knob(len(arm.knobs))) + 0.5) / count)[:, None]
    domains = [knob.domain for knob in arm.knobs]
    levels = [grid_positions(domain) if isinstance(domain, Grid) else even for domain in domains]
    cells = [cell for cell in arm.cells if cell.values or cell.failures]
    diverged = np.array([[cell.diverged] for cell in cells])
    values = np.where(diverged, np.nan, analysis.sign * seed_values(cells, analysis.seeds))
    positions = [positions_of(knob, cells) for knob in arm.knobs]
    return importance_of_search(positions, levels, values, level, failed=diverged | _failed(cells, analysis.seeds))


def _failed(cells: Sequence[CellAnalysis], seeds: Sequence[int]) -> Mask:
    """Return which trials failed, (cells, seeds)."""
    lost = [{trial.seed for trial, _ in cell.failures} for cell in cells]
    return np.array([[seed in failed for seed in seeds] for failed in lost])


def _sentence(
    analysis: Analysis, arm: ArmAnalysis, judged: Importance, shares: Sequence[KnobShare], pairs: Sequence[PairShare]
) -> str:
    where = f" in {arm.name}" if arm.name else ""
    if judged.problem:
        return f"The importance of the knobs{where} is unknown: {judged.problem}."
    first = shares[0]
    lead = "It is undecided which knob explains most"
    if _leads(shares):
        lead = f"{first.knob} explains significantly more than any other knob"
    listed = ", ".join(f"{row.knob} {row.share:.0%} (from {row.low:.0%} to {row.high:.0%})" for row in shares)
    text = f"{lead}{where}. Shares of what the knobs explain of {analysis.metric.label}: {listed}"
    strongest = max(pairs, key=lambda pair: pair.share)
    if strongest.share >= 0.05:
        text += f"; {strongest.first} and {strongest.second} explain {strongest.share:.0%} only together"
    if analysis.results.plan.search.num_samples:
        predicts = f"predicts {judged.predicted:.0%} of the variance of held-out ones"
        text += f". These come from a model of {len(arm.trained)} configurations, which {predicts}"
    lost = sum(cell.diverged for cell in arm.cells)
    if not lost:
        return f"{text}."
    left_out = (
        "is left out; the limits hold even if it is" if lost == 1 else "are left out; the limits hold even if they are"
    )
    return f"{text}. {counted(lost, 'configuration')} diverged and {left_out} the worst."


def _leads(shares: Sequence[KnobShare]) -> bool:
    """Return whether the first knob, which has the largest share, explains significantly more than every other."""
    return len(shares) > 1 and shares[0].low > max(row.high for row in shares[1:])


def _steps(analysis: Analysis, importances: Sequence[ImportanceOfArm]) -> tuple[Step, ...]:
    if not any(item.searched and item.problem and "too many" not in item.problem for item in importances):
        return ()
    samples = max(10, analysis.results.plan.search.num_samples)
    settles = "which knob matters, if a model of the configurations can tell"
    return extend(analysis.results, settles, 25, num_samples=samples)


def _figure(analysis: Analysis, item: ImportanceOfArm, name: str) -> Figure:
    items = [
        Whisker(row.knob, 100 * row.share, 100 * row.low, 100 * row.high, tip=f"{row.knob}: {row.share:.0%}")
        for row in item.shares
    ]
    caption = f"Shapley effects on {analysis.metric.label}: joint effects are shared equally between their knobs."
    return whisker_figure(name, items, "share of what the knobs explain, %", item.sentence, caption)


def _table(analysis: Analysis, item: ImportanceOfArm, name: str, level: float) -> Table:
    rows: list[Sequence[object]] = [(r.knob, *map(_share, (r.share, r.low, r.high))) for r in item.shares]
    rows += [(f"{pair.first} with {pair.second} only", _share(pair.share), "-", "-") for pair in item.pairs]
    caption = (
        f"Shares of what the knobs explain of {analysis.metric.label} (Shapley effects), with {confidence(level)} "
        "simultaneous intervals. The knobs' shares include the pairs."
    )
    return Table(name, caption, ("knob", "share", "low", "high"), tuple(rows), folded="Shares in numbers")


def _share(value: float) -> TableCell:
    return TableCell(f"{value:.0%}", value) if math.isfinite(value) else TableCell("-")
