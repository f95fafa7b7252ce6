"""The summary of a sweep, for the terminal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tune_dml.record.judging.judgement import CellJudgement, Judgement
from tune_dml.record.results import Results
from tune_dml.report.analysis import Analysis, analyse
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.report.naming import floors_of
from tune_dml.report.questions import answers, first_sentence
from tune_dml.report.section import Section, figures_of
from tune_dml.report.steps import Step, cost_of
from tune_dml.text import counted, duration, one_line

_ADDS_SEEDS = 30  # minimum urgency of a step that adds seeds; below it, the answer states why no seeds are advised
WITHOUT_TRAINING = "Without training"  # name of the fact that lists the floors


@dataclass(frozen=True)
class Answer:
    """The answer of a sweep, shown first on the page and in the terminal."""

    sentences: tuple[str, ...]
    step: Step | None = None  # None if no step is worth its cost
    cost: str = ""
    facts: tuple[tuple[str, str], ...] = ()


def answer_of(analysis: Analysis, sections: Sequence[Section]) -> Answer:
    """Collect the sections' headlines and the most urgent step."""
    appendix_first = sorted(sections, key=lambda section: not section.appendix)
    sentences = [one_line(section.headline) for section in appendix_first if section.headline]
    results, steps = analysis.results, _steps(sections)
    step = next((step for step in steps if step.is_worth_it(results)), None)
    if step is None and steps:
        sentences.append(f"No next step is worth its cost: `{steps[0].command}` takes {cost_of(steps[0], results)}.")
    if step is None or step.urgency < _ADDS_SEEDS:
        sentences += [section.hint for section in sections if section.hint][:1]
    return Answer(tuple(sentences), step, cost_of(step, results) if step else "", _facts(analysis))


def _steps(sections: Sequence[Section]) -> list[Step]:
    """Return all steps: the most urgent first, and among equally urgent ones the cheapest for an answer first."""
    steps = [step for section in sections for step in section.steps]
    return sorted(steps, key=lambda step: (-step.urgency, step.trials_per_answer))


