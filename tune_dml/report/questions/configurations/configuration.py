"""Several knobs, or a search: which configuration is best, with what uncertainty, and which knob mattered?"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import ArmAnalysis, seed_values
from tune_dml.report.analysis.knob import KnobAnalysis, full_grid
from tune_dml.report.cells import delta_cells
from tune_dml.report.naming import confidence, prose_label, symbol_of, value_label
from tune_dml.report.questions import question
from tune_dml.report.questions.knobs.optimum import locate_optimum
from tune_dml.report.section import Card, Section, Table, Text
from tune_dml.report.steps import Step, add_seeds, explain_no_extension, extend
from tune_dml.space import Knob
from tune_dml.stats.forecast import Forecast, best_is_known, forecast_seeds
from tune_dml.stats.intervals import size_of, without_rounding
from tune_dml.stats.intervals.contrasts import estimate_contrasts, interaction
from tune_dml.stats.verdicts.best import compare_with_best
from tune_dml.stats.verdicts.selection import ALGORITHM, SelectedBest, score_of_best
from tune_dml.text import joined

_QUESTION = "which configuration is the best"
_ANSWERS = {
    "sensitive": "yes",
    "insensitive": "no",
    "undecided": "undecided",
    "effect": "an effect is significant over all configurations, its size is undecided",
    "stopped": "undecided, since configurations were stopped early by their results",
    "not crossed": "undecided, since not all values were tried with the same settings of the other knobs (a grid would show it)",
}
_ADAPTIVE = frozenset({"tpe", "gp", "cmaes", "nsga2"})
"""Searches that propose configurations close to those that were good under the same seeds."""
_MAX_CONTRASTS = 2000  # maximum number of double differences of a pair of knobs; with more, no interaction is estimated


@dataclass(frozen=True)
class Score:
    """A mean with its interval on seeds that did not select the configuration; NaN if unknown."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Configuration:
    """The best configuration found."""

    label: str
    score: Score
    gain: Score | None  # gain over the baseline; None without a baseline
    table_mean: float  # mean over all seeds, including those that selected it, as in the table of cells
    candidates: tuple[str, ...]
    cells: int  # number of configurations with a result
    alpha: float
    algorithm: str = ALGORITHM


@dataclass(frozen=True)
class _Interaction:
    """The most significant double difference of two knobs: (a, c) - (b, c) - (a, d) + (b, d)."""

    first: str
    second: str
    levels: tuple[str, str, str, str]
    estimate: float
    low: float
    high: float
    verdict: str  # `interact`, `do not interact` or `undecided`


@question(order=301, unanswered={"configuration": None, "interactions": ()})
def configuration(analysis: Analysis) -> Section | None:
    """Answer for several knobs, or for a search; None for a single listed knob, or if no cell has a result."""
    plan = analysis.results.plan
    if max(len(arm.knobs) for arm in analysis.arms) < 2 and not plan.search.num_samples:
        return None
    best = _best(analysis)
    if best is None:
        return None
    sentence = _sentence(analysis, best)
    tables = [table for arm in analysis.arms if not arm.baseline for table in _pairs_of(analysis, arm)]
    pairs = [_interaction(analysis, *table, len(tables)) for table in tables]
    importance = [_importance(analysis.knobs), *([_interaction_sentence(analysis, pairs)] if pairs else [])]
    ahead = _ahead(analysis, best)
    steps = _steps(analysis, best, ahead)
    return Section(
        "configuration",
        "Which configuration is best, and which knob mattered?",
        "Best configuration",
        (Text(sentence), Text(" ".join(importance)), _table(analysis, pairs)),
        Card(best.label, "sensitive"),
        (sentence, *importance),
        headline=f"{_headline(analysis, best)}{_interaction_headline(pairs)}",
        steps=steps,
        hint=explain_no_extension(ahead, _QUESTION, "Confirming the best few on fresh seeds"),
        data={
            "configuration": {**vars(best), "sentence": sentence, "command": steps[0].command if steps else ""},
            "interactions": pairs,
        },
    )


