"""Importance of knobs: Shapley effects and pair effects of a full grid or of a searched space.

With f's ANOVA parts over independent knobs, each level equally likely, V_u = Var f_u, knob i's effect is

    Sh_i = sum of V_u / |u| over the sets u of knobs that hold i,        sum_i Sh_i = Var f        (Owen 2014)

so joint effects are shared equally between the knobs; V_ij is the effect that only the pair has. Shares are Sh_i / Var f.

A full grid has f at every cell, with noise. Multiplying different seeds only (a U statistic) leaves out squares of noise. The
interval of a share is that of its gradient, a contrast of cells, within seeds (`contrasts`). That is a first-order interval,
so nothing is claimed unless some main effect is significant at the same level and most of the means' variance is signal.

A search has f at some cells. A Gaussian process (scikit-learn's) is fitted to the cells' means, and to resamples of the cells.
Shares are taken over draws from all of them, so the interval reflects regions without cells and uncertain length scales.
Nothing is claimed if the process does not predict cells that it was not fitted to.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import numpy as np

from tune_dml.stats.intervals import Array
from tune_dml.stats.intervals.contrasts import estimate_contrasts, fill_holes, main_effect

_LEAST_PREDICTED = 0.3
"""Share of the variance of held-out cells that a surrogate must predict; 2 / sqrt(cells) for fewer than 44 cells.

With pure noise, five folds of ten cells predict up to 0.6 in one search of a hundred, so few cells must be predicted better.
"""
_LEAST_SIGNAL = 0.5
"""Share of the variance of a full grid's means that must not be noise, beside a significant main effect."""
_NEGLIGIBLE = 0.1
"""Limits this close to 0 or 1 become 0 or 1, which a surrogate never reaches."""
_LEAST_CELLS = 10
_MOST_CELLS = 200
"""Maximum number of cells for the surrogate; more are sampled."""
_FOLDS, _RESAMPLES, _DRAWS, _MOST_POINTS = 5, 12, 25, 800


@dataclass(frozen=True, eq=False)
class Importance:
    """Share of the variance that each knob explains, in the order of the knobs."""

    share: Array
    low: Array
    high: Array
    pairs: Array
    """(knobs, knobs): share of the interaction of two knobs; zero on the diagonal."""
    predicted: float
    """For a search, R2 of held-out cells; for a grid, the share of the means' variance that is not noise."""
    problem: str = ""
    """Reason why no importance is claimed, with NaN shares; else empty."""


def _shapley_effects(values: Array, knobs: int) -> tuple[Array, Array]:
    """Return effects (..., knobs) and pair effects (..., knobs, knobs) of tables without noise."""
    axes = tuple(range(-knobs, 0))
    parts = {held: (part**2).mean(axes) for held, part in _anova(values, knobs).items()}
    return _shared(parts, knobs)


def importance_of_grid(values: Array, alpha: float = 0.05, *, resolution: float = 0.0) -> Importance:
    """Estimate importance from a full grid (q_1, .., q_d, seeds), NaN for lost seeds; intervals are simultaneous."""
    *shape, seeds = values.shape
    knobs = len(shape)
    if seeds < 2:
        return _refused(knobs, math.nan, "one seed gives no noise estimate")
    filled = fill_holes(values.reshape(-1, seeds))[0]
    parts = _anova(np.moveaxis(filled.reshape(*shape, seeds), -1, 0), knobs)
    means = {held: part.mean(0) for held, part in parts.items()}
    noisy = {held: (mean**2).mean() for held, mean in means.items()}
    squares = {held: (part**2).sum(0).mean() for held, part in parts.items()}
    true = {held: (seeds**2 * noisy[held] - squares[held]) / (seeds * (seeds - 1)) for held in parts}
    total, seen = sum(true.values()), sum(noisy.values())
    signal = float(total / seen) if seen > 0 else 0.0
    if signal < _LEAST_SIGNAL:
        reason = f"only {max(signal, 0):.0%} of the variance of the cells' means is not noise"
        return _refused(knobs, signal, reason)
    cells = values.reshape(-1, seeds)
    if not _any_main_effect(cells, tuple(shape), alpha, resolution):
        return _refused(knobs, signal, "no knob has a significant effect, averaged over the others")
    effects, pairs = _shared(true, knobs)
    share = effects / total
    gradients = []
    for knob in range(knobs):
        own = sum(mean / len(held) for held, mean in means.items() if knob in held)
        gradients.append(np.ravel(own - share[knob] * sum(means.values())) * 2 / total / math.prod(shape))
    reach = estimate_contrasts(cells, np.array(gradients), alpha, resolution=resolution)
    half = np.maximum(reach.high - reach.estimate, 0)
    return _limited(share, share - half, share + half, pairs / total, signal)


