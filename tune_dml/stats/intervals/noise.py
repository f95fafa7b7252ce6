"""Noise of all differences between two cells: unequal, correlated, with holes.

A difference is judged on the seeds that both cells have, so no assumption is made about how noise depends on the cell
or on the seed. A lost seed costs degrees of freedom of its pairs only. With few seeds the variance of one pair is a
poor estimate, so it is shrunk towards that of the typical pair (Smyth 2004, "moderated t"):

    s~^2_ik = (d0 s0^2 + nu_ik s^2_ik) / (d0 + nu_ik),    nu_ik = shared seeds - 1

d0 and s0 are estimated by matching the mean and the variance of log s^2 over pairs. Pairs are not independent, so d0 is
at most epsilon (m - 1) nu - nu, the information in the whole table. epsilon is Box's measure of unequal noise: 1 if
noise is equal and independent, 1 / (m - 1) if all noise has one direction. d0 is also multiplied by (nu - 1) / nu,
because it is itself estimated from nu + 1 seeds. Both rules were chosen by simulation (benchmarks/verdicts.py). With
two cells or two seeds no noise can be borrowed: d0 = 0. No s^2 is below the floor of `resolution`.

A pair that shares two or more seeds fewer than others, as after a race, borrows as in a table of so many seeds: many
seeds of quieter cells say little about a noisy cell with few.

All functions take arrays of shape (..., m, n), cells x seeds with NaN for holes, and work on many tables at once.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import digamma, polygamma

from tune_dml.stats.intervals import Array, Mask
from tune_dml.stats.intervals.resolution import variance_floor

_MAX_REPLACED = 1  # number of lost seeds of a pair that the average pair's noise may replace
_MIN_DIRECTIONS = 4
"""Number of directions of noise from which on the cells' noise is half of the guard (benchmarks/verdicts.py)."""


@dataclass(frozen=True, eq=False)
class PairNoise:
    """Differences of all pairs of cells and their noise; arrays of shape (..., m, m) unless stated."""

    estimate: Array  # mean(y_i - y_k) over the shared seeds; NaN without any
    shared: Array  # number of shared seeds
    own: Array
    """Variance of y_i - y_k over the shared seeds, at least the floor of `resolution`; NaN below two shared seeds."""
    variance: Array  # the moderated variance; NaN below two shared seeds
    beside: Array
    """[i, k]: moderated variance for comparisons of every cell i with one cell k.

    It is shrunk towards the typical pair of k if that is noisier, because a noisy baseline is in every comparison."""
    df: Array  # degrees of freedom of `variance`
    guard: Array
    """Variance for the pair's own interval (`simultaneous`).

    It combines the pair's own variance with the sum of its two cells' own variances, whose weight is at most a half."""
    guard_df: Array  # degrees of freedom of `guard`; a pair that lost one seed has those of a pair that lost none
    prior_df: Array  # shape (...): d0
    epsilon: Array  # shape (...): Box's epsilon, bias-corrected, in [1 / (m - 1), 1]; NaN with two seeds

    @property
    def testable(self) -> Mask:
        """Pairs with their own noise estimate."""
        return np.asarray((self.shared >= 2) & ~np.eye(self.shared.shape[-1], dtype=bool))


