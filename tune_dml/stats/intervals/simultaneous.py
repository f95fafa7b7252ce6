"""Simultaneous intervals for all pairs of cells, and for all cells against a baseline.

A half-width is the larger of two:

    the family's   t(1 - alpha / (2 c); d0 + nu) s~ / sqrt(shared)   c comparisons, moderated noise (`noise`), Bonferroni
    the pair's     t(1 - alpha / 3; nu) s_guard / sqrt(shared)       its own paired t interval, without borrowed noise

With a single comparison, alpha / 3 is alpha / 2. s_guard^2 combines the pair's own variance with the sum of its two
cells' own variances (`noise`); the average pair's noise replaces the degree of freedom of a lost seed, if only one is.

The first keeps the family's error at alpha. The second requires that a paired t test of the two cells makes the same
statement, so no claim rests on borrowed noise alone. Otherwise a slope of the knob that differs from seed to seed,
which moves many pairs together, would disappear in pooled noise. Pairs that share fewer than two seeds get the best
bound that the other intervals imply: the bounds of A - B and B - C bound A - C.
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

_MOST_BARS = 100  # cells whose shortest bars are computed, in at most a second
GUARD_SHARE = 2 / 3  # level of the pair's own interval as a share of alpha, with several comparisons


@dataclass(frozen=True, eq=False)
class Bounds:
    """Simultaneous intervals for y_i - y_k, shape (..., m, m), or of contrasts (..., contrasts); infinite if unknown."""

    estimate: Array
    low: Array
    high: Array

    def times(self, sign: float) -> Bounds:
        """Return the intervals of the values times 1 or -1."""
        return self if sign == 1 else Bounds(-self.estimate, -self.high, -self.low)

    def rows(self) -> list[tuple[float, float, float]]:
        """Return (estimate, low, high) of each contrast."""
        return list(zip(self.estimate.tolist(), self.low.tolist(), self.high.tolist(), strict=True))

    def tightened(self) -> Bounds:
        """Return the intervals narrowed by each other: bounds of A - B and B - C bound A - C."""
        low = self.low.copy()
        through = np.empty_like(low)
        for cell in range(low.shape[-1]):
            np.maximum(low, np.add(low[..., :, [cell]], low[..., [cell], :], out=through), out=low)
        return Bounds(self.estimate, low, -np.swapaxes(low, -1, -2))


def all_pairs(
    values: Array, alpha: float = 0.05, noise: PairNoise | None = None, *, among: Mask | None = None
) -> Bounds:
    """Return intervals of all differences; the chance that any of them is wrong is at most `alpha`.

    `among`, (..., m), restricts the comparisons, which share `alpha`, to some cells; other differences are unbounded.
    """
    noise = noise or fit_pairs(values)
    m = noise.shared.shape[-1]
    if among is None:
        return _bounds(noise, half_widths(noise, alpha, m * (m - 1) // 2))
    count = among.sum(-1)
    reach = half_widths(noise, alpha, count * (count - 1) // 2)
    return _bounds(noise, np.where(among[..., :, None] & among[..., None, :], reach, np.inf))


def at_most(
    values: Array, alpha: float = 0.05, noise: PairNoise | None = None, *, rows: Sequence[int] | None = None
) -> Array:
    """Return an upper bound of each |difference|, (..., m, m): each pair at one-sided `alpha`, not corrected.

    With `rows`, only their pairs are returned, (..., rows, m). A pair that shares fewer than two seeds has an infinite
    bound.

    Use these bounds for statements about all differences ("every difference is below the margin"). Such a statement is
    wrong only if the largest true difference is judged wrongly: an intersection-union test (Berger 1982).
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
    unbounded = ~np.isfinite(reach)
    low, high = np.where(unbounded, -np.inf, estimate - reach), np.where(unbounded, np.inf, estimate + reach)
    low[..., baseline] = high[..., baseline] = 0.0
    return Bounds(estimate, low, high)


def comparison_bars(bounds: Bounds, means: Sequence[float] | Array) -> Array:
    """Return half a comparison bar per cell, so that cells whose bars do not overlap differ; NaN if unbounded.

    Two bars together are at least as long as the half-width of their pair. The squared half-widths are split between
    the two cells of each pair; bars b_i minimise the sum of (b_i / s_i)^2 for these sizes s_i, so that a cell with much
    noise or few seeds lengthens its own bar. Of more than `_MOST_BARS` cells, all sizes are multiplied by one factor.

    The bars are drawn around `means`. If cells lack seeds, the difference of their means is not their paired difference;
    the bars cover that as well.
    """
    offset = np.subtract.outer(np.asarray(means), np.asarray(means)) - bounds.estimate
    reach = np.maximum(bounds.high - bounds.estimate, bounds.estimate - bounds.low) + np.abs(offset)
    m = len(reach)
    unbounded = ~np.isfinite(reach)
    kept = np.flatnonzero(unbounded.sum(1) < m - 1)
    bars = np.full(m, np.nan)
    if len(kept) < 2 or unbounded[np.ix_(kept, kept)].any():
        return bars
    within = reach[np.ix_(kept, kept)]
    share = split_between_cells(within**2)
    size = np.sqrt(np.maximum(share, 0.1 * share.mean()))
    if len(kept) <= _MOST_BARS and size.any():
        bars[kept] = size * _least_distance(within, size)
    else:
        sums = size[:, None] + size[None, :]
        bars[kept] = size * np.divide(within, sums, out=np.zeros_like(within), where=sums > 0).max()
    return bars


