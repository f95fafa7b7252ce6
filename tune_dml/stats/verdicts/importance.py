"""Importance of knobs: Shapley effects and pair effects of a full grid or of a searched space.

Let f be the result as a function of independent knobs whose levels are equally likely, f_u its ANOVA parts for sets u
of knobs, and V_u = Var f_u. The effect of knob i is

    Sh_i = sum of V_u / |u| over the sets u that contain i,        sum_i Sh_i = Var f        (Owen 2014)

so joint effects are divided equally among their knobs. V_ij is the effect of the pair alone. Shares are Sh_i / Var f.

A full grid has f at every cell, with noise. Products of different seeds only (a U statistic) contain no squares of
noise. The interval of a share is that of its gradient, a contrast of cells, within seeds (`contrasts`). That is a
first-order interval. So shares are reported only if a main effect is significant at the same level and most of the
variance of the means is signal.

A search has f at some cells. A Gaussian process (scikit-learn's) is fitted to resamples of the cells' means. Shares are
computed for draws from all processes, so the interval reflects regions without cells and uncertain length scales.
Shares are reported only if the process predicts held-out cells. A knob's lower limit is above 0 only if a permutation
test finds its effect (`search_effect`).

Shares and their conditions must also hold if the trials that failed were the worst of their seeds: a noisy cell that
loses its low values would seem good, and a search whose worst region fails would seem flat.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations

import numpy as np

from tune_dml.stats.intervals import Array, Mask, size_of, without_rounding
from tune_dml.stats.intervals.contrasts import estimate_contrasts, fill_holes, fill_with_lowest, main_effect
from tune_dml.stats.verdicts.search_effect import judge_search_effect

_MIN_PREDICTED = 0.3
"""Share of the variance of held-out cells that a surrogate must predict; 2 / sqrt(cells) for fewer than 44 cells.

With pure noise, five folds of ten cells predict up to 0.6 in one search of a hundred, so few cells need a higher share.
"""
_MIN_SIGNAL = 0.5
"""Share of the variance of a full grid's means that must be signal, in addition to a significant main effect."""
_NEGLIGIBLE = 0.1  # limits this close to 0 or 1 become 0 or 1, which a surrogate never reaches
_MIN_CELLS, _MAX_CELLS = 10, 200
"""Range of the number of cells for the surrogate; of more cells a sample is used."""
_FOLDS, _RESAMPLES, _DRAWS = 5, 12, 25
_MAX_POINTS, _MOST_POINTS = 800, 1024
"""Points of the surrogate's grid, to which numbers are thinned; and the most that names and many knobs may have."""


@dataclass(frozen=True, eq=False)
class Importance:
    """Share of the variance that each knob explains, in the order of the knobs."""

    share: Array
    low: Array
    high: Array
    pairs: Array  # (knobs, knobs): share of the interaction of two knobs; zero on the diagonal
    predicted: float
    """For a search, R2 of held-out cells; for a grid, the share of the means' variance that is not noise."""
    problem: str = ""  # reason why no importance is reported; the shares are then NaN; else empty


def _shapley_effects(values: Array, knobs: int) -> tuple[Array, Array]:
    """Return effects (..., knobs) and pair effects (..., knobs, knobs) of tables without noise."""
    axes = tuple(range(-knobs, 0))
    variances = {subset: (part**2).mean(axes) for subset, part in _anova(values, knobs)}
    return _divide_among_knobs(variances, knobs)


def importance_of_grid(
    values: Array, alpha: float = 0.05, *, failed: Mask | None = None, resolution: float = 0.0
) -> Importance:
    """Estimate importance from a full grid; intervals are simultaneous.

    Trials that failed may have been the worst of their seeds. So the shares are estimated a second time with the lowest
    result of the seed in their place, and each interval covers both.

    Args:
        values: (q_1, .., q_d, seeds), NaN without a value; larger is better.
        alpha: the error of all intervals together.
        failed: same shape, the trials that failed; other holes have not run.
        resolution: step of the values.
    """
    found = _estimate_from_grid(values, alpha, resolution)
    if found.problem or failed is None or not failed.any():
        return found
    rows = (-1, values.shape[-1])
    filled = fill_with_lowest(values.reshape(rows), failed.reshape(rows)).reshape(values.shape)
    return _cover(found, _estimate_from_grid(filled, alpha, resolution))