def fit_pairs(values: Array, resolution: float = 0.0) -> PairNoise:
    """Estimate differences and noise of all pairs of cells, in one or many tables; `resolution` is the values' step."""
    m = values.shape[-2]
    estimate, shared, squares = _differences(values)
    nu = np.maximum(shared - 1, 0)
    if resolution:
        np.maximum(squares, nu * 2 * variance_floor(resolution), out=squares)
    testable = (nu > 0) & ~np.eye(m, dtype=bool)
    np.copyto(squares, 0.0, where=~testable)
    own = np.divide(squares, nu, out=np.full_like(squares, np.nan), where=testable)
    counted = np.where(testable, nu, 0)
    total = counted.sum((-2, -1))
    pooled = _ratio(squares.sum((-2, -1)), total)
    typical_nu = _ratio(np.square(counted, out=counted).sum((-2, -1)), total)
    filled = np.where(testable, own, pooled[..., None, None])
    epsilon = _epsilon(filled, typical_nu)
    prior_df, prior, excess = _prior(own, nu, testable, epsilon, typical_nu)
    max_nu = np.where(testable, nu, 0).max((-2, -1), initial=0)[..., None, None]
    lost = max_nu - nu
    lost = np.where(lost <= _MAX_REPLACED, lost, 0.0)
    weight = prior_df[..., None, None]
    if (nu + lost < max_nu).any():
        weight = np.minimum(weight, max_prior_df(epsilon[..., None, None], m - 1, nu + lost))
    df = weight + nu
    targets = prior[..., None, None] * np.stack([np.ones_like(excess), excess])[..., None, :]
    variance, beside = (_hide((weight * target + squares) / np.maximum(df, 1e-300), ~testable) for target in targets)
    guard = filled
    if m > 2:
        cells = split_between_cells(filled)
        guard = filled + _cell_weight(epsilon, m) * (cells[..., :, None] + cells[..., None, :] - filled)
    guard *= nu
    if lost.any():
        guard += lost * pooled[..., None, None]
    guard_df = nu + lost
    np.divide(guard, guard_df, out=guard, where=guard_df > 0)
    shared, df, guard_df = (np.broadcast_to(array, estimate.shape) for array in (shared, df, guard_df))
    return PairNoise(estimate, shared, own, variance, beside, df, _hide(guard, ~testable), guard_df, prior_df, epsilon)


def _cell_weight(epsilon: Array, m: int) -> Array:
    """Return the weight of the two cells' own noise in the guard: a half from `_MIN_DIRECTIONS` directions on.

    If noise has one direction, as under a slope that differs from seed to seed, the outermost cells differ by more than
    their own noise predicts. The weight is then 0. With two seeds epsilon is unknown, and noise counts as equal.
    """
    directions = np.nan_to_num(epsilon, nan=1.0) * (m - 1)
    return np.asarray(np.clip((directions - 1) / (_MIN_DIRECTIONS - 1), 0.0, 1.0) ** 2 / 2)[..., None, None]


def _hide(numbers: Array, hidden: Mask) -> Array:
    """Set the hidden elements to NaN, in place."""
    np.copyto(numbers, np.nan, where=hidden)
    return numbers


def has_testable_pair(values: Array) -> bool:
    """Return whether any two cells of a table share two seeds."""
    patterns, counts = np.unique(np.isfinite(values), axis=0, return_counts=True)
    shared = patterns.astype(int) @ patterns.T
    np.fill_diagonal(shared, np.where(counts > 1, shared.diagonal(), 0))
    return bool((shared >= 2).any())


def typical_noise(noise: PairNoise) -> tuple[float, int] | None:
    """Return the noise of one trial without the seed effect, and its degrees of freedom epsilon (m - 1) nu.

    None without a pair that shares two seeds.
    """
    pairs = noise.testable
    if not pairs.any():
        return None
    nu = float((noise.shared[pairs] - 1).mean())
    directions = max(float(np.nan_to_num(noise.epsilon)) * (len(pairs) - 1), 1.0)
    return float(np.sqrt(noise.own[pairs].mean() / 2)), max(int(directions * nu), 1)


def cell_variances(values: Array, resolution: float = 0.0) -> Array:
    """Return each cell's noise variance without the seed effect (Grubbs 1948), shape (..., m).

    Pairs that share fewer than two seeds count as average.
    """
    _, shared, squares = _differences(values)
    nu = np.maximum(shared - 1, 0)
    testable = (nu > 0) & ~np.eye(values.shape[-2], dtype=bool)
    pooled = _ratio(np.where(testable, squares, 0.0).sum((-2, -1)), np.where(testable, nu, 0.0).sum((-2, -1)))
    unknown = np.broadcast_to(pooled[..., None, None], squares.shape).copy()
    own = np.divide(squares, nu, out=unknown, where=testable)
    return np.maximum(split_between_cells(own), variance_floor(resolution))


