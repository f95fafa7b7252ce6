"""Forecast what further seeds will show: simulate continuations of a table and judge each.

A continuation repeats the seeds so far and adds simulated ones, drawn from a posterior:

    noise   correlated as the residuals are, mixed with independent noise of each cell. The common scale and the scale
            of each cell are drawn from scaled inverse chi-square distributions
    means   mu ~ N(common, tau^2), y | mu ~ N(mu, noise / n). With a half-Cauchy prior, tau is drawn given the table,
            then mu given tau (Gelman et al., Bayesian Data Analysis, 5.4). This shrinks means that lie far apart by
            luck
    holes   each cell goes on losing seeds at its present rate

The chance of a verdict is the share of continuations that reach it at the level of the next look. Few seeds cannot show
whether the noise is independent or moves all cells together, as under a slope that differs from seed to seed. So the
chance is computed a second time with the residuals' own directions only, whose scale is as uncertain as one direction.
The smaller chance is promised (benchmarks/verdicts.py --only advice).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tune_dml.stats.intervals import Array, Mask
from tune_dml.stats.intervals.contrasts import FullGrid, fill_holes
from tune_dml.stats.intervals.noise import PairNoise, cell_variances, fit_pairs
from tune_dml.stats.intervals.simultaneous import all_pairs
from tune_dml.stats.intervals.tuned import TunedLevels
from tune_dml.stats.sequential.racing import next_look
from tune_dml.stats.verdicts.best import compare_with_best

Verdict = Callable[[Array, float], Mask]
"""Maps tables (runs, cells, seeds) and an error level to whether each table is decided."""

_MAX_GROWTH = 3  # looks are considered up to the first with at least this many times the current seeds
EVEN = 0.5  # minimum chance for which an extension is advised
_RUNS = 240
_MAX_PAIRS = 250_000
"""Maximum number of pairs of cells in all runs; many cells reduce the number of runs, to no less than `_MIN_RUNS`."""
_MIN_RUNS = 60
_MAX_CELLS = 200
"""Maximum number of cells of a forecast; its time grows with their cube."""
_INDEPENDENT = 4.0  # minimum degrees of freedom of the independent part of the noise
_TAUS = np.geomspace(0.01, 100.0, 48)
"""Grid of the prior's tau, in units of its scale and the noise of one trial."""


@dataclass(frozen=True)
class Forecast:
    """Number of seeds to extend to, and the chance that they decide."""

    seeds: int  # total number of seeds; the largest one considered if no extension is worth running
    chance: float

    @property
    def worth_it(self) -> bool:
        """Whether the chance is at least `EVEN`."""
        return self.chance >= EVEN


def forecast_seeds(
    values: Array, now: int, level: Callable[[int], float], decided: Verdict, *, scale: float, resolution: float = 0.0
) -> Forecast | None:
    """Return the number of seeds to extend to, and the chance that they decide.

    Return None with fewer than two seeds, or more than 200 cells.

    Args:
        values: cells x seeds, with holes.
        now: number of seeds of the sweep; `values` may hold fewer.
        level: maps a number of seeds to the error level of a look at them.
        decided: judges tables as the next report does.
        scale: scale of the prior of the differences, usually the margin.
        resolution: step of the values.
    """
    looks, n = _looks_ahead(now), values.shape[-1]
    further = [max(1, round((seeds - now) * n / now)) for seeds in looks]
    futures = _possible_continuations(values, max(further), scale, resolution)
    if futures is None:
        return None
    forecasts: list[Forecast] = []
    for seeds, added in zip(reversed(looks), reversed(further), strict=True):
        chance = min(float(decided(tables[..., : n + added], level(seeds)).mean()) for tables in futures)
        forecasts.append(Forecast(seeds, chance))
        if not forecasts[-1].worth_it:  # fewer seeds have less chance
            break
    return _choose(forecasts)


def forecast_fresh_seeds(
    values: Array,
    pair: tuple[int, int],
    counts: Sequence[int],
    *,
    scale: float,
    resolution: float = 0.0,
    alpha: float = 0.05,
) -> Forecast | None:
    """Return how many fresh seeds to run so that a paired t interval shows the first cell of a pair above the second.

    Larger is better. The other cells show how much of the first cell's lead is due to selection. Return None with fewer
    than two seeds, or more than 200 cells.
    """
    futures = _possible_continuations(values, max(counts), scale, resolution)
    if futures is None:
        return None

    def chance(tables: Array, count: int) -> float:
        fresh = tables[..., list(pair), values.shape[-1] :][..., :count]
        return float((all_pairs(fresh, alpha, fit_pairs(fresh, resolution)).low[..., 0, 1] > 0).mean())

    return _choose([Forecast(count, min(chance(tables, count) for tables in futures)) for count in counts])