def _least_distance(reach: Array, size: Array) -> Array:
    """Minimise the sum of x_i^2 such that size_i x_i + size_j x_j >= reach_ij for every pair.

    Least distance programming: the residual of a non-negative least squares problem (Lawson and Hanson, Solving Least
    Squares Problems, 1974, chapter 23). Pairs with equal reach make its columns dependent; `scipy.optimize.nnls` then
    returns bars that are too short, `lsq_linear` does not.
    """
    from scipy.optimize import lsq_linear  # half a second

    first, second = np.triu_indices(len(reach), 1)
    pairs, unit = np.arange(len(first)), float(reach.max())
    equations = np.zeros((len(reach) + 1, len(pairs)))
    equations[first, pairs], equations[second, pairs] = size[first] / unit, size[second] / unit
    equations[-1] = reach[first, second] / unit
    target = np.append(np.zeros(len(reach)), 1.0)
    multipliers = lsq_linear(equations, target, (0.0, np.inf), method="bvls", max_iter=10 * len(pairs)).x
    residual = equations @ multipliers - target
    return np.asarray(residual[:-1] / -residual[-1])


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

    Args:
        noise: noise of the pairs.
        alpha: the error of all comparisons together.
        comparisons: number of comparisons, or an array with a number for each table.
        sides: 1 or 2 sides of the interval.
        beside: whether [i, k] belongs to the comparisons of all cells with k, rather than of all pairs.
        each: (..., m), number of cells that share the error of a comparison of row i.
        of: index of the requested pairs, which keeps both axes.
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
    """Return the half-widths of each pair's own one-sided paired t test at `alpha`, not corrected."""
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = _quantile(np.asarray(alpha), noise.shared - 1) * np.sqrt(noise.own / noise.shared)
    return np.where(noise.testable, reach, np.inf)


def _quantile(tails: Array, df: Array) -> Array:
    """Return Student's t upper quantiles for the tail probability of each table."""
    # if no seed is lost, millions of pairs have one quantile
    if tails.size == 1 and df.size and (common := df.min()) == df.max():
        return np.broadcast_to(_quantile_of(tails.item(), np.array([common])), df.shape)
    quantiles = np.empty(np.shape(df))
    for tail in np.unique(tails):
        has_tail = np.broadcast_to(tails == tail, quantiles.shape)
        quantiles[has_tail] = _quantile_of(float(tail), df[has_tail])
    return quantiles


def _quantile_of(tail: float, df: Array) -> Array:
    """Return the quantiles of one tail probability, computed once for equal degrees of freedom."""
    distinct, index = np.unique(np.maximum(df, 1.0), return_inverse=True)
    nodes = distinct
    if len(distinct) > 2000:  # interpolated in 1 / df: at most 0.05 % too wide
        nodes = np.geomspace(distinct[0], distinct[-1], 2000)
    quantiles = np.interp(-1 / distinct, -1 / nodes, np.asarray(student_isf(tail, nodes), dtype=np.float64))
    return np.asarray(quantiles[index].reshape(np.shape(df)))


def _bounds(noise: PairNoise, reach: Array) -> Bounds:
    unbounded = ~np.isfinite(reach)
    low = np.where(unbounded, -np.inf, noise.estimate - reach)
    high = np.where(unbounded, np.inf, noise.estimate + reach)
    diagonal = np.eye(reach.shape[-1], dtype=bool)
    return complete_bounds(noise.estimate, np.where(diagonal, 0.0, low), np.where(diagonal, 0.0, high))


def complete_bounds(estimate: Array, low: Array, high: Array) -> Bounds:
    """Return the intervals; untestable pairs get the bounds that the other intervals imply."""
    bounds = Bounds(estimate, low, high)
    if np.isfinite(low).all() and np.isfinite(high).all():
        return bounds
    implied = bounds.tightened()
    # other pairs keep their own interval, which contains that of a declared gain
    return Bounds(
        estimate, np.where(np.isfinite(low), low, implied.low), np.where(np.isfinite(high), high, implied.high)
    )