def _differences(values: Array) -> tuple[Array, Array, Array]:
    """Return the mean difference, number of shared seeds and centred sum of squares of every pair.

    The number of shared seeds has shape (..., 1, 1) if no seed is lost: it is then the same for all pairs.
    """
    present = np.isfinite(values)
    ones = present.astype(float)
    centre = np.nan_to_num(_nanmean(values))
    centred = np.where(present, values - centre[..., None], 0.0)
    transposed = np.swapaxes(ones, -1, -2)
    all_seeds = np.full((*values.shape[:-2], 1, 1), float(values.shape[-1]))
    shared = all_seeds if present.all() else ones @ transposed
    sums = centred @ transposed
    squares = centred**2 @ transposed
    none = shared == 0
    gap = sums - np.swapaxes(sums, -1, -2)
    np.divide(gap, shared, out=gap, where=~none)
    estimate = centre[..., :, None] - centre[..., None, :]
    estimate += gap
    np.copyto(estimate, np.nan, where=none)
    both = squares + np.swapaxes(squares, -1, -2)
    spread = 2 * centred @ np.swapaxes(centred, -1, -2)
    np.subtract(both, spread, out=spread)
    np.square(gap, out=gap)
    gap *= shared
    spread -= gap
    both *= 1e-13
    np.copyto(spread, 0.0, where=spread <= both)
    return estimate, shared, spread


