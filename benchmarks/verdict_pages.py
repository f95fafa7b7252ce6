"""Measure false claims of whole reports after confirmations and races, and at ends of a range. `verdicts.py` prints them.

Noise: 0.5, 1 or 2 within seeds; 0.5 to 2 over the cells; 0.5 with the last, first or middle cell 4 times as noisy; 0.5
rounded to steps of 0.5; 6 % of the trials lost; the three together. Seeds move all cells by 1 s.d.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import Array, rate

from tune_dml.planning.plan import Plan
from tune_dml.record.judging.looks import look_at
from tune_dml.report.analysis import Analysis, analyse
from tune_dml.report.questions.configurations.configuration import configuration
from tune_dml.report.questions.configurations.confirmation import confirmation
from tune_dml.report.questions.knobs.optimum import locate_optimum
from tune_dml.space import Baseline, Grid, Knob
from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.sequential.racing import next_look
from tune_dml.stats.verdicts.best import compare_with_best

sys.path.append(str(Path(__file__).parents[1] / "tests"))
_SIZES = {"0.5": 0.5, "1": 1.0, "2": 2.0, "lost": 1.0}
_NOISY = {"last 4x": -1, "first 4x": 0, "middle 4x": 5}
_KINDS = (*_SIZES, "0.5 to 2", *_NOISY, "steps", "all")
_STEP, _MARGIN = 0.5, 1.0
_X = np.linspace(0, 1, 10)
_CURVES: dict[str, Array] = {
    "flat": 0 * _X,
    "peak": -16 * (_X - _X[5]) ** 2,
    "best next to an end": -8 * (_X - _X[1]) ** 2,
    "slope": 4 * _X,
    "saturating": 4 * (1 - np.exp(-5 * _X)),
    "both ends best": -3.0 * ((_X > 0) & (_X < 1)),
    "last two best": -3.0 * (_X < 0.8),
    "middle and end best": -3.0 * ((np.arange(10) != 5) & (_X < 1)),
}
_CONFIRMED = {"5, 10, 20": ((5, 1), (10, 1), (20, 1)), "3 of five cells, 5, 8, 12": ((3, 5), (5, 1), (8, 1), (12, 1))}
"""Fresh seeds and number of confirmed cells at each look."""
_TRUTHS = {"equal": np.zeros(9), "peak": np.array([-2.25, -1.5, -2.25, -0.75, 0, -0.75, -2.25, -1.5, -2.25])}


def _draw(kind: str, means: Array, seeds: int, sweeps: int, rng: np.random.Generator) -> tuple[Array, float]:
    """Return values (sweeps, cells, seeds) and their step."""
    spread = np.full((sweeps, len(means)), _SIZES.get(kind, 0.5))
    if kind in {"0.5 to 2", "all"}:
        spread = rng.permuted(np.broadcast_to(np.linspace(0.5, 2, len(means)), spread.shape), axis=1)
    elif kind in _NOISY:
        spread[:, _NOISY[kind]] *= 4
    noise = spread[..., None] * rng.standard_normal((*spread.shape, seeds)) + rng.standard_normal((sweeps, 1, seeds))
    values, step = 50 + means[:, None] + noise, _STEP if kind in {"steps", "all"} else 0.0
    values = np.round(values / step) * step if step else values
    return np.where(rng.random(values.shape) < (0.06 if kind in {"lost", "all"} else 0.0), np.nan, values), step


def ends(sweeps: int) -> Iterable[str]:
    """Print false claims on where the optimum of ten values lies; 4 % is the level of a planned look."""
    yield "10 values: 'at the edge' / 'inside' is claimed, of these wrong 'edge' / 'inside'; 3, 5, 10 seeds"
    for name, means in _CURVES.items():
        for kind in _KINDS:
            row = []
            for seeds in (3, 5, 10):
                rng = np.random.default_rng([len(name), _KINDS.index(kind), seeds])
                edge, inside, wrong = _places(*_draw(kind, means, seeds, sweeps, rng), means == means.max())
                row.append(f"{edge.mean():.2f} / {inside.mean():.2f}, {rate(edge & wrong)}/ {rate(inside & wrong)}")
            yield f"{name:>20} {kind:>9}:  " + "   ".join(row)


def _places(values: Array, step: float, best: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], ...]:
    """Return whether a report says that the optimum is at an end, inside, and whether such a statement is wrong."""
    noise = fit_pairs(values, step)
    pairs = all_pairs(values, 0.04, noise)
    found = compare_with_best(values, 0.04, noise, pairs=pairs.tightened()).candidates
    ends, matters = found[:, [0, -1]], (pairs.low > 0.2).any((1, 2))
    edge, inside = matters & ends.any(1) & (found.sum(1) == 1), matters & ~ends.any(1)
    is_wrong = np.where(edge, (found != best).any(1), best[[0, -1]].any())
    return edge, inside, is_wrong


def confirmed_pages(sweeps: int) -> Iterable[str]:
    """Print false claims, bias and coverage of the gain on fresh seeds, of whole reports."""
    yield "Confirmed cells equal to the baseline: a gain or loss is claimed at any look; bias (standard error) and wrong"
    yield "intervals of the last look"
    for name, steps in _CONFIRMED.items():
        for kind in _KINDS:
            rng = np.random.default_rng([len(name), _KINDS.index(kind)])
            values, step = _draw(kind, np.zeros(6), 3 + steps[-1][0], sweeps // 4, rng)
            found = [_confirm(table, steps, step) for table in values]
            gains = np.array([[gain.mean, gain.low, gain.high] for _, gain in found])
            bias, error = np.nanmean(gains[:, 0]), np.nanstd(gains[:, 0]) / len(gains) ** 0.5
            missed = (gains[:, 1] > 0) | (gains[:, 2] < 0)
            claimed = rate([any_claim for any_claim, _ in found])
            yield f"{name:>26} {kind:>9}: {claimed}  {bias:+.3f} ({error:.3f})  {rate(missed)}"


def _confirm(table: Array, steps: Iterable[tuple[int, int]], step: float) -> tuple[bool, Any]:
    """Return whether any report on a confirmation makes a claim, and the last gain."""
    from helpers.claims import results_with

    plan = _plan("knob")
    sweep, any_claim, looks, gain = results_with(replace(plan, seeds=(0, 1, 2)), table[:, :3]), False, (), None
    ranked = [cell.cell for cell in analyse(sweep).selectable if not cell.cell.baseline]
    trials: dict[str, Any] = {}
    for seeds, top in steps:
        cells = tuple(cell for cell in plan.cells if cell.baseline or cell in ranked[:top])
        rows = [plan.cells.index(cell) for cell in cells]
        fresh = results_with(replace(plan, cells=cells, seeds=tuple(range(3, 3 + seeds))), table[rows, 3 : 3 + seeds])
        trials |= {trial.key: _with_queries(trial, step) for trial in fresh.trials}
        ended = {key: trial.status for key, trial in trials.items()}
        looks = (*looks, look_at(trials, ended, "confirm", seeds, "confirmation"))
        results = replace(sweep, confirmed=tuple(trials.values()), confirmation_looks=looks)
        found = confirmation.section(analyse(results), None).data["confirmation"]
        gain = next(cell.gain for cell in found.cells if cell.label == found.winner)
        any_claim |= found.verdict in {"holds", "worse"}
    return any_claim, gain


def raced_pages(sweeps: int) -> Iterable[str]:
    """Print false claims, wrong intervals and contradictions of whole reports after races of a 3 x 3 grid."""
    yield f"Races of a 3 x 3 grid and a baseline, at most 10 or 40 seeds, margin {_MARGIN:g}: any, and the most frequent"
    for name, truth in _TRUTHS.items():
        for limit in (10, 40):
            for kind in _KINDS:
                rng = np.random.default_rng([len(name), limit, _KINDS.index(kind)])
                values, step = _draw(kind, np.array([0.0, *truth]), limit, sweeps // 20, rng)
                wrong = [_errors(*_race(table, step), np.array([0.0, *truth])) for table in values]
                counts = Counter(error for errors in wrong for error in errors).most_common(3)
                most = ", ".join(f"{error} {count / len(values):.3f}" for error, count in counts)
                yield f"{name:>6} {limit:2d} seeds {kind:>9}: {rate([bool(errors) for errors in wrong])}  {most}"


def _race(table: Array, step: float) -> tuple[Plan, Analysis]:
    from helpers.claims import raced

    plan, blocks = replace(_plan("grid"), seeds=tuple(range(table.shape[1]))), [3]
    while blocks[-1] < table.shape[1]:
        blocks.append(min(table.shape[1], next_look(blocks[-1])))
    results = raced(plan, table, _MARGIN, blocks, step)
    return plan, analyse(replace(results, trials=tuple(_with_queries(trial, step) for trial in results.trials)))


def _errors(plan: Plan, analysis: Analysis, truth: Array) -> set[str]:
    """Return the false claims and wrong intervals of a report."""
    from helpers.claims import contradictions

    by_cell = {cell.label: mean for cell, mean in zip(plan.cells, truth.tolist(), strict=True)}
    errors = {f"contradiction: {text}" for text in contradictions(analysis)}
    for knob in analysis.knobs:
        by_value: dict[str, list[float]] = {label: [] for label in knob.labels}
        for cell in plan.cells[1:]:
            by_value[knob.labels[knob.levels.index(cell.knobs[knob.path])]].append(by_cell[cell.label])
        means = {label: float(np.mean(numbers)) for label, numbers in by_value.items()}
        errors |= set(_errors_of_knob(analysis, knob, means))
    rows = analysis.against_baseline or ()
    gaps = [(row.low, row.high, by_cell[row.label] - truth[0]) for row in rows]
    section = configuration.section(analysis, None).data
    best, gain = section["configuration"], section["configuration"]["gain"]
    own = by_cell[best["label"]]
    if best["candidates"] and not any(by_cell[label] == truth.max() for label in best["candidates"]):
        errors.add("the best configuration left out")
    checked = {
        "baseline": gaps,
        "score": [(best["score"].low, best["score"].high, 50 + own)],
        "gain": [(gain.low, gain.high, own - truth[0])],
        "interaction": [(pair.low, pair.high, 0.0) for pair in section["interactions"]],
    }
    misses = {name for name, bounds in checked.items() if any(low > at or high < at for low, high, at in bounds)}
    return errors | misses


def _errors_of_knob(analysis: Analysis, knob: Any, means: dict[str, float]) -> Iterator[str]:
    verdict, at, top = knob.sensitivity, locate_optimum(analysis, knob), max(means.values())
    if (verdict.verdict == "sensitive") != (top - min(means.values()) > _MARGIN) and verdict.verdict != "undecided":
        yield verdict.verdict
    gaps = ((row, means[row.first] - means[row.second]) for row in verdict.differences)
    if any(row.low > gap + 1e-9 or row.high < gap - 1e-9 for row, gap in gaps):
        yield "difference of values"
    if at.candidates and not any(means[label] == top for label in at.candidates):
        yield "the best value left out"
    if any(top - means[label] > behind + 1e-9 for label, behind in at.behind if at.candidates):
        yield "distance to the best"
    best = [label for label, mean in means.items() if mean == top]
    ends = {knob.labels[0], knob.labels[-1]}
    if (at.verdict == "edge" and best != list(at.candidates)) or (at.verdict == "interior" and ends & set(best)):
        yield at.verdict


def _with_queries(trial: Any, step: float) -> Any:
    """Return a trial with the number of queries of which R@1 has this step."""
    return replace(trial, metrics={**trial.metrics, "val/queries": 100 / (step or 1e-4)}) if trial.metrics else trial


@cache
def _plan(name: str) -> Plan:
    from helpers.toys import plan_of, space_of

    values = Grid((0.1, 0.3, 1.0), "log")
    knobs = {
        "knob": (Knob("regularizer.rho", Grid((0.01, 0.1, 0.5, 0.9, 1.0), "log")),),
        "grid": (Knob("regularizer.eta", values), Knob("optim.lr", Grid((0.001, 0.01, 0.1), "log"))),
    }
    off, fixed = Baseline("off", {"regularizer.name": "none"}), {"loss.name": "triplet", "regularizer.name": "sec"}
    space = space_of(*knobs[name], baseline=off, fixed=fixed)
    return plan_of(space=space, seeds=3)
