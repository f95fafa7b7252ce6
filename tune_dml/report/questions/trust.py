"""Can I trust it? How noise departs from what is usually assumed, what seeds were lost, and what was spent on looking."""

from __future__ import annotations

import math

import numpy as np

from tune_dml.record.resolution import resolution_of
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.analysis.looks import ALPHA
from tune_dml.report.drawing.charts import HeatCell, heat
from tune_dml.report.questions import question
from tune_dml.report.section import Facts, Figure, Fold, Section, Text
from tune_dml.stats.intervals.contrasts import fill_holes

_MOST_FIELDS = 1500
"""Trials that the map of seeds shows."""
_FINE = 0.01
"""Share of the range of all numbers: steps that the numbers show are worth a line from here on."""


@question(order=340, unanswered={"trust": None})
def trust(analysis: Analysis) -> Section | None:
    """The assumptions behind the verdicts, with what the sweep says of them; None before any trial has ended."""
    looks = analysis.looks
    if not looks.seeds[-1]:
        return None
    text = (
        "Every statement compares cells within seeds and assumes nothing else of the noise: cells may be unequally noisy, "
        "and seeds may react differently to a knob. The statements of one table hold all at once, over all looks at it, "
        f"at an error of {100 * ALPHA:g}%."
    )
    facts = [("Looks", _looks(analysis)), ("Error", _error(analysis)), ("Seeds", _seeds(analysis))]
    facts += [("Resolution", step) for step in _resolution(analysis)]
    facts += [("Race", race) for race in _race(analysis)]
    facts += [("Stopped early", stopped) for stopped in _stopped(analysis)]
    facts += [(f"Noise over {knob.symbol}", noise) for knob in analysis.knobs if (noise := _noise(knob))]
    return Section(
        "trust",
        "Can I trust it?",
        "Trust",
        (
            *_figures(analysis),
            Fold("What is assumed, the looks taken and the error spent", (Text(text), Facts(tuple(facts)))),
        ),
        data={
            "trust": {
                "looks": looks.seeds,
                "planned_seeds": looks.planned,
                "level": looks.level,
                "error_spent": looks.spent,
                "error_allowed": ALPHA,
                "resolution": analysis.resolution,
                "epsilon": {knob.key: knob.sensitivity.epsilon for knob in analysis.knobs},
                "prior_df": {knob.key: knob.sensitivity.prior_df for knob in analysis.knobs},
            }
        },
    )


