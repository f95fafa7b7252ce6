"""A sweep in a few lines, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tune_dml.record.judgement import Judgement
from tune_dml.record.results import Results
from tune_dml.report.analysis import Analysis, analyse
from tune_dml.report.analysis.cell import CellAnalysis, best_cells
from tune_dml.report.description import judgement_of
from tune_dml.report.naming import floor_name, floors_of
from tune_dml.report.questions import answers, first_sentence
from tune_dml.report.section import Section
from tune_dml.report.steps import Step, cost_of
from tune_dml.stats import SeedTable
from tune_dml.text import duration, one_line

_ASKS_FOR_SEEDS = 30
"""The least urgency of a step that adds seeds: below it the answer says why none does."""
WITHOUT_TRAINING = "Without training"
"""The fact that names the floors."""


@dataclass(frozen=True)
class Answer:
    """What a sweep says, in plain words: what page and terminal begin with."""

    sentences: tuple[str, ...]
    step: Step | None
    """What to run next; None when nothing would settle more."""
    cost: str
    """Of the step; empty without one."""
    facts: tuple[tuple[str, str], ...]
    """Best configuration, baseline, seeds, failures, cost."""


def answer_of(analysis: Analysis, sections: Sequence[Section]) -> Answer:
    """Each question's plain sentence, what holds of the whole sweep first, and the most urgent of the steps."""
    plain = [
        one_line(section.headline)
        for section in sorted(sections, key=lambda section: not section.appendix)
        if section.headline
    ]
    step = next(iter(_steps(sections)), None)
    if step is None or step.urgency < _ASKS_FOR_SEEDS:
        plain += [section.hint for section in sections if section.hint][:1]
    return Answer(tuple(plain), step, cost_of(step, analysis.results) if step else "", _facts(analysis))


def _steps(sections: Sequence[Section]) -> list[Step]:
    """The most urgent first, of those the one that takes the fewest trials for an answer: fewer trials, or a higher chance."""
    steps = [step for section in sections for step in section.steps]
    return sorted(steps, key=lambda step: (-step.urgency, step.trials_per_answer))


def _facts(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    results, metric = analysis.results, analysis.metric
    labels = {cell.cell.digest: cell for cell in analysis.cells}
    ranked = [labels[cell.digest] for cell in best_cells(results) if not cell.baseline]
    lost = sum(len(cell.failures) for cell in analysis.cells)
    seconds = sum(trial.seconds for trial in results.trials)

    def scored(cell: CellAnalysis) -> str:
        return f"{cell.label}: {metric.number(cell.mean)}"

    floors = ", ".join(f"{floor_name(name)}: {metric.number(value)}" for name, value in floors_of(results).items())
    return (
        ("Best configuration", scored(ranked[0]) if ranked else "none has a result"),
        ("Baseline", scored(analysis.baseline) if analysis.baseline else "none"),
        *(((WITHOUT_TRAINING, floors),) if floors else ()),
        ("Seeds", f"{len(analysis.seeds)}, paired" if len(analysis.seeds) > 1 else "1: no intervals"),
        ("Failures", f"{lost} of {len(results.trials)} trials" if lost else f"none of {len(results.trials)} trials"),
        ("Cost", f"{duration(seconds)} of training" if seconds or not results.imported else "not recorded"),
    )


@dataclass(frozen=True)
class SummaryRow:
    """One cell."""

    label: str
    n: int
    """Seeds with a number, of `planned`."""
    planned: int
    mean: float
    low: float
    """Ends of the comparison bar: cells whose bars do not overlap differ; NaN without a noise estimate."""
    high: float
    difference: float
    """To the baseline, within seeds; NaN without one."""
    difference_low: float
    """Simultaneous interval, within seeds; NaN where the data say nothing."""
    difference_high: float
    note: str
    """The seeds without a number, and why; empty when none was lost."""


@dataclass(frozen=True)
class SweepSummary:
    """What a sweep says."""

    name: str
    metric: str
    """As people read it: `validation R@1 [%]`."""
    margin: float
    answer: Answer
    rows: tuple[SummaryRow, ...]
    verdicts: tuple[str, ...]
    """Sentences: sensitivity, optimum, agreement with the papers, baseline."""
    commands: tuple[str, ...]
    """What might be run next, the most urgent first."""
    counts: Mapping[str, int]
    """Status -> trials."""
    findings: tuple[str, ...]
    """Failed trials and extendable edges; empty when a check passes."""
    judgement: Judgement
    """The answer and its numbers, as MLflow shows them."""


def summary(results: Results, margin: float | None = None) -> SweepSummary:
    """Judge a sweep as it stands; `margin` defaults to the planned one. Draws and writes nothing, reads no history."""
    analysis = analyse(results, margin)
    return summarise(analysis, answers(analysis, traces=False))


def judged(results: Results) -> Judgement | None:
    """What MLflow shows of a sweep; None of trials that nobody has looked at."""
    return summary(results).judgement if results.looked_at else None


def headline(results: Results) -> str:
    """The first sentence of `summary`'s answer, in a part of its time."""
    return first_sentence(analyse(results))


def summarise(analysis: Analysis, sections: Sequence[Section]) -> SweepSummary:
    """The short form of a report."""
    answer = answer_of(analysis, sections)
    return SweepSummary(
        analysis.results.name,
        analysis.metric.axis,
        analysis.margin,
        answer,
        tuple(_row(analysis, cell) for cell in analysis.cells),
        tuple(sentence for section in sections for sentence in section.verdicts),
        tuple(step.command for step in _steps(sections)),
        analysis.counts,
        tuple(finding for section in sections for finding in section.findings),
        judgement_of(analysis, sections, answer.sentences, answer.step),
    )


def _row(analysis: Analysis, cell: CellAnalysis) -> SummaryRow:
    against = analysis.against(cell)
    numbers = (against.difference, against.low, against.high) if against else (math.nan,) * 3
    difference, low, high = (value if math.isfinite(value) else math.nan for value in numbers)
    ends = analysis.bar(cell)
    return SummaryRow(
        cell.label, len(cell.values), len(cell.trials), cell.mean, *ends, difference, low, high, cell.lost
    )


def seed_table(results: Results) -> SeedTable:
    """Cells x seeds of the sweep's metric, for the statistics; cells that lost every seed are named, not included."""
    return analyse(results).table