def _cover(found: Importance, at_worst: Importance) -> Importance:
    """Return importance whose intervals cover both estimates; refuse it if the second one is refused."""
    if at_worst.problem:
        return replace(at_worst, problem=f"{at_worst.problem}, if the failed trials were the worst of their seeds")
    return replace(found, low=np.minimum(found.low, at_worst.low), high=np.maximum(found.high, at_worst.high))


def _estimate_from_grid(values: Array, alpha: float, resolution: float) -> Importance:
    *shape, seeds = values.shape
    knobs = len(shape)
    if seeds < 2:
        return _without_shares(knobs, math.nan, "one seed gives no noise estimate")
    cells = values.reshape(-1, seeds)
    filled = fill_holes(cells)[0]
    parts = dict(_anova(np.moveaxis(filled.reshape(*shape, seeds), -1, 0), knobs))
    means = {subset: part.mean(0) for subset, part in parts.items()}
    noisy = {subset: (mean**2).mean() for subset, mean in means.items()}
    squares = {subset: (part**2).sum(0).mean() for subset, part in parts.items()}
    unbiased = {subset: (seeds**2 * noisy[subset] - squares[subset]) / (seeds * (seeds - 1)) for subset in parts}
    total, noisy_total = sum(unbiased.values()), sum(noisy.values())
    signal = float(total / noisy_total) if noisy_total > 0 else 0.0
    if signal < _MIN_SIGNAL:
        reason = f"only {max(signal, 0):.0%} of the variance of the cells' means is not noise"
        return _without_shares(knobs, signal, reason)
    if not _has_main_effect(cells, tuple(shape), alpha, resolution):
        return _without_shares(knobs, signal, "no knob has a significant effect, averaged over the others")
    effects, pairs = _divide_among_knobs(unbiased, knobs)
    share = effects / total
    gradients = []
    for knob in range(knobs):
        own = sum(mean / len(subset) for subset, mean in means.items() if knob in subset)
        gradients.append(np.ravel(own - share[knob] * sum(means.values())) * 2 / total / math.prod(shape))
    contrasts = estimate_contrasts(cells, np.array(gradients), alpha, resolution=resolution)
    half = np.maximum(contrasts.high - contrasts.estimate, 0)
    return _clip_shares(share, share - half, share + half, pairs / total, signal)


def importance_of_search(
    positions: Sequence[Array],
    levels: Sequence[Array],
    values: Array,
    alpha: float = 0.05,
    *,
    failed: Mask | None = None,
) -> Importance:
    """Estimate importance from the cells of a search; intervals are simultaneous.

    Without its failed trials, a search whose worst region fails would seem flat. So the shares are estimated a second
    time, as in `importance_of_grid`.

    Args:
        positions: for each knob i, its position in each cell, (cells, c_i): one column from 0 to 1 for numbers, one
            column per name for names.
        levels: for each knob i, the equally likely positions over which its effect is taken, (q_i, c_i). If all
            knobs have more than 800 combinations, those of numbers are thinned.
        values: (cells, seeds), NaN for lost seeds; larger is better.
        alpha: the error of all intervals together.
        failed: same shape as `values`, the trials that failed.
    """
    found = _estimate_from_search(positions, levels, values, alpha)
    if found.problem or failed is None or not failed.any():
        return found
    return _cover(found, _estimate_from_search(positions, levels, fill_with_lowest(values, failed), alpha))