def _headline(analysis: Analysis, best: Configuration) -> str:
    if analysis.stopped:
        return f"The best configuration found is {prose_label(best.label)}, of the {best.cells} that finished training."
    if len(best.candidates) == 1:
        return f"The best configuration is {prose_label(best.label)}."
    clause = f"{len(best.candidates)} of {best.cells} cannot be ruled out"
    if len(best.candidates) == best.cells:
        clause = f"none of the {best.cells} can be ruled out"
    return f"The best configuration found is {prose_label(best.label)}, but {clause}."


def _steps(analysis: Analysis, best: Configuration, ahead: Forecast | None) -> tuple[Step, ...]:
    search = analysis.results.plan.search
    if not search.num_samples or analysis.stopped:
        return ()
    if len(best.candidates) == best.cells > 2:  # confirming the best few costs less
        return ()
    if len(best.candidates) > 1 or not math.isfinite(best.score.low):
        return add_seeds(analysis.results, _QUESTION, 30, ahead)
    settles = "whether there is a better configuration"
    return extend(analysis.results, settles, 20, num_samples=search.num_samples)


def _ahead(analysis: Analysis, best: Configuration) -> Forecast | None:
    """Forecast what further seeds would show; None unless a search has several candidates."""
    if not analysis.results.plan.search.num_samples or analysis.stopped or len(best.candidates) < 2:
        return None
    values, step, level_at = analysis.sign * analysis.table.values, analysis.resolution, analysis.looks.level_at
    known = best_is_known(step)
    return forecast_seeds(values, len(analysis.seeds), level_at, known, scale=analysis.margin, resolution=step)


def _best(analysis: Analysis) -> Configuration | None:
    table, level, sign = analysis.table, analysis.looks.level, analysis.sign
    if not table.labels:
        return None
    values, step = sign * table.values, table.resolution
    candidates = _candidates(analysis)
    selected = score_of_best(values, alpha=level, resolution=step)
    # lost seeds may raise the mean of a configuration that is significantly worse
    baseline = analysis.baseline.label if analysis.baseline else None
    if candidates and table.labels[int(selected.best)] not in candidates:
        kept = [label in candidates or label == baseline for label in table.labels]
        values = np.where(np.array(kept)[:, None], values, np.nan)
        selected = score_of_best(values, alpha=level, resolution=step)
    label, mean, cells = table.labels[int(selected.best)], sign * float(selected.naive), len(table.labels)
    if analysis.stopped:  # all seeds selected the configuration
        return Configuration(label, Score(mean, math.nan, math.nan), None, mean, (), cells, level)
    gain = None
    if baseline in table.labels and cells > 1:
        gain = _score(score_of_best(values, table.labels.index(baseline), alpha=level, resolution=step), 1.0)
    return Configuration(label, _score(selected, sign), gain, mean, candidates, cells, level)


def _candidates(analysis: Analysis) -> tuple[str, ...]:
    """Return the configurations that may be the best, except those that other sections call worse."""
    table, sign = analysis.table, analysis.sign
    if analysis.pairs is None:
        return table.labels
    pairs = analysis.pairs.times(sign)
    candidates = compare_with_best(sign * table.values, analysis.looks.level, table.noise, pairs=pairs).candidates
    against = analysis.against_baseline or ()
    worse = {row.label for row in against if row.verdict == "worse"}
    if analysis.baseline is not None and any(row.verdict == "better" for row in against):
        worse.add(analysis.baseline.label)
    worse.update(*(_beaten_cells(analysis, knob) for knob in analysis.knobs if knob.cells))
    rows = zip(table.labels, candidates.tolist(), strict=True)
    return tuple(label for label, is_candidate in rows if is_candidate and label not in worse)