def _looks_ahead(now: int) -> list[int]:
    """Return the seed counts of the next looks, among which the forecast chooses."""
    looks = [next_look(now)]
    while looks[-1] < _MAX_GROWTH * now:
        looks.append(next_look(looks[-1]))
    return looks


def _choose(forecasts: Sequence[Forecast]) -> Forecast:
    """Return the forecast with the largest chance per total seed, or with the most seeds if none is worth it."""
    if worthy := [forecast for forecast in forecasts if forecast.worth_it]:
        return max(worthy, key=lambda forecast: forecast.chance / forecast.seeds)
    return max(forecasts, key=lambda forecast: forecast.seeds)


def sensitivity_is_decided(
    margin: float, *, rows: Sequence[int] = (), tuned: bool = False, resolution: float = 0.0, flat_decides: bool = True
) -> Verdict:
    """Return a function that finds the tables with a verdict on the knob, as in `judge_sensitivity`.

    Args:
        margin: the smallest difference that matters.
        rows: index of each cell's value, if a value has several cells.
        tuned: whether a value is represented by its best cell, rather than by the average of its cells.
        resolution: step of the values.
        flat_decides: whether "does not matter" counts as decided.
    """

    def decided(values: Array, alpha: float) -> Mask:
        level_type = FullGrid if rows and not tuned else TunedLevels
        levels = level_type(values, tuple(rows) or tuple(range(values.shape[-2])), resolution)
        sensitive = np.asarray((levels.pairs(alpha).low > margin).any((-2, -1)))
        flat = np.asarray((levels.at_most(alpha) < margin).all((-2, -1)))
        return sensitive | flat if flat_decides else sensitive

    return decided


def best_is_known(resolution: float = 0.0) -> Verdict:
    """Return a function that finds the tables in which only one cell may be the best; larger is better."""

    def decided(values: Array, alpha: float) -> Mask:
        candidates = compare_with_best(values, alpha, fit_pairs(values, resolution)).candidates
        return np.asarray(candidates.sum(-1) == 1)

    return decided


def pairs_are_decided(
    row: int, margin: float, resolution: float = 0.0, *, tuned: Sequence[int] | None = None
) -> Verdict:
    """Return a function that finds the tables in which `row` is compared conclusively with every other row.

    A comparison is conclusive if the two rows differ significantly, or differ significantly by less than the margin.
    `tuned` maps each cell to its row, if the best of a row's cells represents it.
    """

    def decided(values: Array, alpha: float) -> Mask:
        bounds = TunedLevels(values, tuple(tuned or range(values.shape[-2])), resolution).pairs(alpha)
        low, high = np.delete(bounds.low[..., row, :], row, -1), np.delete(bounds.high[..., row, :], row, -1)
        return np.asarray(((low > 0) | (high < 0) | (np.maximum(high, -low) < margin)).all(-1))

    return decided


def _possible_continuations(values: Array, further: int, scale: float, resolution: float) -> tuple[Array, Array] | None:
    """Return continuations under mixed noise, and under noise in the residuals' directions; None if unknown."""
    if len(values) > _MAX_CELLS:
        return None
    mixed = _continuations(values, further, scale=scale, resolution=resolution)
    directed = _continuations(values, further, scale=scale, resolution=resolution, directed=True)
    return None if mixed is None or directed is None else (mixed, directed)