def _figures(analysis: Analysis) -> tuple[Figure, ...]:
    """Every trial's number, less what its seed adds to all cells: a seed or a cell that stands out shows."""
    table, metric = analysis.table, analysis.metric
    if len(table.labels) < 2 or len(table.seeds) < 2 or not np.isfinite(table.values).any():
        return ()
    filled = fill_holes(table.values)[0]
    less_seed = table.values - filled.mean(0, keepdims=True) + filled.mean()
    reasons = {(cell.label, trial.seed): why for cell in analysis.cells for trial, why in cell.failures}
    rows = list(range(min(len(table.labels), max(4, _MOST_FIELDS // len(table.seeds)))))

    def cell(row: int, column: int) -> HeatCell:
        label, seed, value = table.labels[row], table.seeds[column], float(table.values[row, column])
        lost = reasons.get((label, seed), "")
        shown = metric.number(value) if math.isfinite(value) else lost or "no number yet"
        text = metric.number(value) if math.isfinite(value) else "\u2013"
        return HeatCell(float(less_seed[row, column]), text, f"{label}, seed {seed}: {shown}")

    cells = [[cell(row, column) for column in range(len(table.seeds))] for row in rows]
    names, seeds = [table.labels[row] for row in rows], [str(seed) for seed in table.seeds]
    spread = float(np.nanstd(filled.mean(0), ddof=1))
    text = f"Seeds move all cells together by {metric.rough(spread)} (standard deviation), which pairing takes out."
    more = "" if len(rows) == len(table.labels) else f" The first {len(rows)} of {len(table.labels)} cells."
    return (
        Figure(
            "cells-by-seed",
            lambda narrow: heat(names, seeds, cells, ("cell", "seed"), narrow=narrow),
            f"{metric.label} of every trial, cell by seed. {text}",
            f"{metric.axis} of every trial; shaded by what remains when the seed's own effect is taken out. {text}{more}",
        ),
    )


def _looks(analysis: Analysis) -> str:
    looks = analysis.looks
    if not looks.recorded:
        return "not on record: one is assumed"
    numbers = list(dict.fromkeys(f"{seeds:.3g}" for seeds in looks.seeds))
    times = ("once", "twice")[len(looks.seeds) - 1] if len(looks.seeds) < 3 else f"{len(looks.seeds)} times"
    seeds = f"{', '.join(numbers)} seed{'' if numbers == ['1'] else 's'} a cell"
    return f"{times}, at {seeds}; planned before the first: {looks.planned}"


def _error(analysis: Analysis) -> str:
    looks = analysis.looks
    if not looks.recorded:
        return f"{100 * ALPHA:g}%, all of it for this look: had somebody looked and gone on, it would be more"
    return (
        f"{100 * looks.spent:.3g}% of {100 * ALPHA:g}% is spent; this look's statements hold with "
        f"{100 * (1 - looks.level):.4g}%. Looking again at the same seeds costs nothing; "
        "a look at more seeds spends some of the rest"
    )


def _seeds(analysis: Analysis) -> str:
    trials = analysis.results.trials
    lost = sum(len(cell.failures) for cell in analysis.cells)
    text = f"{len(analysis.seeds)}, the same in every cell"
    text += (
        f"; {lost} of {len(trials)} trials gave no number, which widens intervals and erases nothing" if lost else ""
    )
    if len(analysis.seeds) == 2:
        text += ". Two seeds give each pair one degree of freedom: only large differences among few values can be told"
    return text


def _resolution(analysis: Analysis) -> list[str]:
    """What one query moves the metric by, or its numbers show, and what seeds that come out equal are taken for."""
    metric, step = analysis.metric, analysis.resolution
    known = resolution_of(metric.key, (trial.metrics for trial in analysis.results.trials)) > 0
    finite = [value for cell in analysis.cells for value in cell.values.values()]
    if not step or (not known and step < _FINE * float(np.ptp(finite or [0.0]))):
        return []
    floor = "no seeds, however alike, count as varying by less than half of it"
    size = f"{step:.3g} {metric.unit}".strip()
    if known:
        return [f"one query moves {metric.label} by {size}; {floor}"]
    if len(set(finite)) == 1:
        return [
            f"every trial gave the same {metric.label}: nothing is known of how far seeds differ, so nothing is certain"
        ]
    return [f"nobody says what {metric.label} moves in; its numbers show steps of about {size}; {floor}"]


def _race(analysis: Analysis) -> list[str]:
    """When and why cells stopped, and that the page judges by all the race's blocks."""
    race = analysis.results.race
    if race is None or not race.settled:
        return []
    labels = {cell.cell.digest: cell.label for cell in analysis.cells}
    stops = "; ".join(f"{labels[digest]} {settled.sentence}" for digest, settled in race.settled.items())
    together = "The verdicts above keep what the intervals of all its blocks say together, each at its level"
    return [f"{stops}. {together}"]


def _stopped(analysis: Analysis) -> list[str]:
    """Which cells were stopped and where, and what the statements of the others are worth."""
    if not analysis.stopped:
        return []
    reasons: dict[str, list[str]] = {}
    for cell in analysis.stopped:
        reason = next(trial.reason for trial in cell.trials if trial.status == "stopped")
        reasons.setdefault(reason.partition(":")[0], []).append(f"{cell.label} ({reason.partition(': ')[2]})")
    listed = "; ".join(f"{at}: {', '.join(labels)}" for at, labels in reasons.items())
    return [
        f"{listed}. The curve shows only cells that were let finish, and is biased towards those that learn fast and whose "
        "seeds were lucky early. Their differences are judged at the share of the error that they would have had among all "
        "cells; no optimum, importance or agreement with a paper is claimed, and the best one's own number flatters it"
    ]


def _noise(knob: KnobAnalysis) -> str:
    verdict = knob.sensitivity
    if verdict.noise is None:
        return ""
    borrowed = f"each pair borrows {verdict.prior_df:.2g} degrees of freedom from the others"
    if not math.isfinite(verdict.epsilon):
        return f"two seeds cannot tell whether it is equal in all values; {borrowed}"
    if len(verdict.labels) < 3:
        return f"two values have one difference, which stands on its own spread; {borrowed}"
    return f"epsilon {verdict.epsilon:.2f} (1: equal and independent; small: seeds react differently to it); {borrowed}"
