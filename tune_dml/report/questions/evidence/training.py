"""How did training go? Show the metric over training, and what other selection rules would have chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.convergence import Convergence, judge_convergence
from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.analysis.traces import Change, Histories
from tune_dml.report.cells import metric_cells
from tune_dml.report.questions import knob_question, question, rank_of
from tune_dml.report.questions.evidence._over_training import figure_of, last_values_sentence, means_and_ranges
from tune_dml.report.questions.validity.caveats import short_protocols, twice_the_steps
from tune_dml.report.section import Block, Fold, Section, Table, Text
from tune_dml.text import counted

_LOSS = "train/loss"


@dataclass(frozen=True)
class _Rule:
    """The score of each value under one selection rule, and the best value."""

    name: str
    scores: tuple[tuple[str, float], ...]
    best: str


@knob_question(order=400, reads_traces=True, unanswered={"selection_rules": (), "still_gaining": ()})
def training(analysis: Analysis, knob: KnobAnalysis) -> Section | None:
    """Show the curves of each value and the baseline, as means and ranges; only once for the knobs of a search.

    The section of the most influential knob is open; those of other knobs are folded.
    """
    if knob.isolated.problem and knob is not next(item for item in analysis.knobs if item.arm == knob.arm):
        return None
    histories, finished = analysis.histories[knob.key], analysis.finished_histories[knob.key]
    if not (histories.keys or analysis.counts.get("finished")):
        return None
    found = judge_convergence(analysis, finished, _count_values(analysis))
    sentence = _sentence(analysis, histories, found)
    gaining = [(label, change.size) for label, change in found.gaining.items()]
    rules = _rules(analysis, knob, finished)
    sentences = {analysis.metric.key: sentence, _LOSS: last_values_sentence(finished, _LOSS)}
    caption = f"{means_and_ranges(analysis, knob)}; a stopped trial counts up to its last step."
    name = f"training-{knob.slug}"
    figure = figure_of(
        name, histories, sentences, caption, labels=knob.labels, ordered=knob.numeric, metric=analysis.metric
    )
    body: list[Block] = [figure] if figure else []
    if figure is None or figure.title != analysis.metric.name:  # the figure has the sentence in its view of the metric
        body.insert(0, Text(sentence))
    if rules:
        body += [Text(_rules_sentence(rules)), _table(analysis, knob, rules)]
    if rank_of(analysis, knob):
        body = [Fold("The metric over training, for each value", body)]
    return Section(
        "training",
        f"How did training go, for each {knob.symbol}?",
        "Training",
        body,
        data={"selection_rules": rules, "still_gaining": gaining},
    )


@question(order=401, reads_traces=True)
def training_of_methods(analysis: Analysis) -> Section | None:
    """Show the curve of each method at its best cell; None if knobs have curves, or with one method."""
    best = [max(arm.trained, key=lambda cell: analysis.sign * cell.mean) for arm in analysis.arms if arm.trained]
    if analysis.knobs or len(best) < 2:
        return None
    histories = analysis.histories_of({cell.label: [trial.key for trial in cell.trials] for cell in best})
    sentence = _sentence(analysis, histories, judge_convergence(analysis, histories, _count_values(analysis)))
    sentences, labels = {analysis.metric.key: sentence, _LOSS: ""}, [cell.label for cell in best]
    caption = "Mean (lines) and range (bands) over seeds, of each method's best configuration."
    figure = figure_of(
        "training-of-methods", histories, sentences, caption, labels=labels, ordered=False, metric=analysis.metric
    )
    title = "How did training go, for each method?"
    return Section("training-of-methods", title, "Training", (figure,)) if figure else None


def _count_values(analysis: Analysis) -> int:
    """Return the number of values that share the error: those of all knobs, or the cells among which some were chosen."""
    return max(len(analysis.ranked), sum(len(knob.points_and_baseline) for knob in analysis.knobs))


def _sentence(analysis: Analysis, histories: Histories, found: Convergence) -> str:
    metric = analysis.metric
    if metric.key not in histories.keys:
        return f"No trial logged {metric.label} during training, so there is no curve."
    period = _period(found.changes)
    if not period:
        return "Evaluations were too rare to tell whether training had converged."
    margin = metric.amount(analysis.margin)
    if not found.gaining:
        return f"Over {period} of training, {_without_gains(analysis, found)}."
    largest = max(found.gaining.values(), key=lambda change: analysis.sign * change.size)
    others = len(found.gaining) - 1
    more = f"; {counted(others, 'other value')} changed by more than {margin}" if others else ""
    return (
        f"Training had not converged: over {period}, {metric.label} of {largest.label} changed by "
        f"{metric.signed_amount(largest.size)}{more}. Longer training may change the order."
    )


def _without_gains(analysis: Analysis, found: Convergence) -> str:
    """Return what the end of training shows if no value gained significantly."""
    metric, sign = analysis.metric, analysis.sign
    margin, gains = metric.amount(analysis.margin), short_protocols(analysis)[0]
    if found.open:
        largest = max(found.open.values(), key=lambda change: sign * change.size)
        change = metric.signed_amount(largest.size)
        known = twice_the_steps(gains) if gains else "convergence is undecided"
        return f"{largest.label} changed by {change}, {found.why_open}; {known}"
    text = f"no value gained more than {margin}, the smallest difference that matters"
    if gains:
        return f"{text}, but {twice_the_steps(gains)}"
    worst = min(found.changes, key=lambda change: sign * change.size)
    if sign * worst.size < -analysis.margin:
        return f"{text}, but {worst.label} lost {metric.amount(abs(worst.size))}"
    if not found.is_small:
        return f"{text}, but a true gain of that size cannot be ruled out"
    return f"{text}: longer training would hardly change the answer"


def _period(changes: Sequence[Change]) -> str:
    """Return the period of the changes: `the last quarter`, or its steps if it was longer; empty without changes."""
    if not changes:
        return ""
    longest = min(changes, key=lambda change: (change.first, change.last))
    return "the last quarter" if longest.is_late else f"steps {longest.first} to {longest.last}"


def _rules(analysis: Analysis, knob: KnobAnalysis, histories: Histories) -> tuple[_Rule, ...]:
    """Score each value by three rules: last evaluation, each seed's best, best of the mean. Empty for one evaluation."""
    key, sign = analysis.metric.key, analysis.sign
    by_rule: dict[str, list[tuple[str, float]]] = {"last": [], "mean of max": [], "max of mean": []}
    for point in knob.points:
        trials = [[sign * row[key] for row in rows if key in row] for rows in histories.by_label[point.label].values()]
        trials = [numbers for numbers in trials if len(numbers) > 1]
        if not trials:
            continue
        shared = np.array([numbers[: min(map(len, trials))] for numbers in trials])
        for name, score in (
            ("last", np.mean([numbers[-1] for numbers in trials])),
            ("mean of max", np.mean([max(numbers) for numbers in trials])),
            ("max of mean", shared.mean(0).max()),
        ):
            by_rule[name].append((point.label, sign * float(score)))
    rules = ((name, tuple(scores)) for name, scores in by_rule.items() if len(scores) > 1)
    return tuple(_Rule(name, scores, max(scores, key=lambda item: sign * item[1])[0]) for name, scores in rules)


def _rules_sentence(rules: Sequence[_Rule]) -> str:
    if len({rule.best for rule in rules}) == 1:
        names = "(last evaluation, best of each seed, best of the mean)"
        return f"{rules[0].best} leads under every selection rule {names}."
    named = "; ".join(f"{rule.name}: {rule.best}" for rule in rules)
    return f"The best value depends on the selection rule: {named}."


def _table(analysis: Analysis, knob: KnobAnalysis, rules: Sequence[_Rule]) -> Table:
    scores = [dict(rule.scores) for rule in rules]
    rows = [(label, *metric_cells(analysis.metric, *(score[label] for score in scores))) for label in scores[0]]
    caption = (
        f"{analysis.metric.axis} by selection rule: the last evaluation; the mean of each seed's best (mean of max); "
        "the best of the mean over seeds (max of mean). The latter two are optimistic."
    )
    columns, name = ("value", *(rule.name for rule in rules)), f"selection-rules-{knob.slug}"
    return Table(name, caption, columns, rows, folded="By other selection rules", for_paper=False)
