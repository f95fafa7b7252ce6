"""Simultaneous intervals for all pairs of cells, and for all cells against a baseline.

A half-width is the larger of two:

    the family's   t(1 - alpha / (2 c); d0 + nu) s~ / sqrt(shared)      c comparisons, moderated noise (`noise`), Bonferroni
    the pair's     t(1 - alpha / 3; nu) s_guard / sqrt(shared)          its own paired t interval, nothing borrowed

(alpha / 2 with a single comparison. s_guard^2 joins the pair's own variance and the sum of its two cells' own (`noise`); a lost
seed's degree of freedom is filled with the average pair's noise.) The first keeps the family's error at alpha. The second
requires that a paired t test of the two cells makes the statement too, so no claim rests on borrowed noise alone: a slope of
the knob that differs from seed to seed moves many pairs together and hides in pooled noise. Pairs that share fewer than two
seeds take the best bound that the other intervals imply: those of A - B and B - C bound A - C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.distributions import student_isf
from tune_dml.stats.intervals import Array, Mask
from tune_dml.stats.intervals.noise import PairNoise, fit_pairs, split_between_cells

ALGORITHM = "moderated paired t intervals, Bonferroni over the comparisons, none narrower than the pair's own"


GUARD_SHARE = 2 / 3
"""Level of the pair's own interval as a share of alpha, with several comparisons."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Simultaneous intervals for y_i - y_k, shape (..., m, m); infinite if not testable."""

    estimate: Array
    low: Array
    high: Array

    def times(self, sign: float) -> Bounds:
        """Return the intervals of the values times 1 or -1."""
        return self if sign == 1 else Bounds(-self.estimate, -self.high, -self.low)

    def implied(self) -> Bounds:
        """Return the intervals that follow jointly: bounds of A - B and B - C bound A - C."""
        low, high = self.low, self.high
        for through in range(low.shape[-1]):
            low = np.maximum(low, low[..., :, [through]] + low[..., [through], :])
            high = np.minimum(high, high[..., :, [through]] + high[..., [through], :])
        return Bounds(self.estimate, low, high)


