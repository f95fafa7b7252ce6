"""Verdict on which cell is the best, and whether it lies inside the tested range of a knob.

    candidates   Hsu's (1984) multiple comparisons with the best: a cell is excluded if another cell is significantly
                 better, at one-sided alpha / (m - 1). A cell is also excluded if an interval of all pairs shows another
                 cell to be better, so that no value is called both best and significantly worse. Those intervals are
                 nearly always the wider ones: the true best remains with probability 1 - alpha
                 (benchmarks/verdict_contrasts.py). A candidate alone must also beat each other cell by the test of an
                 edge; a cell that it does not beat, which may be equally good, remains
    edge         an outermost value is significantly better than every other value. That is an intersection-union test,
                 not corrected for the other values, because all comparisons must succeed. Each end has alpha / 2,
                 because both ends may be equal and best, and its pairs' own paired t tests must agree. Such a value is
                 the only candidate. An edge is also claimed if the outermost value is the only candidate for another
                 reason
    interior     neither outermost value is a candidate; for equal cells this happens with probability alpha at most
    within       cells whose distance to the best is significantly below the margin (Edwards and Hsu 1983)

All statements are about the values that trained. `judge_best` takes a cells x seeds array in which larger is better. If
its rows are averages over a grid, `crossed` has the cells of the grid, whose noise is used.

`extension` gives the next values to try beyond an edge.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainables.methods import KnobDomain
from tune_dml.stats.intervals import Array, Mask, run_around
from tune_dml.stats.intervals.contrasts import FullGrid
from tune_dml.stats.intervals.noise import PairNoise, fit_pairs
from tune_dml.stats.intervals.simultaneous import Bounds, all_pairs, half_widths, own_half_widths
from tune_dml.stats.intervals.tuned import TunedLevels
from tune_dml.stats.sequential.racing import RaceStanding

Place = Literal["interior", "low edge", "high edge", "undecided"]

HSU = "Hsu's comparisons with the best on moderated paired t bounds; an edge by an intersection-union test"


@dataclass(frozen=True, eq=False)
class BestBounds:
    """Bounds on the distance of each cell to the best; arrays of shape (..., m)."""

    candidates: Mask  # cells that may be the best
    alone: Mask
    """The cell, if any, that is significantly better than every other; each cell is tested at half the level."""
    behind: Array  # upper bound of the distance to the best (0 or more), infinite if unknown


@dataclass(frozen=True)
class Best:
    """Position of the best value of an ordered knob."""

    place: Place
    reason: str
    candidates: tuple[int, ...]
    """Rows that may be the best, in the knob's order; empty if statements contradict each other."""
    within: tuple[int, ...]
    """Adjacent rows that are significantly within the margin of the best, in the knob's order."""
    behind: tuple[float, ...] = ()
    """Upper bound of each row's distance to the best, infinite if unknown; empty without a noise estimate."""


def compare_with_best(
    values: Array,
    alpha: float = 0.05,
    noise: PairNoise | None = None,
    *,
    pairs: Bounds | None = None,
    crossed: FullGrid | None = None,
    tuned: TunedLevels | None = None,
) -> BestBounds:
    """Bound each cell's distance to the best; larger is better.

    Args:
        values: cells x seeds, of one or many tables.
        alpha: the error that this look may spend.
        noise: noise of the values, if known already.
        pairs: reported intervals of all pairs, with which the bounds must agree; computed if not given.
        crossed: the cells behind the rows of one table, if the rows are averages; needs `pairs`.
        tuned: the settings of each row, if a row is the best of its settings.
    """
    noise = noise or fit_pairs(values)
    m = noise.shared.shape[-1]
    pairs = pairs or (all_pairs(values, alpha, noise) if tuned is None else tuned.pairs(alpha))
    lead = np.nan_to_num(pairs.estimate)
    if tuned is not None:
        family, single = lead - tuned.low(alpha, m - 1, sides=1), lead - tuned.low(alpha, 1, sides=2)
    elif crossed is not None:
        family, single = crossed.reach(alpha, m - 1), crossed.reach(alpha / 2, 1)
    else:
        family = half_widths(noise, alpha, m - 1, sides=1, beside=True)
        # each edge has half the level; the pair's own noise counts too, because it may be largest between the two edges
        single = np.fmax(half_widths(noise, alpha, 1, sides=2), own_half_widths(noise, alpha / 2))
    diagonal = np.eye(m, dtype=bool)
    beaten = ((lead - family > 0) | (pairs.low > 0)) & ~diagonal
    candidates = np.asarray(~beaten.any(-2))
    beats = (lead - single > 0) | (pairs.low > 0) | diagonal
    alone = np.asarray(beats.all(-1) & (m > 1)) & candidates
    candidates = np.where(alone.any(-1, keepdims=True), alone, candidates)
    # a sole candidate must beat each other cell by itself; else that cell, perhaps equally good, stays a candidate
    is_sole = candidates & (candidates.sum(-1, keepdims=True) == 1)
    candidates = candidates | (is_sole[..., None] & ~beats).any(-2)
    # lead_il - family_il is a lower bound of y_i - y_l, and the best is one of the candidates
    distance = np.where(candidates[..., None, :] & ~diagonal, family - lead, -np.inf).max(-1)
    behind = np.maximum(distance, 0.0) if m > 1 else np.zeros(distance.shape)
    return BestBounds(candidates, alone, _consistent(behind, candidates, pairs))


