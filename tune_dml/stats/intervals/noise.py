"""Noise of all differences between two cells: unequal, correlated, with holes.

A difference is judged on the seeds that both cells have, so nothing is assumed about how noise depends on the cell or on
the seed. A lost seed costs degrees of freedom of its pairs only. With few seeds the variance of one pair is a poor
estimate, so it is shrunk towards the typical pair (Smyth 2004, "moderated t"):

    s~^2_ik = (d0 s0^2 + nu_ik s^2_ik) / (d0 + nu_ik),    nu_ik = shared seeds - 1

d0 and s0 are estimated from the data by matching the mean and the variance of log s^2 over pairs. Pairs are not
independent, so d0 is bounded by what the whole table can know, epsilon (m - 1) nu - nu, epsilon being Box's departure from
equal noise (1 when noise is equal and independent, 1 / (m - 1) when one direction holds all of it), and is multiplied by
(nu - 1) / nu because all of this is itself estimated from nu + 1 seeds. Both were chosen by simulation (benchmarks/verdicts.py).
With two cells or two seeds nothing can be borrowed: d0 = 0. No s^2 is below the floor that `resolution` gives.

All functions take arrays of shape (..., m, n), cells x seeds with NaN for holes, and work on many tables at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import digamma, polygamma

from tune_dml.stats.intervals import Array, Mask
from tune_dml.stats.intervals.resolution import least_variance

_FREE = 4
"""Directions of the noise from which its cells' own noise predicts a pair's; chosen by simulation (benchmarks/verdicts.py)."""


@dataclass(frozen=True, eq=False)
class PairNoise:
    """Differences of all pairs of cells and their noise; arrays of shape (..., m, m) unless stated."""

    estimate: Array
    """mean(y_i - y_k) over the shared seeds; NaN without any."""
    shared: Array
    """Number of shared seeds."""
    own: Array
    """Variance of y_i - y_k from its own seeds, at least that of the resolution; NaN below two shared seeds."""
    variance: Array
    """The moderated variance; NaN below two shared seeds."""
    beside: Array
    """Moderated variance for comparisons of every cell i with k, [i, k]: shrunk towards the typical pair of k if that is
    noisier, because a noisy baseline is in every comparison."""
    df: Array
    """Degrees of freedom of `variance`."""
    guard: Array
    """Variance for the pair's own interval (`simultaneous`): the pair's own, and with up to half the weight the sum of its
    two cells' own."""
    guard_df: Array
    """Degrees of freedom of `guard`, as of a pair that lost no seed."""
    prior_df: Array
    """Shape (...): d0."""
    epsilon: Array
    """Shape (...): Box's epsilon, bias-corrected, in [1 / (m - 1), 1]; NaN with two seeds."""

    @property
    def testable(self) -> Mask:
        """Pairs with their own noise estimate."""
        return np.asarray((self.shared >= 2) & ~np.eye(self.shared.shape[-1], dtype=bool))


def fit_pairs(values: Array, resolution: float = 0.0) -> PairNoise:
    """Estimate differences and noise of all pairs of cells of one or many tables; `resolution` is the values' step."""
    m = values.shape[-2]
    estimate, shared, squares = _differences(values)
    nu = np.maximum(shared - 1, 0)
    if resolution:
        np.maximum(squares, nu * 2 * least_variance(resolution), out=squares)
    testable = (nu > 0) & ~np.eye(m, dtype=bool)
    np.copyto(squares, 0.0, where=~testable)
    own = np.divide(squares, nu, out=np.full_like(squares, np.nan), where=testable)
    counted = np.where(testable, nu, 0)
    total = counted.sum((-2, -1))
    pooled = _ratio(squares.sum((-2, -1)), total)
    typical_nu = _ratio(np.square(counted, out=counted).sum((-2, -1)), total)
    filled = np.where(testable, own, pooled[..., None, None])
    epsilon = _epsilon(filled, typical_nu)
    prior_df, prior, louder = _prior(own, nu, testable, epsilon, typical_nu)
    weight = prior_df[..., None, None]
    df = weight + nu
    target = prior[..., None, None] * np.stack([np.ones_like(louder), louder])[..., None, :]
    variance, beside = (_known((weight * each + squares) / np.maximum(df, 1e-300), testable) for each in target)
    most = np.where(testable, nu, 0).max((-2, -1), initial=0)[..., None, None]
    guard = filled if m < 3 else filled + _shared_by_cells(epsilon, m) * (_sums(split_between_cells(filled)) - filled)
    guard *= nu
    if (nu < most).any():
        guard += (most - nu) * pooled[..., None, None]
    np.divide(guard, most, out=guard, where=most > 0)
    shared, df, guard_df = (np.broadcast_to(each, estimate.shape) for each in (shared, df, most))
    return PairNoise(estimate, shared, own, variance, beside, df, _known(guard, testable), guard_df, prior_df, epsilon)


