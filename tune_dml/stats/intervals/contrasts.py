"""Contrasts of cells with simultaneous intervals: main effects and interactions of a full grid.

A contrast sum_i w_i mu_i is estimated seed by seed, so its spread includes correlated and unequal noise. Its variance
is shrunk towards sum_i w_i^2 v_i, the variance that the cells' own noise v_i predicts. The shrinkage is bounded as in
`noise`, with epsilon computed in the space of these contrasts: only there does a knob's effect that differs from seed
to seed appear. With one direction (two levels) no noise can be borrowed. No interval is narrower than the contrast's
own t interval.

A hole is filled with its cell's mean plus its seed's effect. Its seed counts only for the share of the contrast's
weight that was measured, on the side (weights above or below 0) where less was: a seed with one side only shows no
difference. That is too many for cells with fewer seeds than others. Filled holes have no noise, and cells may react
alike to a seed. So a table with holes has the variance and the degrees of freedom that the errors of whole seeds give
the contrast of least-squares means (clusters). The variance is also at least the one from the cells' own noise, and the
contrast must pass a test of Welch's kind by itself: the noise of a cell with few seeds is itself uncertain. A contrast
with fewer than two measured seeds has no interval, nor has one in which the effects of seeds do not cancel, because it
weighs cells that no chain of common seeds connects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from tune_dml.stats.distributions import student_isf
from tune_dml.stats.intervals import ROUNDING, Array, Mask, size_of
from tune_dml.stats.intervals.noise import PairNoise, box_epsilon, cell_variances, fit_pairs, max_prior_df
from tune_dml.stats.intervals.resolution import variance_floor
from tune_dml.stats.intervals.simultaneous import GUARD_SHARE, Bounds, half_widths

_MAX_BIAS = 0.8
"""Share of failed trials times the root of the number of seeds (benchmarks/verdict_subsets.py): 36 % of 5, 25 % of 10."""


def main_effect(levels: Sequence[int]) -> Array:
    """Return weights (pairs, m) of the differences between level averages; `levels` gives the level of each cell."""
    averages = _averages(levels)
    return np.array([averages[a] - averages[b] for a, b in combinations(range(len(averages)), 2)])


def against_last(levels: Sequence[int]) -> Array:
    """Return weights (levels - 1, m) of each level's average minus that of the last level."""
    averages = _averages(levels)
    return np.asarray(averages[:-1] - averages[-1])


def _averages(levels: Sequence[int]) -> Array:
    member = np.asarray(levels)[None, :] == np.arange(max(levels) + 1)[:, None]
    return np.asarray(member / member.sum(1, keepdims=True))


def interaction(first: Sequence[int], second: Sequence[int]) -> Array:
    """Return weights (quadruples, m) of the interactions (a, c) - (b, c) - (a, d) + (b, d)."""
    cells = np.array(list(zip(first, second, strict=True)))
    rows = []
    for a, b in combinations(sorted(set(first)), 2):
        for c, d in combinations(sorted(set(second)), 2):
            row = np.zeros(len(cells))
            for pair, sign in (((a, c), 1.0), ((b, c), -1.0), ((a, d), -1.0), ((b, d), 1.0)):
                matching = (cells == pair).all(1)
                row[matching] = sign / matching.sum()
            rows.append(row)
    return np.array(rows)


