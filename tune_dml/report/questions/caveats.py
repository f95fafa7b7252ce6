"""What must be said before any verdict: nothing beats the pixels, training had not finished, trials collapsed."""

from __future__ import annotations

from collections.abc import Sequence

from tune_dml.record.results import TrialResult
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.report.analysis.traces import Change, histories_of
from tune_dml.report.naming import floor_name, floors_of
from tune_dml.report.questions import question
from tune_dml.report.section import Section
from tune_dml.text import counted

LAST = 0.25
"""The share of training over which a metric that still moves is called unfinished."""
_MOST_READ = 24
"""Trials whose histories are read here, the baseline's and the best cells' first: a terminal asks this of every sweep."""
_COLLAPSED = "collapsed"


@question(order=94)
def below_floors(analysis: Analysis) -> Section | None:
    """None where some cell beats every floor, or none was measured."""
    scored = [cell for cell in analysis.cells if cell.values]
    sign, floors = analysis.sign, floors_of(analysis.results)
    if not scored or not floors:
        return None
    best = max(scored, key=lambda cell: sign * cell.mean)
    name, highest = max(floors.items(), key=lambda item: sign * item[1])
    if sign * best.mean > sign * highest:
        return None
    number = analysis.metric.number
    sentence = (
        f"No cell beats {floor_name(name)} ({number(highest)}): the best, {best.label}, reaches {number(best.mean)}."
    )
    return _said(sentence)


@question(order=95)
def unfinished(analysis: Analysis) -> Section | None:
    """None where no cell that was read gained more than the margin in the last part of training."""
    gaining = [change for change in _changes(analysis) if analysis.sign * change.size > analysis.margin]
    if not gaining:
        return None
    most = max(gaining, key=lambda change: analysis.sign * change.size)
    gained = analysis.metric.rough(abs(most.size))
    sentence = f"Training had not finished: {most.label} still gained {gained} in steps {most.first} to {most.last}."
    return _said(sentence)


@question(order=96)
def collapsed(analysis: Analysis) -> Section | None:
    """None where no trial ended with one embedding for all pictures."""
    lost = {cell.label: _collapsed_of(cell) for cell in analysis.cells}
    count = sum(map(len, lost.values()))
    if not count:
        return None
    where = ", ".join(
        f"{label}: {len(trials)} of {len(_ended(analysis, label))}" for label, trials in lost.items() if trials
    )
    verb = "it has" if count == 1 else "they have"
    sentence = f"{count} of {counted(len(analysis.results.trials), 'trial')} collapsed, so {verb} no number ({where})."
    return _said(sentence)


def _said(sentence: str) -> Section:
    """A sentence of the answer alone: figures, facts and the section on training show what it is about."""
    return Section("", "", "", headline=sentence)


def _changes(analysis: Analysis) -> Sequence[Change]:
    """How far each of the first cells moved over the last part of training."""
    ranked = sorted((cell for cell in analysis.cells if cell.values), key=lambda cell: -analysis.sign * cell.mean)
    ranked.sort(key=lambda cell: not cell.cell.baseline)
    keys: dict[str, tuple[str, ...]] = {}
    for cell in ranked:
        trials = [trial.key for trial in cell.trials if trial.status == "finished"]
        if keys and sum(map(len, keys.values())) + len(trials) > _MOST_READ:
            break
        keys[cell.label] = tuple(trials)
    rows = analysis.logged.of([key for trials in keys.values() for key in trials])
    return histories_of(rows, keys, None).changes(analysis.metric.key, LAST)


def _collapsed_of(cell: CellAnalysis) -> list[TrialResult]:
    return [trial for trial, _ in cell.failures if trial.status == "diverged" and _COLLAPSED in trial.reason]


def _ended(analysis: Analysis, label: str) -> Sequence[TrialResult]:
    return next(cell.trials for cell in analysis.cells if cell.label == label)