def _shared_by_cells(epsilon: Array, m: int) -> Array:
    """Return the weight in the guard of what the two cells' own noise predicts: a half from `_FREE` directions on.

    If noise has one direction, as under a slope that differs from seed to seed, the outermost cells differ by more than
    their own noise predicts: the weight is then 0. With two seeds epsilon is unknown, and noise counts as equal.
    """
    directions = np.nan_to_num(epsilon, nan=1.0) * (m - 1)
    return np.asarray(np.clip((directions - 1) / (_FREE - 1), 0.0, 1.0) ** 2 / 2)[..., None, None]


def _known(numbers: Array, testable: Mask) -> Array:
    """Set untestable pairs to NaN in place."""
    np.copyto(numbers, np.nan, where=~testable)
    return numbers


def some_pair_is_testable(values: Array) -> bool:
    """Return whether two cells of a table share two seeds."""
    sets, times = np.unique(np.isfinite(values), axis=0, return_counts=True)
    shared = sets.astype(int) @ sets.T
    np.fill_diagonal(shared, np.where(times > 1, shared.diagonal(), 0))
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
    """Return each cell's noise variance without the seed effect (Grubbs 1948), shape (..., m)."""
    _, shared, squares = _differences(values)
    nu = np.maximum(shared - 1, 0)
    testable = (nu > 0) & ~np.eye(values.shape[-2], dtype=bool)
    own = np.divide(squares, nu, out=np.zeros_like(squares), where=testable)
    return np.maximum(split_between_cells(own), least_variance(resolution))


def _differences(values: Array) -> tuple[Array, Array, Array]:
    """Return mean difference, shared seeds (or (..., 1, 1)) and centred sum of squares of every pair."""
    present = np.isfinite(values)
    held = present.astype(float)
    centre = np.nan_to_num(_nanmean(values))
    centred = np.where(present, values - centre[..., None], 0.0)
    turned = np.swapaxes(held, -1, -2)
    # if no seed is lost, one number stands for all pairs
    whole = np.full((*values.shape[:-2], 1, 1), float(values.shape[-1]))
    shared = whole if present.all() else held @ turned
    sums = centred @ turned
    squares = centred**2 @ turned
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


def _ratio(top: Array, bottom: Array) -> Array:
    """Return the ratio, 0 for a divisor of 0."""
    return np.asarray(np.divide(top, bottom, out=np.zeros(np.shape(top)), where=bottom > 0))