def estimate_contrasts(
    values: Array, weights: Array, alpha: float = 0.05, *, comparisons: int | None = None, resolution: float = 0.0
) -> Bounds:
    """Estimate contrasts of tables (..., m, n); each row of `weights` sums to 0.

    `comparisons` is the number of contrasts that share the error (default: all); 1 judges each contrast by itself.
    """
    comparisons = len(weights) if comparisons is None else comparisons
    filled, present = fill_holes(values)
    per_seed = weights @ filled
    measured = np.minimum(*(_measured_share(np.maximum(side, 0), present) for side in (weights, -weights)))
    seeds = measured.sum(-1)
    nu = np.maximum(seeds - 1, 0)
    has_value = (np.abs(weights) @ present).any(-1) | ~weights.any(1)
    estimate = np.where(has_value, per_seed.mean(-1), np.nan)
    squares = ((per_seed - per_seed.mean(-1, keepdims=True)) ** 2).sum(-1)
    holes = (present == 0).any((-2, -1), keepdims=True)[..., 0]
    if holes.any():
        variance, df = _variance_by_seeds(filled, present, weights)
        nu = np.where(holes, np.minimum(nu, df), nu)
        squares = np.where(holes, nu * seeds * variance, squares)
    squares = np.maximum(squares, nu * variance_floor(resolution, weights))
    typical = nu.mean(-1)
    prior = np.minimum(fit_pairs(values, resolution).prior_df, _max_prior_df(filled, weights, typical))[..., None]
    cells = cell_variances(values, resolution)
    weight = prior / np.maximum(prior + typical[..., None], 1e-300)
    noise = weight * cells.mean(-1, keepdims=True) + (1 - weight) * cells
    expected = noise @ (weights**2).T
    total = np.maximum(prior + nu, 1e-300)
    moderated = (prior * expected + squares) / total
    own = squares / np.maximum(nu, 1e-300)
    family = student_isf(alpha / (2 * comparisons), np.maximum(total, 1)) * np.sqrt(moderated)
    share = GUARD_SHARE if comparisons > 1 else 1.0
    single = student_isf(share * alpha / 2, np.maximum(nu, 1)) * np.sqrt((own + np.maximum(own, expected)) / 2)
    # Below two measured seeds, filled holes leave hardly any spread.
    testable = (seeds > 2 - 1e-9) & _is_free_of_seeds(present, weights)
    reach = np.maximum(family, single) / np.sqrt(np.maximum(seeds, 1))
    if holes.any():
        squared = _squared_weights(present, weights)
        spread = np.sqrt((noise[..., None, :] * squared).sum(-1))
        exact = student_isf(alpha / (2 * comparisons), np.maximum(total, 1)) * spread
        exact = np.maximum(exact, _welch_half_widths(cells, squared, present, share * alpha / 2))
        reach = np.where(holes, np.maximum(reach, exact), reach)
    rounding = ROUNDING * size_of(values) @ np.abs(weights).T  # all that differs between equal cells
    reach = np.where(testable, np.maximum(reach, rounding), np.inf)
    return Bounds(estimate, estimate - reach, estimate + reach)


@dataclass(frozen=True, eq=False)
class FullGrid:
    """Cells of a full grid, in one or many tables; averages of the cells are the levels of a knob."""

    values: Array  # shape (..., cells, seeds)
    rows: tuple[int, ...]  # level into which each cell is averaged, from 0
    resolution: float = 0.0  # step of the cells' values

    @cached_property
    def noise(self) -> PairNoise:
        """Noise of the cells."""
        return fit_pairs(self.values, self.resolution)

    def pairs(self, alpha: float) -> Bounds:
        """Return simultaneous intervals of all differences between levels, (..., levels, levels)."""
        found = self._differences(alpha)
        sides = ((found.estimate, -found.estimate), (found.low, -found.high), (found.high, -found.low))
        return Bounds(*(self._square(upper, lower) for upper, lower in sides))

    def at_most(self, alpha: float) -> Array:
        """Return upper bounds of each |difference| by itself, (..., levels, levels); see `simultaneous.at_most`."""
        single = self._differences(2 * alpha, 1)
        limits = np.maximum(single.high, -single.low)
        return self._square(limits, limits)

    def reach(self, alpha: float, comparisons: int) -> Array:
        """Return one-sided half-widths of the differences between levels, (..., levels, levels)."""
        found = self._differences(2 * alpha, comparisons)
        return self._square(found.high - found.estimate, found.high - found.estimate)

    def _differences(self, alpha: float, comparisons: int | None = None) -> Bounds:
        weights = main_effect(self.rows)
        return estimate_contrasts(self.values, weights, alpha, comparisons=comparisons, resolution=self.resolution)

    def _square(self, upper: Array, lower: Array) -> Array:
        levels = max(self.rows) + 1
        first, second = np.triu_indices(levels, 1)
        matrix = np.zeros((*upper.shape[:-1], levels, levels))
        matrix[..., first, second], matrix[..., second, first] = upper, lower
        return matrix