def all_pairs(
    values: Array, alpha: float = 0.05, noise: PairNoise | None = None, *, among: Mask | None = None
) -> Bounds:
    """Return intervals of all differences; the chance that any of them is wrong is at most `alpha`.

    Only differences between the cells of `among`, (..., m), share `alpha` and get intervals.
    """
    noise = noise or fit_pairs(values)
    m = noise.shared.shape[-1]
    if among is None:
        return _closed(noise, half_widths(noise, alpha, m * (m - 1) // 2))
    count = among.sum(-1)
    reach = half_widths(noise, alpha, count * (count - 1) // 2)
    return _closed(noise, np.where(among[..., :, None] & among[..., None, :], reach, np.inf))


def at_most(
    values: Array, alpha: float = 0.05, noise: PairNoise | None = None, *, rows: Sequence[int] | None = None
) -> Array:
    """Return an upper bound of each |difference|, (..., m, m): every pair by itself at one-sided `alpha`, not corrected.

    Only for `rows`, if given: (..., rows, m). Infinite for a pair that shares fewer than two seeds.

    These bounds are for statements about all differences ("every difference is below the margin"). Such a statement is wrong
    only if the largest true difference is judged wrongly: an intersection-union test (Berger 1982).
    """
    noise = noise or fit_pairs(values)
    of = np.s_[..., :, :] if rows is None else np.s_[..., list(rows), :]
    reach = half_widths(noise, alpha, 1, sides=1, of=of)
    size = np.where(np.isfinite(reach), np.abs(np.nan_to_num(noise.estimate[of])) + reach, np.inf)
    return np.asarray(np.where(np.eye(size.shape[-1], dtype=bool)[of], 0.0, size))


def against(values: Array, baseline: int, alpha: float = 0.05, noise: PairNoise | None = None) -> Bounds:
    """Return intervals of every cell minus the baseline, shape (..., m); 0 for the baseline."""
    noise = noise or fit_pairs(values)
    column = np.s_[..., [baseline]]
    reach = half_widths(noise, alpha, noise.shared.shape[-1] - 1, beside=True, of=column)[..., 0]
    estimate = noise.estimate[..., baseline]
    blind = ~np.isfinite(reach)
    low, high = np.where(blind, -np.inf, estimate - reach), np.where(blind, np.inf, estimate + reach)
    low[..., baseline] = high[..., baseline] = 0.0
    return Bounds(estimate, low, high)


def comparison_bars(bounds: Bounds, means: Sequence[float] | Array) -> Array:
    """Return half a comparison bar per cell, so that cells whose bars do not overlap differ; NaN if unbounded.

    The squared half-widths are split between the two cells of each pair, then all bars grow by one factor until every pair
    is covered. `means`: where the bars are drawn. Means of cells that lack seeds differ by more than their paired
    difference; the bars cover that too.
    """
    beside = np.subtract.outer(np.asarray(means), np.asarray(means)) - bounds.estimate
    reach = np.maximum(bounds.high - bounds.estimate, bounds.estimate - bounds.low) + np.abs(beside)
    m = len(reach)
    blind = ~np.isfinite(reach)
    kept = np.flatnonzero(blind.sum(1) < m - 1)
    bars = np.full(m, np.nan)
    if len(kept) < 2 or blind[np.ix_(kept, kept)].any():
        return bars
    within = reach[np.ix_(kept, kept)]
    share = split_between_cells(within**2)
    size = np.sqrt(np.maximum(share, 0.1 * share.mean()))
    together = size[:, None] + size[None, :]
    factor = np.divide(within, together, out=np.zeros_like(within), where=together > 0).max()
    bars[kept] = factor * size
    return bars


def half_widths(
    noise: PairNoise,
    alpha: float,
    comparisons: int | NDArray[np.intp],
    *,
    sides: int = 2,
    beside: bool = False,
    each: NDArray[np.intp] | None = None,
    of: Any = np.s_[..., :, :],
) -> Array:
    """Return half the width of every pair's interval; infinite without a noise estimate.

    `comparisons`: one number, or one for each table. `beside`: [i, k] is for the family of comparisons with k alone. `each`,
    (..., m): number of cells that share the error of a comparison of row i. `of`: index of the requested pairs that keeps
    both axes.
    """
    count = np.maximum(1, comparisons)[..., None, None]
    if each is not None:
        count = count * np.maximum(1, each)[..., :, None]
    family = _quantile(alpha / (sides * count), noise.df[of])
    single = _quantile(np.where(count > 1, GUARD_SHARE, 1.0) * alpha / sides, noise.guard_df[of])
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = np.maximum(
            family * np.sqrt((noise.beside if beside else noise.variance)[of]), single * np.sqrt(noise.guard[of])
        ) / np.sqrt(noise.shared[of])
    return np.where(noise.testable[of], reach, np.inf)


def own_half_widths(noise: PairNoise, alpha: float) -> Array:
    """Return half-widths by each pair's own one-sided paired t test at `alpha`, not corrected."""
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = _quantile(np.asarray(alpha), noise.shared - 1) * np.sqrt(noise.own / noise.shared)
    return np.where(noise.testable, reach, np.inf)


def _quantile(tails: Array, df: Array) -> Array:
    """Return Student's t upper quantiles for the tail probability of each table."""
    # if no seed is lost, one number serves millions of pairs
    if tails.size == 1 and df.size and (least := df.min()) == df.max():
        return np.broadcast_to(_quantile_of(tails.item(), np.array([least])), df.shape)
    quantiles = np.empty(np.shape(df))
    for tail in np.unique(tails):
        of = np.broadcast_to(tails == tail, quantiles.shape)
        quantiles[of] = _quantile_of(float(tail), df[of])
    return quantiles


def _quantile_of(tail: float, df: Array) -> Array:
    """Return the quantiles of one tail probability; equal degrees of freedom are computed once."""
    distinct, where = np.unique(np.maximum(df, 1.0), return_inverse=True)
    nodes = distinct
    if len(distinct) > 2000:  # interpolated in 1 / df: at most 0.05 % too wide
        nodes = np.geomspace(distinct[0], distinct[-1], 2000)
    quantiles = np.interp(-1 / distinct, -1 / nodes, np.asarray(student_isf(tail, nodes), dtype=np.float64))
    return np.asarray(quantiles[where].reshape(np.shape(df)))


def _closed(noise: PairNoise, reach: Array) -> Bounds:
    blind = ~np.isfinite(reach)
    low = np.where(blind, -np.inf, noise.estimate - reach)
    high = np.where(blind, np.inf, noise.estimate + reach)
    diagonal = np.eye(reach.shape[-1], dtype=bool)
    return close(noise.estimate, np.where(diagonal, 0.0, low), np.where(diagonal, 0.0, high))


def close(estimate: Array, low: Array, high: Array) -> Bounds:
    """Return the intervals, with bounds of untestable pairs implied by the others."""
    bounds = Bounds(estimate, low, high)
    return bounds if np.isfinite(low).all() and np.isfinite(high).all() else bounds.implied()
