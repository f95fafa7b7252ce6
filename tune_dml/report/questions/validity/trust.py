"""Can the verdicts be trusted? Show the trials by seed, the assumptions, lost seeds and the error of interim looks."""

import math

import numpy as np

from tune_dml.record.judging.resolution import resolution_of
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.report.analysis.comparisons import ALPHA
from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.drawing.charts import HeatCell, draw_heat_map
from tune_dml.report.questions import question
from tune_dml.report.section import Facts, Figure, Fold, Section, Text
from tune_dml.stats.intervals.contrasts import fill_holes

_MAX_FIELDS = 1500  # maximum number of trials in the figure of cells by seed
_NEAR_LIMIT = 5.0  # distance of a mean to 0 or 100 %, in points, from which on noise is often skewed
_MIN_RESOLUTION = 0.01  # smallest estimated resolution that is mentioned, as a share of the range of all results


@question(order=340, unanswered={"trust": None})
def trust(analysis: Analysis) -> Section | None:
    """State the assumptions of the verdicts; None before any trial has ended."""
    looks = analysis.looks
    if not looks.seeds[-1]:
        return None
    text = (
        "Every test compares cells within seeds. Cells may be unequally noisy, and seeds may react differently to a knob. "
        f"All statements of one table hold at once, over all interim looks, with an error rate of {100 * ALPHA:g}%. "
        "The interval of a mean by itself, as of the best configuration's score, is too narrow if noise is skewed: only "
        "differences cancel the skew that cells share."
    )
    if _is_near_limit(analysis):
        text += (
            f" {analysis.metric.label[0].upper()}{analysis.metric.label[1:]} is near its limit, where noise is skewed: if two "
            "values differ by exactly what matters, up to 12% of sweeps say that the knob does not matter."
        )
    facts = [
        ("Looks", _looks(analysis)),
        ("Error", _error(analysis)),
        ("Seeds", _seeds(analysis)),
        ("Resolution", _resolution(analysis)),
        ("Race", _race(analysis)),
        ("Stopped early", _stopped(analysis)),
        *((f"Noise over {knob.symbol}", _noise(knob)) for knob in analysis.knobs),
    ]
    stated = Facts([(name, fact) for name, fact in facts if fact])
    return Section(
        "trust",
        "Can I trust it?",
        "Trust",
        (*_figures(analysis), Fold("Assumptions, interim looks and error spent", (Text(text), stated))),
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


def _is_near_limit(analysis: Analysis) -> bool:
    ends = [min(cell.mean, 100 - cell.mean) for cell in analysis.cells if cell.values]
    return analysis.metric.percent and min(ends, default=100.0) < _NEAR_LIMIT


def _figures(analysis: Analysis) -> tuple[Figure, ...]:
    """Show every trial, including lost ones, shaded by its result without the common effect of its seed."""
    table, metric = analysis.table, analysis.metric
    if not len(table.labels) or len(table.seeds) < 2 or not np.isfinite(table.values).any():
        return ()
    filled = fill_holes(table.values)[0]
    without_seed = table.values - filled.mean(0, keepdims=True) + filled.mean()
    shades = dict(zip(table.labels, without_seed.tolist(), strict=True))
    shown = [cell for cell in analysis.cells if cell.label in shades or cell.failures]
    if len(shown) < 2:
        return ()
    labels = [cell.label for cell in shown][: max(4, _MAX_FIELDS // len(table.seeds))]

    def field(cell: CellAnalysis, column: int) -> HeatCell:
        seed = table.seeds[column]
        if (value := cell.values.get(seed)) is not None:
            number = metric.number(value)
            return HeatCell(shades[cell.label][column], number, f"{cell.label}, seed {seed}: {number}")
        lost = "; ".join(why for trial, why in cell.failures if trial.seed == seed) or "no result yet"
        return HeatCell(math.nan, "\u2013", f"{cell.label}, seed {seed}: {lost}")

    fields = [[field(cell, column) for column in range(len(table.seeds))] for cell in shown[: len(labels)]]
    seeds = [str(seed) for seed in table.seeds]
    spread = float(np.nanstd(filled.mean(0), ddof=1))
    text = f" Seeds move all cells together by {metric.rough(spread)} (standard deviation), which pairing removes."
    text = text if len(table.labels) > 1 else ""  # with one cell, seeds cannot be distinguished from noise
    more = "" if len(shown) == len(labels) else f" The first {len(labels)} of {len(shown)} cells."
    return (
        Figure(
            "cells-by-seed",
            lambda narrow: draw_heat_map(labels, seeds, fields, ("cell", "seed"), narrow=narrow),
            f"{metric.label} of every trial, cell by seed.{text}",
            f"{metric.axis} of every trial; shaded by the result without the seed's common effect.{text}{more}",
        ),
    )


def _looks(analysis: Analysis) -> str:
    looks = analysis.looks
    if not looks.recorded:
        return "not recorded; one is assumed"
    numbers = list(dict.fromkeys(f"{seeds:.3g}" for seeds in looks.seeds))
    times = ("once", "twice")[len(looks.seeds) - 1] if len(looks.seeds) < 3 else f"{len(looks.seeds)} times"
    seeds = f"{', '.join(numbers)} seed{'' if numbers == ['1'] else 's'} a cell"
    return f"{times}, at {seeds}; planned before the first: {looks.planned}"


def _error(analysis: Analysis) -> str:
    looks = analysis.looks
    if not looks.recorded:
        return f"{100 * ALPHA:g}%, all spent on this look; earlier unrecorded looks would raise it"
    return (
        f"{100 * looks.spent:.3g}% of {100 * ALPHA:g}% is spent; intervals of this look have "
        f"{100 * (1 - looks.level):.4g}% confidence. Looking again at the same seeds costs nothing; "
        "a look at more seeds spends part of the rest"
    )


def _seeds(analysis: Analysis) -> str:
    trials = analysis.results.trials
    lost = sum(len(cell.failures) for cell in analysis.cells)
    text = f"{len(analysis.seeds)}, the same in every cell"
    text += f"; {lost} of {len(trials)} trials gave no result, which widens intervals" if lost else ""
    if len(analysis.seeds) == 2:
        text += ". With two seeds each pair has one degree of freedom, so only large differences can be significant"
    return text


def _resolution(analysis: Analysis) -> str:
    """Describe the metric's resolution, and the noise that is assumed for equal results; may be empty."""
    metric, step = analysis.metric, analysis.resolution
    is_known = resolution_of(metric.key, (trial.metrics for trial in analysis.results.trials)) > 0
    finite = [value for cell in analysis.cells for value in cell.values.values()]
    if not step or (not is_known and step < _MIN_RESOLUTION * float(np.ptp(finite or [0.0]))):
        return ""
    floor = "the noise over seeds is assumed to be at least half of that"
    size = f"{step:.3g} {metric.unit}".strip()
    if is_known:
        return f"one query changes {metric.label} by {size}; {floor}"
    if len(set(finite)) == 1:
        unknown = "so the noise over seeds is unknown and nothing is significant"
        return f"every trial gave the same {metric.label}, {unknown}"
    return f"the results of {metric.label} show steps of about {size}; {floor}"


def _race(analysis: Analysis) -> str:
    race = analysis.results.race
    if race is None or not race.settled:
        return ""
    labels = {cell.cell.digest: cell.label for cell in analysis.cells}
    stops = "; ".join(f"{labels[digest]} {settled.sentence}" for digest, settled in race.settled.items())
    return f"{stops}. The verdicts combine the intervals of all its blocks, each at its level"


def _stopped(analysis: Analysis) -> str:
    if not analysis.stopped:
        return ""
    reasons: dict[str, list[str]] = {}
    for cell in analysis.stopped:
        reason = next(trial.reason for trial in cell.trials if trial.status == "stopped")
        reasons.setdefault(reason.partition(":")[0], []).append(f"{cell.label} ({reason.partition(': ')[2]})")
    listed = "; ".join(f"{at}: {', '.join(labels)}" for at, labels in reasons.items())
    return (
        f"{listed}. The curve shows only cells that finished training, and is biased towards cells that learn fast or were "
        "lucky early. Their differences get the share of the error that they would have among all cells. No optimum, "
        "importance or agreement with a paper is claimed, and the best mean is optimistic"
    )


def _noise(knob: KnobAnalysis) -> str:
    verdict = knob.sensitivity
    if verdict.noise is None:
        return ""
    degrees = f"{verdict.prior_df:.2g} degrees of freedom"
    borrowed = f"each pair borrows {degrees} from the others" if verdict.prior_df else "no pair borrows from the others"
    if not math.isfinite(verdict.epsilon):
        return f"two seeds cannot show whether all values are equally noisy; {borrowed}"
    if len(verdict.labels) < 3:
        return f"two values have a single difference, with its own standard error; {borrowed}"
    return f"epsilon {verdict.epsilon:.2f} (1: equal and independent; small: seeds react differently to it); {borrowed}"