def estimate_gains(
    values: Array,
    gains: Sequence[tuple[int, int]],
    differences: Sequence[tuple[int, int]] = (),
    alpha: float = 0.05,
    *,
    resolution: float = 0.0,
) -> Bounds:
    """Estimate gains of rows of a table over other rows, and differences of gains, with simultaneous intervals.

    A gain is the difference of two rows, judged with the noise of that pair. Its interval lies inside the interval of
    the comparison of all pairs. A difference of two gains is a contrast of their rows, whose noise may borrow from the
    gains.

    Args:
        values: cells x seeds, of one or many tables.
        gains: pairs (row, row over which it may gain).
        differences: pairs of indices into `gains`, the first gain minus the second.
        alpha: the error that all of them share.
        resolution: step of the values.

    Returns:
        The gains, then their differences.
    """
    noise, count = fit_pairs(values, resolution), len(gains) + len(differences)
    rows, others = (np.array(side) for side in zip(*gains, strict=True))
    middle = noise.estimate[..., rows, others]
    reach = half_widths(noise, alpha, count)[..., rows, others]
    estimates = Bounds(middle, middle - reach, middle + reach)
    if not differences:
        return estimates
    weights = np.zeros((len(gains), values.shape[-2]))
    weights[range(len(gains)), rows], weights[range(len(gains)), others] = 1, -1
    firsts, seconds = (np.array(side) for side in zip(*differences, strict=True))
    both = np.concatenate([weights, weights[firsts] - weights[seconds]])
    contrasts = estimate_contrasts(values, both, alpha, comparisons=count, resolution=resolution)
    parts = zip(vars(estimates).values(), vars(contrasts).values(), strict=True)
    return Bounds(*(np.concatenate([gain, contrast[..., len(gains) :]], -1) for gain, contrast in parts))


def _measured_share(weights: Array, present: Array) -> Array:
    """Return the share of each contrast's weight that each seed has, (..., k, n); `weights` has one side of it."""
    size = weights.sum(1)[:, None]
    return np.where(size > 0, (weights @ present) / np.where(size > 0, size, 1), 1.0)


def _max_prior_df(filled: Array, weights: Array, nu: Array) -> Array:
    """Return the maximum prior degrees of freedom in the space that the contrasts span."""
    _, sizes, basis = np.linalg.svd(weights, full_matrices=False)
    basis = basis[sizes > 1e-9 * sizes.max()]
    size = max(len(basis), 1)
    scores = basis @ filled
    scores = scores - scores.mean(-1, keepdims=True)
    gram = np.swapaxes(scores, -1, -2) @ scores / max(filled.shape[-1] - 1, 1)
    trace = np.trace(gram, axis1=-2, axis2=-1)
    return max_prior_df(box_epsilon(trace, (gram**2).sum((-2, -1)), size, nu), size, nu)


def _is_free_of_seeds(present: Array, weights: Array) -> Mask:
    """Return whether each contrast's weights sum to 0 in every group of cells that common seeds connect, (..., k)."""
    if present.all():
        return np.ones(len(weights), dtype=bool)
    linked = np.minimum(np.swapaxes(present, -1, -2) @ present, 1)
    for _ in range(present.shape[-1].bit_length()):  # each product doubles the length of the chains
        linked = np.minimum(linked @ linked, 1)
    sums = np.abs(weights @ np.minimum(present @ linked, 1)).max(-1)
    sums += (present == 0).all(-1) @ np.abs(weights).T  # a cell without seeds is a group
    return np.asarray(sums < 1e-9 * np.abs(weights).max(1, initial=1e-300))


def _inverse_of_seeds(present: Array) -> Array:
    """Return the pseudo-inverse (..., n, n) of the normal equations for the effects of seeds, beside those of cells."""
    under_cell = present / np.maximum(present.sum(-1, keepdims=True), 1)
    normal = np.eye(present.shape[-1]) * present.sum(-2)[..., None, :] - np.swapaxes(present, -1, -2) @ under_cell
    return np.asarray(np.linalg.pinv(normal, rcond=1e-10, hermitian=True))