def judge_best(
    values: Array,
    knob: Sequence[float],
    margin: float,
    *,
    alpha: float = 0.05,
    raced: RaceStanding | None = None,
    resolution: float = 0.0,
    noise: PairNoise | None = None,
    pairs: Bounds | None = None,
    crossed: FullGrid | None = None,
    tuned: TunedLevels | None = None,
) -> Best:
    """Judge whether the best value of a knob lies at an edge or in the interior of the values that trained.

    Args:
        values: cells x seeds; larger is better, and cells without values are left out.
        knob: value of each cell, in any order.
        margin: the smallest difference that matters.
        alpha: the error that this look may spend.
        raced: findings of a race about the cells.
        resolution: the step of the values.
        noise: see `compare_with_best`; here for the rows that trained, in their order, as the following arguments.
        pairs: the intervals of the sensitivity verdict.
        crossed: see `compare_with_best`.
        tuned: see `compare_with_best`.
    """
    all_trained = crossed is not None or tuned is not None
    trained = np.arange(len(values)) if all_trained else np.flatnonzero(np.isfinite(values).any(-1))
    if len(trained) < 2:
        return Best("undecided", "fewer than two values trained", tuple(trained.tolist()), ())
    if noise is None or len(trained) < len(values):
        noise = fit_pairs(values[trained], resolution)
    if pairs is None:
        pairs = all_pairs(values[trained], alpha, noise) if tuned is None else tuned.pairs(alpha)
    bounds = compare_with_best(values[trained], alpha, noise, pairs=pairs, crossed=crossed, tuned=tuned)
    if raced is not None:
        bounds = _narrow_by_race(bounds, raced, pairs, trained, margin)
    ordered = np.argsort(np.asarray(knob)[trained], kind="stable")
    bounds = BestBounds(bounds.candidates[ordered], bounds.alone[ordered], bounds.behind[ordered])
    order = trained[ordered]
    lead = np.nan_to_num(pairs.estimate).mean(-1)[ordered]
    best = int(np.argmax(np.where(bounds.candidates, lead, -np.inf)))
    first, last = run_around(best, bounds.behind < margin)
    is_known = bounds.candidates.any() and bounds.behind[best] < margin
    within = tuple(order[first : last + 1].tolist()) if is_known else ()
    place, reason = _place(bounds, len(order))
    behind = np.full(len(values), np.inf)
    behind[order] = bounds.behind
    return Best(place, reason, tuple(order[bounds.candidates].tolist()), within, tuple(behind.tolist()))


def _narrow_by_race(
    bounds: BestBounds, raced: RaceStanding, pairs: Bounds, order: NDArray[np.intp], margin: float
) -> BestBounds:
    """Return the narrower of the bounds of this look and those of the race."""
    candidates = bounds.candidates & ~raced.worse[order]
    tied = raced.tied[order] & (raced.margin <= margin)
    behind = np.where(tied, np.minimum(bounds.behind, np.maximum(raced.behind[order], 0.0)), bounds.behind)
    return BestBounds(candidates, bounds.alone & candidates, _consistent(behind, candidates, pairs))


def _consistent(behind: Array, candidates: Mask, pairs: Bounds) -> Array:
    """Raise upper bounds of distances to the lower bounds that all pairs imply; a sole candidate has distance 0."""
    only = candidates & (candidates.sum(-1, keepdims=True) == 1)
    lower = np.where(np.eye(behind.shape[-1], dtype=bool), 0.0, pairs.low).max(-2)
    return np.where(only, 0.0, np.maximum(behind, lower))


def _place(bounds: BestBounds, cells: int) -> tuple[Place, str]:
    if cells < 3:
        return "undecided", "fewer than three values have no interior"
    low, *_, high = bounds.candidates.tolist()
    count = int(bounds.candidates.sum())
    if low and count == 1:
        return "low edge", "the lowest value that trained is better than every other"
    if high and count == 1:
        return "high edge", "the highest value that trained is better than every other"
    if count and not low and not high:
        return "interior", "a value inside the range is better than both outermost ones"
    open_edge = "the noise leaves open whether the best value lies at an edge"
    contradiction = "each value is significantly worse than another one, so one of these statements is wrong"
    return "undecided", open_edge if count else contradiction


def extension(
    values: Sequence[float], side: str, *, scale: Literal["linear", "log"], domain: KnobDomain
) -> tuple[float, ...]:
    """Return the next two values beyond an edge, by the step (linear) or ratio (log) of the two outermost values.

    A step out of the domain is clipped to the bound if the bound is allowed. Otherwise it halves the distance to the
    bound (rho > 0: from 0.01 to 0.005). The result is empty if the edge is the bound.
    """
    edge, inner = (values[0], values[1]) if side == "low" else (values[-1], values[-2])
    bound = domain.low if side == "low" else domain.high
    added: list[float] = []
    for _ in range(2):
        further = edge * (edge / inner) if scale == "log" and inner > 0 < edge else edge + (edge - inner)
        value = _rounded(further, edge, domain)
        if not domain.allows(value) and math.isfinite(bound):
            value = bound if domain.allows(bound) else _rounded((edge + bound) / 2, edge, domain)
        if value == edge or not domain.allows(value):
            break
        added.append(value)
        edge, inner = value, edge
    return tuple(added)


def _rounded(value: float, edge: float, domain: KnobDomain) -> float:
    """Round a value to two digits of its distance to the edge; for a knob of whole numbers, to an allowed multiple."""
    if domain.integer:
        return float(domain.multiple_of * round(value / domain.multiple_of))
    leading = math.log10(abs(value / (value - edge))) if value else 0.0  # digits that value and edge share
    return float(f"{value:.{2 + max(0, math.floor(leading))}g}")