def _nanmean(values: Array) -> Array:
    present = np.isfinite(values)
    return _ratio(np.where(present, values, 0.0).sum(-1), present.sum(-1).astype(float))


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Return the ratio, or 0 for a denominator of 0."""
    return np.asarray(np.divide(numerator, denominator, out=np.zeros(np.shape(numerator)), where=denominator > 0))


def _epsilon(variances: Array, nu: Array) -> Array:
    """Return Box's epsilon tr(S)^2 / ((m - 1) tr(S^2)) of the cells' covariance S; both traces are unbiased.

    Up to a shift common to all cells, S is Gower's -1/2 J V J, where V has the variances of the differences.
    """
    m = variances.shape[-1]
    if m < 3:
        return np.ones(nu.shape)
    pairs = np.where(np.eye(m, dtype=bool), 0.0, variances)
    centred = pairs - pairs.mean(-1, keepdims=True)
    centred -= pairs.mean(-2, keepdims=True)
    centred += pairs.mean((-2, -1), keepdims=True)
    trace = -np.trace(centred, axis1=-2, axis2=-1) / 2
    square = np.square(centred, out=centred).sum((-2, -1)) / 4
    return box_epsilon(trace, square, m - 1, nu)


def box_epsilon(trace: Array, square: Array, size: int, nu: Array) -> Array:
    """Return tr(S)^2 / (size tr(S^2)) of a `size` x `size` sample covariance S on nu degrees of freedom.

    `trace` is tr(S), `square` is tr(S^2). Their bias is removed: E tr(S^2) = (1 + 1/nu) tr(C^2) + tr(C)^2 / nu for the
    true covariance C. NaN for nu <= 1.
    """
    estimable = nu > 1
    nu = np.where(estimable, nu, 2.0)
    of_square = nu**2 / ((nu - 1) * (nu + 2)) * (square - trace**2 / nu)
    squared_trace = trace**2 - 2 * of_square / nu
    positive = of_square > 1e-12 * np.maximum(trace**2, 1e-300)
    raw = np.divide(squared_trace, size * of_square, out=np.ones(nu.shape), where=positive)
    return np.where(estimable, np.clip(raw, 1 / size, 1.0), np.nan)


def _prior(own: Array, nu: Array, testable: Mask, epsilon: Array, typical_nu: Array) -> tuple[Array, Array, Array]:
    """Return d0, s0^2, and for each cell the ratio (at least 1) of its typical pair's variance to that of all pairs.

    d0 and s0^2 come from moments of log s^2 over pairs (Smyth 2004, section 6.2); d0 is bounded (`max_prior_df`).
    """
    size = own.shape[-1] - 1
    count, lost = np.maximum(testable.sum((-2, -1)), 1), ~testable
    max_nu = int(nu.max(initial=1))
    index: Any = np.maximum(nu, 1).astype(np.intp) - 1 if (nu < max_nu).any() else max_nu - 1
    half = (np.arange(max_nu) + 1) / 2  # half of each possible nu, as many pairs share one
    typical = np.nan_to_num(_nanmean(own.reshape(*own.shape[:-2], -1)))[..., None, None]
    centred = np.where(testable, own, typical)
    np.log(np.maximum(centred, np.maximum(1e-8 * typical, 1e-300), out=centred), out=centred)
    centred -= digamma(half)[index]
    centred += np.log(half)[index]
    np.copyto(centred, 0.0, where=lost)
    mean = centred.sum((-2, -1)) / count
    squares = centred - mean[..., None, None]
    np.copyto(np.square(squares, out=squares), 0.0, where=lost)
    spread = squares.sum((-2, -1)) / np.maximum(count - 1, 1)
    spread -= np.where(testable, polygamma(1, half)[index], 0.0).sum((-2, -1)) / count
    unequal = spread > 1e-6
    estimated = np.where(unequal, 2 * _trigamma_inverse(np.where(unequal, spread, 1.0)), np.inf)
    finite = np.where(unequal, estimated, 2.0)
    prior = np.where(unequal, np.exp(mean + digamma(finite / 2) - np.log(finite / 2)), np.exp(mean))
    factor = np.maximum(1 - _ratio(np.ones_like(typical_nu), typical_nu), 0)
    unbounded = np.where(factor > 0, estimated * np.maximum(factor, 1e-300), 0.0)
    prior_df = np.minimum(unbounded, max_prior_df(epsilon, size, typical_nu))
    cell_means = centred.sum(-2) / np.maximum(testable.sum(-2), 1)
    excess = np.where(testable.any(-2), np.exp(np.maximum(cell_means - mean[..., None], 0.0)), 1.0)
    return prior_df, np.where(np.isfinite(prior), prior, 0.0), excess


def max_prior_df(epsilon: Array, size: int, nu: Array) -> Array:
    """Return the upper bound of d0 for `size` directions on nu degrees of freedom each."""
    return np.asarray(np.maximum(np.nan_to_num(epsilon) * size - 1, 0) * np.maximum(nu - 1, 0))


def _trigamma_inverse(value: Array) -> Array:
    """Solve trigamma(y) = value by Newton's method on 1 / trigamma, which is nearly linear (Smyth 2004, appendix).

    The start solves 1 / y + 1 / y^2 = value. The relative error after four steps is below 1e-10.
    """
    y = (1 + np.sqrt(1 + 4 * value)) / (2 * value)
    for _ in range(4):
        trigamma = polygamma(1, y)
        y = y + trigamma * (1 - trigamma / value) / polygamma(2, y)
    return np.asarray(y)


def split_between_cells(variances: Array) -> Array:
    """Split the variances V of all differences into variances v of the cells; two cells get half of V each.

    Solves mean_k V_ik = v_i + (mean of v over the other cells), without the diagonal of V.
    """
    m = variances.shape[-1]
    sums = np.where(np.eye(m, dtype=bool), 0.0, variances).sum(-1)
    if m < 3:
        return np.asarray(sums / 2)
    means = sums / (m - 1)
    return np.asarray(np.maximum(((m - 1) * means - means.sum(-1, keepdims=True) / 2) / (m - 2), 0.0))