def _estimate_from_search(
    positions: Sequence[Array], levels: Sequence[Array], values: Array, alpha: float
) -> Importance:
    knobs, levels = len(positions), _thinned(levels)
    if (combinations_of_levels := math.prod(map(len, levels))) > _MOST_POINTS:
        reason = f"{combinations_of_levels} combinations of the knobs' values are too many, {_MOST_POINTS} are possible"
        return _without_shares(knobs, math.nan, reason)
    kept = np.flatnonzero(np.isfinite(values).any(1))
    if len(kept) > _MAX_CELLS:
        kept = np.random.default_rng(0).permutation(kept)[:_MAX_CELLS]
    points = np.hstack([column[kept] for column in positions])
    means = without_rounding(fill_holes(values[kept])[0].mean(1), size_of(values[kept]))
    if len(means) < _MIN_CELLS:
        reason = f"{len(means)} configurations with a number are too few, {_MIN_CELLS} are needed"
        return _without_shares(knobs, math.nan, reason)
    predicted = _predictive_r2(points, means)
    needed = max(_MIN_PREDICTED, 2 / math.sqrt(len(means)))
    if predicted < needed:
        reason = (
            f"a model of the configurations predicts {max(predicted, 0):.0%} of the variance of held-out ones, "
            f"and {needed:.0%} are needed"
        )
        return _without_shares(knobs, predicted, reason)
    shape = tuple(map(len, levels))
    grid = np.hstack([level[index.ravel()] for level, index in zip(levels, np.indices(shape), strict=True)])
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(_RESAMPLES):
        rows = rng.integers(0, len(means), len(means))
        drawn.append(_draw_functions(points[rows], means[rows], grid, rng))
    effects, pairs = _shapley_effects(np.concatenate(drawn).reshape(-1, *shape), knobs)
    total = effects.sum(-1, keepdims=True)
    shares = effects / total
    low, high = np.quantile(shares, [alpha / 2 / knobs, 1 - alpha / 2 / knobs], axis=0)
    columns = [column[kept] for column in positions]
    low, high = _without_idle(columns, means, (shares.mean(0), low, high), alpha / knobs)
    return _clip_shares(shares.mean(0), low, high, (pairs / total[..., None]).mean(0), predicted)


def _without_idle(
    positions: Sequence[Array], means: Array, shares: tuple[Array, Array, Array], alpha: float
) -> tuple[Array, Array]:
    """Return limits of shares (share, low, high): knobs without significant effect may have none, the others theirs.

    A process of few cells follows noise, most easily along names, whose levels have no order.
    """
    share, low, high = shares
    idle = np.ones(len(positions), dtype=bool)
    for knob, column in enumerate(positions):
        others = np.hstack([np.zeros((len(means), 0)), *positions[:knob], *positions[knob + 1 :]])
        effect = judge_search_effect(column, others, means)
        idle[knob] = effect is None or effect.p_value > alpha
    return np.where(idle, 0.0, low), np.maximum(high, share + np.where(idle, 0.0, share[idle].sum()))


def _has_main_effect(cells: Array, shape: tuple[int, ...], alpha: float, resolution: float) -> bool:
    """Return whether any two levels of a knob differ significantly; the knobs share the error."""
    for levels in np.indices(shape).reshape(len(shape), -1):
        if levels.max() > 0:
            weights = main_effect(levels.tolist())
            contrasts = estimate_contrasts(cells, weights, alpha / len(shape), resolution=resolution)
            if ((contrasts.low > 0) | (contrasts.high < 0)).any():
                return True
    return False


