"""Several knobs, or a search: which configuration is best, with what uncertainty, and which knob mattered?"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Literal

import numpy as np

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import ArmAnalysis, seed_values
from tune_dml.report.analysis.knob import KnobAnalysis, level_key
from tune_dml.report.naming import prose_label, symbol_of, value_label
from tune_dml.report.questions import question
from tune_dml.report.questions.knobs.optimum import locate_optimum
from tune_dml.report.section import Block, Card, Section, Table, Text, delta_cell, text_cell
from tune_dml.report.steps import Step, add_seeds, explain_no_extension, extend
from tune_dml.space import Knob
from tune_dml.stats.forecast import Forecast, best_is_known, forecast_seeds
from tune_dml.stats.intervals.contrasts import estimate_contrasts, interaction
from tune_dml.stats.verdicts.best import compare_with_best
from tune_dml.stats.verdicts.selection import ALGORITHM, score_of_best
from tune_dml.text import joined

_QUESTION = "which configuration is the best"
_MAX_CONTRASTS = 2000
"""Maximum number of double differences of a pair of knobs; with more, no interaction is estimated."""


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
    gain: Score | None
    """Gain over the baseline; None without a baseline."""
    table_mean: float
    """Mean over all seeds, including those that selected it, as in the table of cells."""
    candidates: tuple[str, ...]
    """Configurations that cannot be ruled out as the best."""
    cells: int
    """Number of configurations with a result."""
    alpha: float
    algorithm: str = ALGORITHM


@dataclass(frozen=True)
class _Interaction:
    """The most significant double difference of two knobs: (a, c) - (b, c) - (a, d) + (b, d)."""

    first: str
    second: str
    levels: tuple[str, str, str, str]
    """Labels of a, b, c and d."""
    estimate: float
    low: float
    high: float
    verdict: Literal["interact", "do not interact", "undecided"]


@question(order=301, unanswered={"configuration": None, "interactions": ()})
def configuration(analysis: Analysis) -> Section | None:
    """Answer for several knobs, or for a search; None for a single listed knob, or if no cell has a result."""
    plan = analysis.results.plan
    if max(len(arm.knobs) for arm in analysis.arms) < 2 and not plan.search.num_samples:
        return None
    best = _best(analysis)
    if best is None:
        return None
    sentence, pairs = _sentence(analysis, best), _interactions(analysis)
    importance = [_importance(analysis.knobs), *([_interaction_sentence(pairs)] if pairs else [])]
    ahead = _ahead(analysis, best)
    steps = _steps(analysis, best, ahead)
    body: list[Block] = [Text(sentence), Text(" ".join(importance))]
    return Section(
        "configuration",
        "Which configuration is best, and which knob mattered?",
        "Best configuration",
        (*body, _table(analysis, pairs)),
        Card(best.label, "sensitive", "Which configuration is best?", sentence),
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
    table = analysis.table.times(analysis.sign)
    return forecast_seeds(
        table.values, len(analysis.seeds), analysis.looks.level_at, best_is_known(table.resolution),
        scale=analysis.margin, resolution=table.resolution,
    )  # fmt: skip


def _best(analysis: Analysis) -> Configuration | None:
    table, level, sign = analysis.table, analysis.looks.level, analysis.sign
    if not table.labels:
        return None
    values, step = sign * table.values, table.resolution
    candidates = _candidates(analysis)
    selected = score_of_best(values, alpha=level, resolution=step)
    # lost seeds may raise the mean of a configuration that is significantly worse
    if candidates and table.labels[int(selected.best)] not in candidates:
        kept = [
            label in candidates or label == (analysis.baseline and analysis.baseline.label) for label in table.labels
        ]
        values = np.where(np.array(kept)[:, None], values, np.nan)
        selected = score_of_best(values, alpha=level, resolution=step)
    if analysis.stopped:  # all seeds selected the configuration
        mean, label = float(selected.naive), table.labels[int(selected.best)]
        return Configuration(
            label, Score(sign * mean, math.nan, math.nan), None, sign * mean, (), len(table.labels), level
        )
    baseline = analysis.baseline.label if analysis.baseline else None
    gain = None
    if baseline in table.labels and len(table.labels) > 1:
        best = score_of_best(values, table.labels.index(baseline), alpha=level, resolution=step)
        gain = _score(float(best.mean), float(best.low), float(best.high), 1.0)
    return Configuration(
        table.labels[int(selected.best)],
        _score(float(selected.mean), float(selected.low), float(selected.high), sign),
        gain,
        sign * float(selected.naive),
        candidates,
        len(table.labels),
        level,
    )


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
    """Return the cells of a knob with one cell per value that the knob's section calls worse than another value."""
    cells, bounds = dict(zip(knob.labels, knob.cells, strict=True)), knob.sensitivity.bounds
    if bounds is None:
        return set()
    beaten = np.atleast_1d((bounds.times(analysis.sign).low > 0).any(0)).tolist()
    worse = {cells[label] for label, lost in zip(knob.sensitivity.labels, beaten, strict=True) if lost}
    best = locate_optimum(analysis, knob)
    if best.candidates:
        worse |= {cells[label] for label in knob.sensitivity.labels if label not in best.candidates}
    return worse