def _epsilon(variances: Array, nu: Array) -> Array:
    """Return Box's epsilon tr(S)^2 / ((m - 1) tr(S^2)) of the cells' covariance, both traces unbiased under a Wishart law.

    The covariance up to a shift common to all cells is Gower's -1/2 J V J, V being the variances of the differences.
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
    """Return tr(S)^2 / (size tr(S^2)) from the traces of a `size` x `size` sample covariance on nu degrees of freedom.

    `trace` is that of S, `square` that of S^2. Both are used without bias: E tr(S^2) = (1 + 1/nu) tr(C^2) + tr(C)^2 / nu.
    NaN for nu <= 1.
    """
    known = nu > 1
    nu = np.where(known, nu, 2.0)
    of_square = nu**2 / ((nu - 1) * (nu + 2)) * (square - trace**2 / nu)
    squared_trace = trace**2 - 2 * of_square / nu
    positive = of_square > 1e-12 * np.maximum(trace**2, 1e-300)
    raw = np.divide(squared_trace, size * of_square, out=np.ones(nu.shape), where=positive)
    return np.where(known, np.clip(raw, 1 / size, 1.0), np.nan)


def _prior(own: Array, nu: Array, testable: Mask, epsilon: Array, typical_nu: Array) -> tuple[Array, Array, Array]:
    """Return d0, s0^2, and how many times noisier than all pairs (at least 1) each cell's typical pair is.

    d0 and s0^2 come from moments of log s^2 over pairs (Smyth 2004, section 6.2); d0 is bounded (`most_prior_df`).
    """
    size = own.shape[-1] - 1
    count, lost = np.maximum(testable.sum((-2, -1)), 1), ~testable
    most = int(nu.max(initial=1))
    known: Any = np.maximum(nu, 1).astype(np.intp) - 1 if (nu < most).any() else most - 1
    half = (np.arange(most) + 1) / 2  # few numbers of seeds, many pairs
    typical = np.nan_to_num(_nanmean(own.reshape(*own.shape[:-2], -1)))[..., None, None]
    centred = np.where(testable, own, typical)
    np.log(np.maximum(centred, np.maximum(1e-8 * typical, 1e-300), out=centred), out=centred)
    centred -= digamma(half)[known]
    centred += np.log(half)[known]
    np.copyto(centred, 0.0, where=lost)
    mean = centred.sum((-2, -1)) / count
    apart = centred - mean[..., None, None]
    np.copyto(np.square(apart, out=apart), 0.0, where=lost)
    spread = apart.sum((-2, -1)) / np.maximum(count - 1, 1)
    spread -= np.where(testable, polygamma(1, half)[known], 0.0).sum((-2, -1)) / count
    free = spread > 1e-6
    estimated = np.where(free, 2 * _trigamma_inverse(np.where(free, spread, 1.0)), np.inf)
    finite = np.where(free, estimated, 2.0)
    prior = np.where(free, np.exp(mean + digamma(finite / 2) - np.log(finite / 2)), np.exp(mean))
    steady = np.maximum(1 - _ratio(np.ones_like(typical_nu), typical_nu), 0)
    free_df = np.where(steady > 0, estimated * np.maximum(steady, 1e-300), 0.0)
    prior_df = np.minimum(free_df, most_prior_df(epsilon, size, typical_nu))
    each = centred.sum(-2) / np.maximum(testable.sum(-2), 1)
    louder = np.where(testable.any(-2), np.exp(np.maximum(each - mean[..., None], 0.0)), 1.0)
    return prior_df, np.where(np.isfinite(prior), prior, 0.0), louder


def most_prior_df(epsilon: Array, size: int, nu: Array) -> Array:
    """Return the bound on d0 for `size` directions on nu degrees of freedom each."""
    return np.asarray(np.maximum(np.nan_to_num(epsilon) * size - 1, 0) * np.maximum(nu - 1, 0))


def _trigamma_inverse(value: Array) -> Array:
    """Solve trigamma(y) = value by Newton's method on 1 / trigamma, which is nearly linear (Smyth 2004, appendix)."""
    y = 0.5 + 1 / value
    for _ in range(12):
        trigamma = polygamma(1, y)
        y = y + trigamma * (1 - trigamma / value) / polygamma(2, y)
    return np.asarray(y)


def split_between_cells(variances: Array) -> Array:
    """Solve mean_k V_ik = v_i + mean of the other cells' v for v; V without its diagonal. Two cells get half of V each."""
    m = variances.shape[-1]
    if m < 3:
        return np.asarray(np.where(np.eye(m, dtype=bool), 0.0, variances).sum(-1) / 2)
    means = np.where(np.eye(m, dtype=bool), 0.0, variances).sum(-1) / (m - 1)
    return np.asarray(np.maximum(((m - 1) * means - means.sum(-1, keepdims=True) / 2) / (m - 2), 0.0))


def _sums(cells: Array) -> Array:
    return np.asarray(cells[..., :, None] + cells[..., None, :])