def _beaten_cells(analysis: Analysis, knob: KnobAnalysis) -> set[str]:
    """Return the cells whose value is worse than another value, as the section of the knob shows.

    The knob has one cell per value.
    """
    cells, bounds = dict(zip(knob.labels, knob.cells, strict=True)), knob.sensitivity.bounds
    if bounds is None:
        return set()
    beaten = np.atleast_1d((bounds.times(analysis.sign).low > 0).any(0)).tolist()
    worse = {cells[label] for label, lost in zip(knob.sensitivity.labels, beaten, strict=True) if lost}
    best = locate_optimum(analysis, knob)
    if best.candidates:
        worse |= {cells[label] for label in knob.sensitivity.labels if label not in best.candidates}
    return worse


def _score(selected: SelectedBest, sign: float) -> Score:
    """Return a score with the metric's own sign; the interval is NaN unless both ends are finite."""
    low, high = sorted((sign * float(selected.low), sign * float(selected.high)))
    is_finite = math.isfinite(low) and math.isfinite(high)
    return Score(sign * float(selected.mean), *((low, high) if is_finite else (math.nan, math.nan)))


def _sentence(analysis: Analysis, best: Configuration) -> str:
    metric = analysis.metric
    baseline = analysis.baseline.label if analysis.baseline else ""
    text = f"The best configuration found is {best.label}"
    if analysis.stopped:
        score = f"{metric.label} {metric.number(best.score.mean)} on the seeds that selected it"
        optimistic = "This mean is optimistic; `confirm` measures it on fresh seeds."
        return f"{text}, of the {best.cells} that finished training: {score}. {optimistic}"
    if not math.isfinite(best.score.low):
        known = "one seed does" if len(analysis.seeds) < 2 else "seeds that configurations do not share do"
        return f"{text}, but {known} not show how certain that is."
    spread = metric.interval(*metric.level_ends(best.score.low, best.score.high))
    text += f": {metric.label} {metric.number(best.table_mean)} on all seeds, and"
    text += f" {metric.number(best.score.mean)} ({confidence(best.alpha)} interval {spread}) on seeds that did not select it"
    if best.gain is not None and best.label != baseline and math.isfinite(best.gain.mean):
        ends = metric.interval(*metric.change_ends(best.gain.low, best.gain.high))
        better = f"{metric.amount(abs(best.gain.mean))} {'better' if best.gain.mean > 0 else 'worse'} than {baseline}"
        if metric.amount(abs(best.gain.mean)) == metric.amount(0.0):
            better = f"no better than {baseline}"
        text += f", {better} (gain {ends})" if ends else f", {better}"
    search = analysis.results.plan.search
    if search.num_samples and search.method in _ADAPTIVE:
        text += f". {search.method} chose where to search by all seeds, so this may still be optimistic"
    candidates = len(best.candidates)
    if candidates == 1:
        text += ". It is significantly the best"
    elif candidates == best.cells:
        text += f". None of the {candidates} configurations can be ruled out as the best"
    else:
        text += f". {candidates} of {best.cells} configurations cannot be ruled out as the best"
    diverged = sum(cell.diverged for cell in analysis.cells)
    return f"{text}. {diverged} of {len(analysis.cells)} configurations diverged." if diverged else f"{text}."


def _importance(knobs: Sequence[KnobAnalysis]) -> str:
    by_answer: dict[str, list[str]] = {answer: [] for answer in _ANSWERS.values()}
    for knob in knobs:
        verdict: str = knob.sensitivity.verdict
        if knob.isolated.problem:
            verdict = "effect" if knob.sensitivity.effect else "stopped" if knob.stopped else "not crossed"
        by_answer[_ANSWERS[verdict]].append(knob.symbol)
    average = ", averaged over the others" if any(knob.isolated.average for knob in knobs) else ""
    answers = "; ".join(f"{joined(names)}: {answer}" for answer, names in by_answer.items() if names)
    return f"Does the knob matter{average}? {answers}."


