"""Which cell is the best, and is the best of an ordered knob inside the tested range?

    candidates   Hsu's (1984) multiple comparisons with the best: a cell is out when another one is certainly better, at
                 one-sided alpha / (m - 1); the true best stays in with probability 1 - alpha
    edge         an outermost value is certainly better than every other one. That is an intersection-union test, not
                 corrected for the other values, because all comparisons must succeed; each end has alpha / 2, because both
                 may be equal and best, and its pairs' own paired t tests must agree
    interior     both outermost values are out of the candidates; equal cells give that at most alpha of the time
    within       cells whose distance to the best is certainly below the margin (Edwards and Hsu 1983)

Everything is said of the values that trained. `judge_best` takes a cells x seeds array with larger numbers better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.noise import PairNoise, fit_pairs
from tune_dml.stats.racing import RaceStanding
from tune_dml.stats.simultaneous import half_widths, own_half_widths

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Place = Literal["interior", "low edge", "high edge", "undecided"]

HSU = "Hsu's comparisons with the best on moderated paired t bounds; an edge by an intersection-union test"


@dataclass(frozen=True, eq=False)
class BestBounds:
    """Arrays of shape (..., m), one or many tables."""

    candidates: Mask
    """Cells that may be the best."""
    alone: Mask
    """The one cell that is certainly better than every other, if there is one: each cell at half the level."""
    behind: Array
    """At most this far behind the best (0 or more), infinite where unknown."""


@dataclass(frozen=True)
class Best:
    """Where the best of an ordered knob lies."""

    place: Place
    reason: str
    candidates: tuple[int, ...]
    """Cells (rows) that may be the best, in the knob's order."""
    within: tuple[int, ...]
    """The cells next to each other that are certainly within the margin of the best, in the knob's order; may be empty."""


def compare_with_best(values: Array, alpha: float = 0.05, noise: PairNoise | None = None) -> BestBounds:
    """Bounds on each cell's distance to the best; larger is better."""
    noise = noise or fit_pairs(values)
    m = noise.shared.shape[-1]
    family = half_widths(noise, alpha, m - 1, sides=1, beside=True)
    single = np.maximum(half_widths(noise, alpha, 2, sides=1), own_half_widths(noise, alpha / 2))
    lead = np.nan_to_num(noise.estimate)
    diagonal = np.eye(m, dtype=bool)
    candidates = np.asarray(~((lead - family > 0) & ~diagonal).any(-2))
    alone = np.asarray(((lead - single > 0) | diagonal).all(-1) & (m > 1))
    # lead_il - reach_il bounds y_i - y_l from below; the best is one of the candidates
    lag = np.where(candidates[..., None, :] & ~diagonal, family - lead, -np.inf).max(-1)
    behind = np.maximum(lag, 0.0) if m > 1 else np.zeros(lag.shape)
    only = candidates & (candidates.sum(-1, keepdims=True) == 1)
    return BestBounds(candidates, alone, np.where(only, 0.0, behind))


def judge_best(
    values: Array,
    knob: Sequence[float],
    margin: float,
    *,
    matters: bool = True,
    alpha: float = 0.05,
    raced: RaceStanding | None = None,
    resolution: float = 0.0,
    noise: PairNoise | None = None,
) -> Best:
    """Judge where the best of the cells lies; `knob` is the value of each cell, in any order.

    `matters` is whether the sensitivity verdict is "sensitive": while it is not, no place is claimed. Cells without numbers
    are left out, so that edges are those of the values that trained. `raced`: what a race has found of the cells.
    Values move in steps of `resolution`. `noise`: theirs, where it is known already.
    """
    trained = np.flatnonzero(np.isfinite(values).any(-1))
    order = trained[np.argsort(np.asarray(knob)[trained], kind="stable")]
    if len(order) < 2:
        return Best("undecided", "fewer than two values trained", tuple(order.tolist()), ())
    if noise is None or not np.array_equal(order, np.arange(len(values))):
        noise = fit_pairs(values[order], resolution)
    bounds = compare_with_best(values[order], alpha, noise)
    if raced is not None:
        bounds = _after_race(bounds, raced, order, margin)
    candidates = tuple(order[bounds.candidates].tolist())
    best = int(np.argmax(np.where(bounds.candidates, _means(values[order]), -np.inf)))
    within = tuple(order[_run(bounds.behind < margin, best)].tolist())
    place, reason = _place(bounds, matters, len(order))
    return Best(place, reason, candidates, within)


def _after_race(bounds: BestBounds, raced: RaceStanding, order: NDArray[np.intp], margin: float) -> BestBounds:
    """What this look and the race say together; of two statements that both hold, the sharper."""
    both = bounds.candidates & ~raced.worse[order]
    candidates = both if both.any() else bounds.candidates  # they contradict each other where one is wrong
    known = raced.tied[order] & (raced.margin <= margin)
    behind = np.where(known, np.minimum(bounds.behind, np.maximum(raced.behind[order], 0.0)), bounds.behind)
    return BestBounds(candidates, bounds.alone, behind)


def _means(values: Array) -> Array:
    held = np.isfinite(values)
    return np.asarray(np.where(held, values, 0.0).sum(-1) / np.maximum(held.sum(-1), 1))


def _run(sure: Mask, best: int) -> NDArray[np.intp]:
    """The unbroken run of sure cells around `best`; empty when `best` itself is not sure."""
    if not sure[best]:
        return np.array([], dtype=np.intp)
    low = high = best
    while low > 0 and sure[low - 1]:
        low -= 1
    while high + 1 < len(sure) and sure[high + 1]:
        high += 1
    return np.arange(low, high + 1)


def _place(bounds: BestBounds, matters: bool, cells: int) -> tuple[Place, str]:
    if not matters:
        return "undecided", "whether the knob matters at all is not established"
    if cells < 3:
        return "undecided", "with fewer than three values there is nothing between the edges"
    if bounds.alone[0]:
        return "low edge", "the lowest value that trained is better than every other"
    if bounds.alone[-1]:
        return "high edge", "the highest value that trained is better than every other"
    if not bounds.candidates[0] and not bounds.candidates[-1]:
        return "interior", "a value inside the range is better than both outermost ones"
    return "undecided", "the noise leaves open whether the best value lies at an edge"