def _continuations(
    values: Array, further: int, *, scale: float, resolution: float = 0.0, runs: int = 0, directed: bool = False
) -> Array | None:
    """Draw tables (runs, cells, seeds + further) that begin with `values`; None without a noise estimate.

    The prior of the differences is half-Cauchy; its unit combines `scale` with the noise of one trial. `directed` noise
    has no part that is independent between cells.
    """
    cells, seeds = values.shape
    noise = fit_pairs(values, resolution)
    if cells < 2 or not noise.testable.any():
        return None
    runs = runs or int(np.clip(_MAX_PAIRS / cells**2, _MIN_RUNS, _RUNS))
    rng = np.random.default_rng(0)
    filled, _ = fill_holes(values)
    root = _noise_roots(values, filled, noise, resolution, (rng, runs), directed=directed)
    centre = filled.mean(-1)
    means = centre.mean() + _means(centre - centre.mean(), root, seeds, scale, rng)
    future = means[..., None] + root @ rng.standard_normal((runs, root.shape[-1], further))
    if resolution:
        future = np.round(future / resolution) * resolution
    lost_share = 1 - np.isfinite(values).mean()
    if lost_share:
        rate = (np.isnan(values).sum(-1) + lost_share) / (seeds + 1)
        future[rng.random(future.shape) < rate[:, None]] = np.nan
    return np.concatenate([np.broadcast_to(values, (runs, cells, seeds)), future], -1)


def _noise_roots(
    values: Array,
    filled: Array,
    noise: PairNoise,
    resolution: float,
    draws: tuple[np.random.Generator, int],
    *,
    directed: bool,
) -> Array:
    """Draw matrices (runs, cells, k) whose products with standard normal vectors are the noise of a seed."""
    (cells, seeds), (rng, runs) = filled.shape, draws
    nu = max(float(np.isfinite(values).sum(-1).mean()) - 1, 1.0)
    independent = 0.0 if directed else max(float(noise.prior_df), _INDEPENDENT)
    shared = nu / (nu + independent)
    variances = cell_variances(values, resolution)
    shrunk = (1 - shared) * variances.mean() + shared * variances
    residuals = filled - filled.mean(-1, keepdims=True)
    residuals = (residuals - residuals.mean(0)) / np.sqrt(max(seeds - 1, 1))
    df = nu + _INDEPENDENT
    cell_scales = (1 - 2 / df) * _inverse_chi_square(df, rng, (runs, cells))  # 1 on average
    directions = 1.0 if directed else max(float(np.nan_to_num(noise.epsilon, nan=0.5)) * (cells - 1), 1.0)
    common_scale = _inverse_chi_square(directions * nu, rng, (runs, 1, 1))
    separate = np.sqrt((1 - shared) * shrunk * cell_scales)[..., None] * np.eye(cells)
    correlated = np.broadcast_to(np.sqrt(shared) * residuals, (runs, cells, seeds))
    return np.asarray(np.sqrt(common_scale) * np.concatenate([separate, correlated], -1))


def _inverse_chi_square(df: float, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw ratios of a true variance to its estimate."""
    return np.asarray(df / rng.chisquare(df, shape))


def _means(centred: Array, root: Array, seeds: int, scale: float, rng: np.random.Generator) -> Array:
    """Draw true means (runs, cells), centred, given the observed centred means."""
    cells = len(centred)
    basis = np.linalg.qr(np.column_stack([np.ones(cells), np.eye(cells)[:, 1:]]))[0][:, 1:].T
    rotated = basis @ root
    spread, vectors = np.linalg.eigh(rotated @ np.swapaxes(rotated, -1, -2) / seeds)
    spread = np.maximum(spread, 1e-12 * max(scale, 1e-12) ** 2)
    observed = (np.swapaxes(vectors, -1, -2) @ (basis @ centred)[:, None])[..., 0]
    unit = np.sqrt(scale**2 + seeds * spread.mean(-1))
    taus = unit[:, None] * _TAUS
    total = taus[..., None] ** 2 + spread[:, None]
    likelihood = -0.5 * (np.log(total) + observed[:, None] ** 2 / total).sum(-1)
    logs = likelihood + np.log(_TAUS) - np.log1p(_TAUS**2)  # on a logarithmic grid
    weights = np.cumsum(np.exp(logs - logs.max(-1, keepdims=True)), -1)
    index = (weights < rng.random((len(taus), 1)) * weights[:, -1:]).sum(-1)
    tau2 = np.take_along_axis(taus, index[:, None], 1) ** 2
    shrinkage = tau2 / (tau2 + spread)
    # turned, so that draws do not depend on the signs of eigenvectors, which differ between processors
    normal = (np.swapaxes(vectors, -1, -2) @ rng.standard_normal(observed.shape)[..., None])[..., 0]
    drawn = shrinkage * observed + np.sqrt(shrinkage * spread) * normal
    return np.asarray((vectors @ drawn[..., None])[..., 0] @ basis)