def _pairs_of(analysis: Analysis, arm: ArmAnalysis) -> list[tuple[ArmAnalysis, tuple[Knob, Knob], list[list[int]]]]:
    """Return the arm, two of its knobs, and the level of each of the two in every cell; empty without a full grid."""
    grid = full_grid(arm)
    if grid is None or not all(cell.values for cell in arm.cells) or len(analysis.seeds) < 2:
        return []
    ranks, sizes = grid
    rows = [list(column) for column in zip(*ranks, strict=True)]
    return [
        (arm, (arm.knobs[i], arm.knobs[k]), [rows[i], rows[k]])
        for i, k in combinations(range(len(sizes)), 2)
        if 0 < math.comb(sizes[i], 2) * math.comb(sizes[k], 2) <= _MAX_CONTRASTS
    ]


def _interaction(
    analysis: Analysis, arm: ArmAnalysis, knobs: tuple[Knob, Knob], rows: list[list[int]], pairs: int
) -> _Interaction:
    """Judge a pair of knobs; all `pairs` share the error."""
    cells = arm.cells
    values = seed_values(cells, analysis.seeds)
    weights, level, step = interaction(*rows), analysis.looks.level / pairs, analysis.resolution
    effects = estimate_contrasts(values, weights, level, resolution=step)
    # "do not interact" needs all contrasts to be small, so their level is not corrected
    single = estimate_contrasts(values, weights, 2 * level, comparisons=1, resolution=step)
    lower = np.maximum(effects.low, -effects.high)
    index = int(without_rounding(lower, size_of(values).max()).argmax())

    def label(side: int, row: int) -> str:
        cell = cells[rows[side].index(row)]
        return value_label(knobs[side], cell.cell.knobs[knobs[side].path])

    (a, b), (c, d) = list(product(*(combinations(sorted(set(side)), 2) for side in rows)))[index]
    flat = bool((np.maximum(-single.low, single.high) < analysis.margin).all())
    flat = flat and not any(cell.diverged for cell in cells)  # a value that diverges beside another one interacts
    verdict = "do not interact" if flat else "interact" if lower[index] > 0 else "undecided"
    first, second = (f"{symbol_of(knob)} of {arm.name}" if arm.name else symbol_of(knob) for knob in knobs)
    estimate, low, high = (float(side[index]) for side in (effects.estimate, effects.low, effects.high))
    levels = (label(0, a), label(0, b), label(1, c), label(1, d))
    return _Interaction(first, second, levels, estimate, low, high, verdict)


def _interaction_sentence(analysis: Analysis, pairs: Sequence[_Interaction]) -> str:
    wordings = {
        "interact": "{} and {} interact",
        "do not interact": f"{{}} and {{}} interact by less than {analysis.metric.rough(analysis.margin)}",
        "undecided": "it is undecided whether {} and {} interact",
    }
    text = "; ".join(wordings[pair.verdict].format(pair.first, pair.second) for pair in pairs)
    return f"{re.sub('^it', 'It', text)}."  # a symbol keeps its case: m and M are two knobs


def _interaction_headline(pairs: Sequence[_Interaction]) -> str:
    interacting = [f"{pair.first} and {pair.second}" for pair in pairs if pair.verdict == "interact"]
    if not interacting:
        return ""
    named = interacting[0] if len(interacting) == 1 else f"{len(interacting)} pairs of knobs"
    others = "the other" if len(interacting) == 1 else "the others"
    return f" {named} interact: statements about one of them are averages over {others}."


def _table(analysis: Analysis, pairs: Sequence[_Interaction]) -> Table:
    metric = analysis.metric
    rows = [
        (p.first, p.second, " ".join(p.levels), *delta_cells(metric, p.estimate, p.low, p.high), p.verdict)
        for p in pairs
    ]
    caption = (
        "Interactions: for each pair of knobs the most significant double difference, (a, c) - (b, c) - (a, d) + (b, d), "
        "averaged over the other knobs. Simultaneous intervals within seeds."
    )
    columns = ("first knob", "second knob", "a, b, c, d", "double difference", "low", "high", "verdict")
    return Table("interactions", caption, columns, rows, folded="Interactions in numbers")