def _score(mean: float, low: float, high: float, sign: float) -> Score:
    """Return a score with the metric's own sign; the interval is NaN unless both ends are finite."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return Score(sign * mean, math.nan, math.nan)
    return Score(sign * mean, *sorted((sign * low, sign * high)))


def _sentence(analysis: Analysis, best: Configuration) -> str:
    metric, confidence = analysis.metric, f"{100 * (1 - best.alpha):.3g}% interval"
    baseline = analysis.baseline.label if analysis.baseline else ""
    text = f"The best configuration found is {best.label}"
    if analysis.stopped:
        score = f"{metric.label} {metric.number(best.score.mean)} on the seeds that selected it"
        return (
            f"{text}, of the {best.cells} that finished training: {score}. This mean is optimistic; `confirm` measures it "
            "on fresh seeds."
        )
    if not math.isfinite(best.score.low):
        return f"{text}, but one seed does not show how certain that is."
    spread = metric.interval(*metric.level_ends(best.score.low, best.score.high))
    text += f": {metric.label} {metric.number(best.table_mean)} on all seeds, and"
    text += f" {metric.number(best.score.mean)} ({confidence} {spread}) on seeds that did not select it"
    if best.gain is not None and best.label != baseline:
        ends = metric.interval(*metric.change_ends(best.gain.low, best.gain.high))
        better = f"{metric.amount(abs(best.gain.mean))} {'better' if best.gain.mean > 0 else 'worse'} than {baseline}"
        if metric.rough(best.gain.mean) == metric.rough(0.0):
            better = f"no better than {baseline}"
        text += f", {better} (gain {ends})"
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
    uncrossed = [knob.symbol for knob in knobs if knob.isolated.problem and not knob.sensitivity.effect]
    with_effect = [knob.symbol for knob in knobs if knob.isolated.problem and knob.sensitivity.effect]
    verdicts = {
        word: [knob.symbol for knob in knobs if knob.sensitivity.verdict == verdict and not knob.isolated.problem]
        for word, verdict in (("yes", "sensitive"), ("no", "insensitive"), ("undecided", "undecided"))
    }
    parts = [f"{joined(names)}: {word}" for word, names in verdicts.items() if names]
    average = ", averaged over the others" if any(knob.isolated.average for knob in knobs) else ""
    if with_effect:
        parts.append(f"{joined(with_effect)}: an effect is significant over all configurations, its size is undecided")
    if uncrossed:
        parts.append(
            f"{joined(uncrossed)}: undecided, since not all values were tried with the same settings of the other knobs (a "
            "grid would show it)"
        )
    return f"Does the knob matter{average}? {'; '.join(parts)}."


def _interactions(analysis: Analysis) -> tuple[_Interaction, ...]:
    """Judge each pair of knobs in every arm that is a full grid with results; the pairs share the error."""
    by_arm = [_interactions_in(analysis, arm) for arm in analysis.arms if not arm.baseline]
    pairs = sum(map(len, by_arm))
    return tuple(judge(pairs) for judges in by_arm for judge in judges)


def _interactions_in(analysis: Analysis, arm: ArmAnalysis) -> list[Callable[[int], _Interaction]]:
    """Return a function for each pair of an arm's knobs that judges their interaction.

    The argument of the functions is the number of pairs that share the error, which all arms determine together.
    """
    knobs, cells = arm.knobs, arm.cells
    tried = {tuple(level_key(cell.cell.knobs[knob.path]) for knob in knobs) for cell in cells}
    levels = [sorted({row[index] for row in tried}) for index in range(len(knobs))]
    is_full = len(tried) == math.prod(map(len, levels)) == len(cells) and all(cell.values for cell in cells)
    pairs = [(i, k) for i, k in combinations(range(len(knobs)), 2) if min(len(levels[i]), len(levels[k])) > 1]
    if not is_full or len(analysis.seeds) < 2:
        return []
    judges: list[Callable[[int], _Interaction]] = []
    for i, k in pairs:
        count = math.comb(len(levels[i]), 2) * math.comb(len(levels[k]), 2)
        if count <= _MAX_CONTRASTS:
            rows = [
                [levels[index].index(level_key(cell.cell.knobs[knobs[index].path])) for cell in cells]
                for index in (i, k)
            ]
            judges.append(partial(_interaction, analysis, arm, (knobs[i], knobs[k]), (rows[0], rows[1])))
    return judges


def _interaction(
    analysis: Analysis, arm: ArmAnalysis, knobs: tuple[Knob, Knob], rows: tuple[list[int], list[int]], pairs: int
) -> _Interaction:
    cells = arm.cells
    values = seed_values(cells, analysis.seeds)
    weights, level, step = interaction(*rows), analysis.looks.level / pairs, analysis.resolution
    effects = estimate_contrasts(values, weights, level, resolution=step)
    # "do not interact" needs all contrasts to be small, so their level is not corrected
    single = estimate_contrasts(values, weights, 2 * level, comparisons=1, resolution=step)
    lower = np.maximum(effects.low, -effects.high)
    index = int(lower.argmax())
    quadruples = [
        (a, b, c, d) for a, b in combinations(sorted(set(rows[0])), 2) for c, d in combinations(sorted(set(rows[1])), 2)
    ]

    def label(side: int, row: int) -> str:
        cell = cells[rows[side].index(row)]
        return value_label(knobs[side], cell.cell.knobs[knobs[side].path])

    a, b, c, d = quadruples[index]
    flat = bool((np.maximum(-single.low, single.high) < analysis.margin).all())
    verdict: Literal["interact", "do not interact", "undecided"] = "do not interact" if flat else "undecided"
    if lower[index] > 0 and not flat:
        verdict = "interact"
    names = [f"{symbol_of(knob)} of {arm.name}" if arm.name else symbol_of(knob) for knob in knobs]
    return _Interaction(
        names[0], names[1], (label(0, a), label(0, b), label(1, c), label(1, d)),
        float(effects.estimate[index]), float(effects.low[index]), float(effects.high[index]), verdict,
    )  # fmt: skip


def _interaction_sentence(pairs: Sequence[_Interaction]) -> str:
    wordings = {
        "interact": "{} and {} interact",
        "do not interact": "{} and {} do not interact",
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
    rows = tuple(
        (text_cell(pair.first), text_cell(pair.second), text_cell(" ".join(pair.levels)), delta_cell(metric, pair.estimate),
         delta_cell(metric, pair.low), delta_cell(metric, pair.high), text_cell(pair.verdict))
        for pair in pairs
    )  # fmt: skip
    caption = (
        "Interactions: for each pair of knobs the most significant double difference, (a, c) - (b, c) - (a, d) + (b, d), "
        "averaged over the other knobs. Simultaneous intervals within seeds."
    )
    columns = ("first knob", "second knob", "a, b, c, d", "double difference", "low", "high", "verdict")
    return Table("interactions", caption, columns, rows, folded="Interactions in numbers")