def _weights_of_values(present: Array, weights: Array) -> tuple[Array, Array]:
    """Return slopes (..., k, m) and means (..., k, n) of the weights of values: b_ij = slope_i - mean_j.

    b_ij is the weight of cell i's value under seed j in the contrast of the least-squares means of cells, which allow
    for effects of seeds.
    """
    averaged = weights / np.maximum(present.sum(-1), 1)[..., None, :]
    means = averaged @ present @ _inverse_of_seeds(present)
    slopes = averaged + means @ np.swapaxes(present, -1, -2) / np.maximum(present.sum(-1), 1)[..., None, :]
    return slopes, means


def _squared_weights(present: Array, weights: Array) -> Array:
    """Return sum_j b_ij^2, (..., k, m): the variance of a cell's values times this enters that of a contrast."""
    seeds, transposed = present.sum(-1)[..., None, :], np.swapaxes(present, -1, -2)
    slopes, means = _weights_of_values(present, weights)
    squares = slopes**2 * seeds - 2 * slopes * (means @ transposed) + means**2 @ transposed
    return np.asarray(np.maximum(squares, 0))


def _variance_by_seeds(filled: Array, present: Array, weights: Array) -> tuple[Array, Array]:
    """Return the variance of each contrast from what each seed adds to its error, and its degrees of freedom, (..., k).

    Cells may react alike to a seed, so a seed's parts are added up before they are squared. A part is enlarged for the
    share of the variance that it has under independent noise, because residuals are smaller than errors.
    """
    slopes, means = _weights_of_values(present, weights)
    residuals = (filled - filled.mean(-1, keepdims=True)) * present
    parts = slopes @ residuals - means * residuals.sum(-2)[..., None, :]
    squares = slopes**2 @ present - 2 * means * (slopes @ present) + means**2 * present.sum(-2)[..., None, :]
    shares = np.maximum(squares, 0) / np.maximum(squares.sum(-1, keepdims=True), 1e-300)
    variance = (parts**2 / np.maximum(1 - shares, 1e-9)).sum(-1)
    return variance, 1 / np.maximum((shares**2).sum(-1), 1e-300) - 1


def _welch_half_widths(variances: Array, squared: Array, present: Array, tail: float) -> Array:
    """Return half-widths from the cells' own variances, with Welch's (1947) degrees of freedom, (..., k).

    A contrast whose noise comes from a cell with few seeds has hardly more degrees of freedom than this cell.
    """
    parts = variances[..., None, :] * squared
    total, df = parts.sum(-1), np.maximum(present.sum(-1) - 1, 1)[..., None, :]
    below = (parts**2 / df).sum(-1)
    welch = np.divide(total**2, below, out=np.ones_like(below), where=below > 0)
    return np.asarray(student_isf(tail, np.maximum(welch, 1)) * np.sqrt(total))


def fill_holes(values: Array) -> tuple[Array, Array]:
    """Fill holes with cell mean + seed effect, by least squares.

    Returns:
        The filled table, and an array of the same shape with 1 for values and 0 for holes.
    """
    finite = np.isfinite(values)
    present = finite.astype(float)
    if finite.all():
        return values, present
    count = np.maximum(present.sum(-1, keepdims=True), 1)
    means = np.where(finite, values, 0.0).sum(-1, keepdims=True) / count
    sums = np.where(finite, values - means, 0.0).sum(-2, keepdims=True)
    seeds = sums @ _inverse_of_seeds(present)
    cells = means - present @ np.swapaxes(seeds, -1, -2) / count
    return np.where(finite, values, cells + seeds), present


def fill_with_lowest(values: Array, failed: Mask) -> Array:
    """Fill the failed trials of tables (..., m, n) with the lowest value of their seed; seeds without values stay empty."""
    lowest = np.where(np.isfinite(values), values, np.inf).min(-2, keepdims=True)
    return np.where(failed & np.isfinite(lowest), lowest, values)


def fill_with_highest(values: Array, failed: Mask) -> Array:
    """Fill the failed trials with the highest value of their seed; see `fill_with_lowest`."""
    return -fill_with_lowest(-values, failed)


def can_bias_means(failed: Mask) -> Mask:
    """Return whether so many trials of tables (..., m, n) failed that the lowest value of a seed is too high for them.

    Losing a share p of the lowest results raises a mean by about p standard deviations. Its error falls with the root of
    the number of seeds.
    """
    return np.asarray(failed.mean((-2, -1)) * np.sqrt(failed.shape[-1]) > _MAX_BIAS)