def importance_of_search(
    tried: Sequence[Array], levels: Sequence[Array], values: Array, alpha: float = 0.05
) -> Importance:
    """Estimate importance from searched cells, `values` (cells, seeds), NaN for lost seeds; intervals are simultaneous.

    `tried[i]` (cells, c_i) is the position of knob i in each cell, in columns from 0 to 1 (one for numbers, one per name for
    names). `levels[i]` (q_i, c_i) are the positions over which its effect is taken, each equally likely.
    """
    knobs = len(tried)
    kept = np.flatnonzero(np.isfinite(values).any(1))
    if len(kept) > _MOST_CELLS:
        kept = np.random.default_rng(0).permutation(kept)[:_MOST_CELLS]
    points = np.hstack([column[kept] for column in tried])
    means = fill_holes(values[kept])[0].mean(1)
    if len(means) < _LEAST_CELLS:
        return _refused(
            knobs, math.nan, f"{len(means)} configurations with a number are too few, {_LEAST_CELLS} are needed"
        )
    predicted = _predicted(points, means)
    needed = max(_LEAST_PREDICTED, 2 / math.sqrt(len(means)))
    if predicted < needed:
        reason = (
            f"a model of the configurations predicts {max(predicted, 0):.0%} of the variance of held-out ones, "
            f"and {needed:.0%} are needed"
        )
        return _refused(knobs, predicted, reason)
    shape = tuple(map(len, levels))
    grid = np.hstack([level[index.ravel()] for level, index in zip(levels, np.indices(shape), strict=True)])
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(_RESAMPLES):
        rows = rng.integers(0, len(means), len(means))
        drawn.append(_drawn(points[rows], means[rows], grid, rng))
    effects, pairs = _shapley_effects(np.concatenate(drawn).reshape(-1, *shape), knobs)
    total = effects.sum(-1, keepdims=True)
    shares = effects / total
    low, high = np.quantile(shares, [alpha / 2 / knobs, 1 - alpha / 2 / knobs], axis=0)
    return _limited(shares.mean(0), low, high, (pairs / total[..., None]).mean(0), predicted)


def _any_main_effect(cells: Array, shape: tuple[int, ...], alpha: float, resolution: float) -> bool:
    """Return whether some levels of some knob differ significantly; knobs share the error."""
    for places in np.indices(shape).reshape(len(shape), -1):
        if places.max() > 0:
            weights = main_effect(places.tolist())
            contrasts = estimate_contrasts(cells, weights, alpha / len(shape), resolution=resolution)
            if ((contrasts.low > 0) | (contrasts.high < 0)).any():
                return True
    return False


def _anova(values: Array, knobs: int) -> dict[tuple[int, ...], Array]:
    """Return the ANOVA parts f_u of tables (..., q_1, .., q_knobs) for every non-empty set u of knobs."""
    parts: dict[tuple[int, ...], Array] = {}
    for size in range(1, knobs + 1):
        for held in combinations(range(knobs), size):

            def apart(part: Array, knob: int, held: tuple[int, ...] = held) -> Array:
                average = part.mean(knob - knobs, keepdims=True)
                return part - average if knob in held else np.broadcast_to(average, part.shape)

            parts[held] = reduce(apart, range(knobs), values)
    return parts


def _shared(parts: dict[tuple[int, ...], Array], knobs: int) -> tuple[Array, Array]:
    """Share each part's variance equally among its knobs; return knob and pair effects."""
    some = next(iter(parts.values()))
    effects, pairs = np.zeros((*some.shape, knobs)), np.zeros((*some.shape, knobs, knobs))
    for held, variance in parts.items():
        for knob in held:
            effects[..., knob] += variance / len(held)
        if len(held) == 2:
            pairs[..., held[0], held[1]] = pairs[..., held[1], held[0]] = variance
    return effects, pairs


def _limited(share: Array, low: Array, high: Array, pairs: Array, predicted: float) -> Importance:
    share = np.clip(share, 0, 1)
    low = np.where(low < _NEGLIGIBLE, 0.0, np.minimum(low, share))
    high = np.where(high > 1 - _NEGLIGIBLE, 1.0, np.clip(high, share, 1))
    return Importance(share, low, high, np.clip(pairs, 0, 1), predicted)


def _refused(knobs: int, predicted: float, problem: str) -> Importance:
    none = np.full(knobs, math.nan)
    return Importance(none, none, none, np.full((knobs, knobs), math.nan), predicted, problem)


def _fitted(points: Array, values: Array):  # type: ignore[no-untyped-def]  # scikit-learn has no types
    """Fit a Gaussian process with noise and one length scale per column."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    scales = Matern(np.full(points.shape[1], 0.5), (0.05, 20), nu=2.5)
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * scales + WhiteKernel(0.1, (1e-4, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a scale at its bound: the knob does nothing
        return GaussianProcessRegressor(kernel, normalize_y=True).fit(points, values)


def _predicted(points: Array, values: Array) -> float:
    """Return R2 of held-out cells in five folds."""
    guess = np.empty_like(values)
    order = np.random.default_rng(0).permutation(len(values))
    for fold in range(_FOLDS):
        out = order[fold::_FOLDS]
        kept = np.setdiff1d(order, out)
        guess[out] = _fitted(points[kept], values[kept]).predict(points[out])
    spread = ((values - values.mean()) ** 2).sum()
    return float(1 - ((values - guess) ** 2).sum() / spread) if spread > 0 else 0.0


def _drawn(points: Array, values: Array, grid: Array, rng: np.random.Generator) -> Array:
    """Draw functions (draws, grid) from the process, without measurement noise."""
    process = _fitted(points, values)
    mean, spread = process.predict(grid, return_cov=True)
    sizes, axes = np.linalg.eigh(spread)
    noise = process.kernel_.k2.noise_level * values.var()  # part of the prediction's variance at each point
    root = axes * np.sqrt(np.maximum(sizes - noise, 0))
    return np.asarray(mean + rng.standard_normal((_DRAWS, len(grid))) @ root.T)


def levels_a_knob(knobs: int) -> int:
    """Return the number of levels of each knob with a range; it keeps the surrogate's grid small."""
    return max(2, min(12, int(_MOST_POINTS ** (1 / knobs))))