def _facts(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    results, metric, baseline, best_cell = analysis.results, analysis.metric, analysis.baseline, _best_cell(analysis)
    lost, trials, seconds = sum(len(cell.failures) for cell in analysis.cells), len(results.trials), analysis.seconds
    best = "only the baseline has a result" if analysis.ranked else "no configuration has a result"
    if any(not cell.cell.baseline for cell in analysis.ranked):
        best = "every candidate with a result diverged under another seed"
    if best_cell is not None:
        best = f"{best_cell.label}: {metric.number(best_cell.mean)}"
        if analysis.selectable[0].cell.baseline:  # ranked within seeds: means over unequal seeds are not comparable
            best = f"the baseline; of the others {best}"
    floors = ", ".join(f"{name}: {metric.number(value)}" for name, value in floors_of(results).items())
    return (
        ("Best configuration", best),
        ("Baseline", f"{baseline.label}: {metric.number(baseline.mean)}" if baseline else "none"),
        *(((WITHOUT_TRAINING, floors),) if floors else ()),
        ("Seeds", f"{len(analysis.seeds)}, paired" if len(analysis.seeds) > 1 else "1, so no intervals"),
        ("Failures", f"{lost or 'none'} of {counted(trials, 'trial')}"),
        ("Cost", f"{duration(seconds)} of training" if seconds or not results.imported else "not recorded"),
    )


def _best_cell(analysis: Analysis) -> CellAnalysis | None:
    """Return the cell with the best validation mean, other than a baseline; None without such a cell."""
    return next((cell for cell in analysis.selectable if not cell.cell.baseline), None)


@dataclass(frozen=True)
class SummaryRow:
    """One cell of the summary."""

    label: str
    n: int
    planned: int
    mean: float
    low: float  # Lower end of the comparison bar; cells whose bars do not overlap differ. NaN without a noise estimate.
    high: float
    difference: float  # mean difference to the baseline within seeds; NaN without one
    difference_low: float  # lower end of the difference's simultaneous interval; NaN if unknown
    difference_high: float
    note: str


@dataclass(frozen=True)
class SweepSummary:
    """The answer, table, verdicts and next commands of a sweep."""

    name: str
    metric: str  # axis title: `validation R@1 [%]`
    margin: float
    answer: Answer
    rows: tuple[SummaryRow, ...]
    verdicts: tuple[str, ...]  # sentences on sensitivity, optimum, agreement with the papers, and baseline
    commands: tuple[str, ...]  # candidates for the next command, the most urgent first
    counts: Mapping[str, int]
    findings: tuple[str, ...]  # failed trials and extendable edges; empty if a check passes
    judgement: Judgement


def summary(results: Results, margin: float | None = None) -> SweepSummary:
    """Judge the present results of a sweep, without drawing or writing; `margin` defaults to the planned one."""
    analysis = analyse(results, margin)
    return summarise(analysis, answers(analysis, traces=False))


def judged(results: Results) -> Judgement | None:
    """Return the judgement that MLflow shows; None before the first look."""
    return summary(results).judgement if results.has_current_look else None


def headline(results: Results) -> str:
    """Return the first verdict of the answer, or its first warning if there is no verdict.

    Unlike `summary`, this computes only what that sentence needs.
    """
    return first_sentence(analyse(results))


def summarise(analysis: Analysis, sections: Sequence[Section]) -> SweepSummary:
    """Summarise the sections of a report."""
    answer, cells = answer_of(analysis, sections), analysis.cells
    if analysis.results.plan.search.num_samples:  # the cells of a search are ranked by their means
        cells = (*analysis.ranked, *(cell for cell in cells if not cell.values))
    return SweepSummary(
        analysis.results.name,
        analysis.metric.axis,
        analysis.margin,
        answer,
        tuple(_row(analysis, cell) for cell in cells),
        tuple(sentence for section in sections for sentence in section.verdicts),
        tuple(step.command for step in _steps(sections)),
        analysis.counts,
        tuple(finding for section in sections for finding in section.findings),
        _judgement(analysis, sections, answer),
    )


def _judgement(analysis: Analysis, sections: Sequence[Section], answer: Answer) -> Judgement:
    """Return the answer, and each cell's comparison bar and difference to the baseline, for MLflow."""
    following = [f"Next: {answer.step.command}"] if answer.step else []
    best = _best_cell(analysis)
    numbers = {"baseline_mean": analysis.baseline.mean if analysis.baseline else math.nan}
    if best is not None:
        numbers |= {f"best_{name}": value for name, value in {"mean": best.mean, **_figures(analysis, best)}.items()}
    cells = {cell.label: CellJudgement(_figures(analysis, cell), _sentence(analysis, cell)) for cell in analysis.cells}
    figure, label = next((figure.name for figure in figures_of(sections)), ""), best.label if best else ""
    return Judgement((" ".join(answer.sentences), *following), numbers, cells, figure, label)


def _figures(analysis: Analysis, cell: CellAnalysis) -> dict[str, float]:
    low, high = analysis.bar(cell)
    figures = {"low": low, "high": high} if math.isfinite(low) else {}
    if against := analysis.against(cell):
        figures |= {"difference": against.difference, "difference_low": against.low, "difference_high": against.high}
    return figures


def _sentence(analysis: Analysis, cell: CellAnalysis) -> str:
    metric, against = analysis.metric, analysis.against(cell)
    if not cell.values:
        return f"{metric.label}: no trial has a number."
    low, high = analysis.bar(cell)
    ends = f", comparison bar {metric.number(low)} to {metric.number(high)}" if math.isfinite(low) else ""
    text = f"{metric.label} {metric.amount(cell.mean)} over {counted(len(cell.values), 'seed')}{ends}."
    if against is not None:
        text += f" Against the baseline {metric.signed(against.difference)}: {against.verdict}."
    return text if not cell.lost else f"{text} Lost: {cell.lost}."


def _row(analysis: Analysis, cell: CellAnalysis) -> SummaryRow:
    against, numbers = analysis.against(cell), (cell.label, len(cell.values), len(cell.trials), cell.mean)
    ends = (against.difference, against.low, against.high) if against else (math.nan,) * 3
    difference, low, high = (value if math.isfinite(value) else math.nan for value in ends)
    return SummaryRow(*numbers, *analysis.bar(cell), difference, low, high, cell.lost)