def _anova(values: Array, knobs: int) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yield every non-empty set u of knobs and its ANOVA part f_u of tables (..., q_1, .., q_knobs)."""
    for size in range(1, knobs + 1):
        for subset in combinations(range(knobs), size):

            def project(part: Array, knob: int, subset: tuple[int, ...] = subset) -> Array:
                average = part.mean(knob - knobs, keepdims=True)
                return part - average if knob in subset else np.broadcast_to(average, part.shape)

            yield subset, reduce(project, range(knobs), values)


def _divide_among_knobs(variances: dict[tuple[int, ...], Array], knobs: int) -> tuple[Array, Array]:
    """Divide each part's variance equally among its knobs; return knob effects and pair effects."""
    shape = next(iter(variances.values())).shape
    effects, pairs = np.zeros((*shape, knobs)), np.zeros((*shape, knobs, knobs))
    for subset, variance in variances.items():
        for knob in subset:
            effects[..., knob] += variance / len(subset)
        if len(subset) == 2:
            pairs[..., subset[0], subset[1]] = pairs[..., subset[1], subset[0]] = variance
    return effects, pairs


def _clip_shares(share: Array, low: Array, high: Array, pairs: Array, predicted: float) -> Importance:
    share = np.clip(share, 0, 1)
    low = np.where(low < _NEGLIGIBLE, 0.0, np.minimum(low, share))
    high = np.where(high > 1 - _NEGLIGIBLE, 1.0, np.clip(high, share, 1))
    return Importance(share, low, high, np.clip(pairs, 0, 1), predicted)


def _without_shares(knobs: int, predicted: float, problem: str) -> Importance:
    none = np.full(knobs, math.nan)
    return Importance(none, none, none, np.full((knobs, knobs), math.nan), predicted, problem)


def _fit_process(points: Array, values: Array):  # type: ignore[no-untyped-def]  # scikit-learn has no types
    """Fit a Gaussian process with noise and one length scale per column."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    scales = Matern(np.full(points.shape[1], 0.5), (0.05, 20), nu=2.5)
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * scales + WhiteKernel(0.1, (1e-4, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the scale of a knob without effect is at its bound
        return GaussianProcessRegressor(kernel, normalize_y=True).fit(points, values)


def _predictive_r2(points: Array, values: Array) -> float:
    """Return R2 of held-out cells in five folds; 0 for equal values."""
    if np.ptp(values) == 0:
        return 0.0
    predictions = np.empty_like(values)
    order = np.random.default_rng(0).permutation(len(values))
    for fold in range(_FOLDS):
        held_out = order[fold::_FOLDS]
        kept = np.setdiff1d(order, held_out)
        predictions[held_out] = _fit_process(points[kept], values[kept]).predict(points[held_out])
    spread = ((values - values.mean()) ** 2).sum()
    return float(1 - ((values - predictions) ** 2).sum() / spread)


def _draw_functions(points: Array, values: Array, grid: Array, rng: np.random.Generator) -> Array:
    """Draw functions (draws, grid) from the process, without measurement noise."""
    process = _fit_process(points, values)
    mean, spread = process.predict(grid, return_cov=True)
    sizes, axes = np.linalg.eigh(spread)
    noise = process.kernel_.k2.noise_level * values.var()  # part of the prediction's variance at each point
    root = (axes * np.sqrt(np.maximum(sizes - noise, 0))) @ axes.T  # free of the signs of eigenvectors
    return np.asarray(mean + rng.standard_normal((_DRAWS, len(grid))) @ root)


def _thinned(levels: Sequence[Array]) -> list[Array]:
    """Leave out values of the numbers with most values, evenly, until all knobs have at most 800 combinations."""
    counts = [len(level) for level in levels]
    numbers = [knob for knob, level in enumerate(levels) if level.shape[1] == 1]
    while math.prod(counts) > _MAX_POINTS and any(counts[knob] > 2 for knob in numbers):
        counts[max(numbers, key=lambda knob: counts[knob])] -= 1
    spread = (np.linspace(0, len(level) - 1, count) for level, count in zip(levels, counts, strict=True))
    return [level[rows.round().astype(int)] for level, rows in zip(levels, spread, strict=True)]


def levels_per_knob(knobs: int) -> int:
    """Return the number of levels for each knob with a range, such that the surrogate's grid stays small."""
    return max(2, min(12, int(_MAX_POINTS ** (1 / knobs))))
