"""Measure error rates of tuned levels and of a tuned baseline, which `verdicts.py` prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student
from simulated_sweeps import Array, excludes_zero, rate, simulate

from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import Bounds, against, all_pairs, at_most, half_widths
from tune_dml.stats.intervals.tuned import TunedLevels

Claims = NDArray[np.bool_]
_NOISES = ("normal", "one cell 5x", "t3", "slope", "discrete")
"""The noisy cell is the best setting of the middle level. Discrete: normal noise rounded to steps of 0.5 s.d."""
_GRIDS = ((4, 4), (2, 5), (5, 3))
_TRUTHS = ("same", "shifted", "nothing", "mixed")
"""Settings are 2 s.d. apart, in the same order at every level or in different orders; or all settings are equal; or
every other level has settings 6 s.d. apart and the rest have equal ones. The best settings of all levels are equal."""
_SEEDS = (3, 5, 6, 10)
_MARGIN = 3.0
_DRAWS = 500
"""Draws of the multiplier bootstrap."""


def tuned(sweeps: int) -> Iterable[str]:
    """Print false claims and power for levels that are tuned over a nuisance knob, on a third of the sweeps."""
    sweeps //= 3
    yield "Levels x settings: a difference claimed of equal tuned levels, earlier (a third of the seeds selects, the"
    yield "rest judge) / current; one level 2 s.d. better: found, earlier / current. Last: 1 and 3 s.d., normal noise"
    for (levels, settings), truth, seeds in product(_GRIDS, _TRUTHS, _SEEDS):
        row = []
        for noise in _NOISES:
            tables = [_simulate(noise, truth, (levels, settings), seeds, sweeps=sweeps, gap=gap) for gap in (0.0, 2.0)]
            false = [rate(_any_claim(method(tables[0], _step(noise)))) for method in (_split, _all_seeds)]
            found = [f"{_finds_first(method(tables[1], _step(noise))).mean():.2f}" for method in (_split, _all_seeds)]
            row.append(f"{noise} {'/'.join(false)} {'/'.join(found)}")
        for gap in (1.0, 3.0):
            values = _simulate("normal", truth, (levels, settings), seeds, sweeps=sweeps, gap=gap)
            found = [f"{_finds_first(method(values, 0.0)).mean():.2f}" for method in (_split, _all_seeds)]
            row.append(f"{gap:.0f}: {'/'.join(found)}")
        yield f"{levels}x{settings} {truth:>7} {seeds:2d} seeds:  " + "  ".join(row)
    yield from _alternatives(sweeps)
    yield from _equivalence(sweeps)


def _alternatives(sweeps: int) -> Iterable[str]:
    """Print error rate and power of other ways to judge tuned levels, on the same sweeps."""
    yield "Ways to judge: false claims of equal tuned levels, share of sweeps that find a level 2 s.d. better."
    yield "The last knows each level's best setting and compares only those cells"
    for (levels, settings), truth, noise, seeds in product(_GRIDS, ("same", "mixed"), _NOISES[:2], (5, 6, 10)):
        tables = [_simulate(noise, truth, (levels, settings), seeds, sweeps=sweeps, gap=gap) for gap in (0.0, 2.0)]
        row = [
            f"{name} {rate(_any_claim(judge(tables[0], 0.0)))} {_finds_first(judge(tables[1], 0.0)).mean():.2f}"
            for name, judge in _METHODS.items()
        ]
        best = _means(truth, (levels, settings)).argmax(1)
        oracle = [all_pairs(values[:, range(levels), best]).low for values in tables]
        row.append(f"known {rate(_any_claim(oracle[0]))} {_finds_first(oracle[1]).mean():.2f}")
        yield f"{levels}x{settings} {truth:>5} {noise:>11} {seeds:2d} seeds:  " + "  ".join(row)


def _equivalence(sweeps: int) -> Iterable[str]:
    """Print 'does not matter' when one level is better by the margin, and when all are equal."""
    yield "'Does not matter', margin 3: false (one level is 3 better) / found (all equal), earlier and current"
    for (levels, settings), truth, seeds in product(_GRIDS, _TRUTHS, _SEEDS):
        row = []
        for noise in _NOISES:
            apart, same = (
                _simulate(noise, truth, (levels, settings), seeds, sweeps=sweeps, gap=gap) for gap in (_MARGIN, 0.0)
            )
            false, found = (_within_margin(values, _step(noise)) for values in (apart, same))
            judged = _judged_seeds(same)
            earlier = (at_most(judged, 0.05, fit_pairs(judged, _step(noise))) < _MARGIN).all((1, 2))
            row.append(f"{noise} {rate(false)}/ {earlier.mean():.2f} {found.mean():.2f}")
        yield f"{levels}x{settings} {truth:>7} {seeds:2d} seeds:  " + "  ".join(row)


def tuned_baseline(sweeps: int) -> Iterable[str]:
    """Print false claims and power against a baseline of several cells, of which the best counts."""
    yield "Cells + baseline cells: a difference claimed to an equal baseline, best cell as fixed (earlier) / current;"
    yield "every cell 3 s.d. better: some cell found better, earlier / current"
    for (cells, baselines), seeds in product(((10, 10), (20, 20), (10, 3)), (3, 5, 10)):
        row = []
        for index, noise in enumerate(_NOISES):
            rng, step = np.random.default_rng([cells, baselines, seeds, index]), _step(noise)
            values = simulate(noise, cells + baselines, seeds, sweeps, rng)
            better = values + 3.0 * (np.arange(cells + baselines) < cells)[:, None]
            same, apart = (
                [way(_round_to(table, step), cells, step) for way in (_against_selected, _against_all)]
                for table in (values, better)
            )
            false = [rate(excludes_zero(bounds)[:, :cells].any(1)) for bounds in same]
            found = [f"{(bounds.low[:, :cells] > 0).any(1).mean():.2f}" for bounds in apart]
            row.append(f"{noise} {'/'.join(false)} {'/'.join(found)}")
        yield f"{cells:2d} + {baselines:2d} cells {seeds:2d} seeds:  " + "  ".join(row)


def _against_selected(values: Array, cells: int, step: float) -> Bounds:
    """Return intervals against the baseline cell with the best mean, as if it had not been selected."""
    best = np.take_along_axis(values, (cells + values[:, cells:].mean(-1).argmax(-1))[:, None, None], 1)
    table = np.concatenate([values[:, :cells], best], 1)
    return against(table, cells, 0.05, fit_pairs(table, step))


def _against_all(values: Array, cells: int, step: float) -> Bounds:
    rows = (*range(cells), *([cells] * (values.shape[1] - cells)))
    return TunedLevels(values, rows, step).against(cells)


def _step(noise: str) -> float:
    return 0.5 if noise == "discrete" else 0.0


def _round_to(values: Array, step: float) -> Array:
    return np.asarray(np.round(values / step) * step) if step else values


def _simulate(noise: str, truth: str, grid: tuple[int, int], seeds: int, *, sweeps: int, gap: float) -> Array:
    """Return (sweeps, levels, settings, seeds) with the first level better by `gap` at every setting."""
    levels, settings = grid
    step = _step(noise)
    rng = np.random.default_rng([levels, settings, seeds, _TRUTHS.index(truth), _NOISES.index(noise)])
    values = simulate(noise, levels * settings, seeds, sweeps, rng).reshape(sweeps, levels, settings, seeds)
    means = _means(truth, grid)
    means[0] += gap
    return _round_to(values + means[..., None], step)


def _means(truth: str, grid: tuple[int, int]) -> Array:
    """Return the means (levels, settings) with equal best settings; the noisy cell is the best of its level."""
    levels, settings = grid
    means, falling = np.zeros(grid), np.arange(settings)
    for level in range(levels):
        if truth == "same":
            means[level] = -2.0 * falling
        elif truth == "shifted":
            means[level] = -2.0 * np.roll(falling, level)
        elif truth == "mixed" and level % 2 == 0:
            means[level] = -6.0 * falling
    middle, noisy = divmod(levels * settings // 2, settings)
    means[middle] = np.roll(means[middle], noisy - int(means[middle].argmax()))
    return means


def _split(values: Array, step: float) -> Array:
    """Return lower bounds of all pairs of levels (sweeps, levels, levels) by the earlier method."""
    judged = _judged_seeds(values)
    return all_pairs(judged, 0.05, fit_pairs(judged, step)).low


def _judged_seeds(values: Array) -> Array:
    """Return, on the other seeds, the values of the setting that the first third of the seeds selects at each level."""
    selecting = max(1, values.shape[-1] // 3)
    setting = values[..., :selecting].mean(-1).argmax(-1)
    return np.asarray(np.take_along_axis(values, setting[..., None, None], -2)[..., 0, selecting:])


def _levels(values: Array, step: float) -> TunedLevels:
    sweeps, levels, settings, seeds = values.shape
    rows = tuple(np.repeat(range(levels), settings).tolist())
    return TunedLevels(values.reshape(sweeps, levels * settings, seeds), rows, step)


def _all_seeds(values: Array, step: float) -> Array:
    return _levels(values, step).pairs().low


def _within_margin(values: Array, step: float) -> Claims:
    return np.asarray((_levels(values, step).at_most() < _MARGIN).all((1, 2)))


def _own_t(values: Array, step: float) -> Array:
    """Return bounds without shared noise, corrected for every setting."""
    noise, tails = _levels(values, step).noise, 0.05 / values.shape[1] / (values.shape[1] - 1) / values.shape[2]
    with np.errstate(invalid="ignore"):
        reach = student.isf(tails, values.shape[-1] - 1) * np.sqrt(noise.own / values.shape[-1])
    return _fold(noise.estimate - reach, values)


def _moderated(values: Array, step: float) -> Array:
    """Return bounds with shared noise, corrected for every setting."""
    noise, (levels, settings) = _levels(values, step).noise, values.shape[1:3]
    return _fold(noise.estimate - half_widths(noise, 0.05, levels * (levels - 1) // 2 * settings), values)


def _bootstrap(values: Array, step: float) -> Array:
    """Return bounds from a Gaussian multiplier bootstrap of the maximum over pairs of levels and settings.

    Residuals are centred at the setting of the other level with the best mean. Uses at most 500 sweeps.
    """
    values = values[:500]
    sweeps, levels, settings, seeds = values.shape
    cells = values.reshape(sweeps, levels * settings, seeds)
    best = values.mean(-1).argmax(-1)
    draws = np.random.default_rng(0).standard_normal((seeds, _DRAWS)) / math.sqrt(seeds)
    maxima = np.zeros((sweeps, _DRAWS))
    for level in range(levels):
        rival = np.take_along_axis(values[:, level], best[:, level, None, None], 1)
        gaps = np.delete(cells, np.s_[level * settings : (level + 1) * settings], 1) - rival
        gaps -= gaps.mean(-1, keepdims=True)
        maxima = np.maximum(maxima, (gaps / gaps.std(-1, ddof=1, keepdims=True) @ draws).max(1))
    noise = _levels(values, step).noise
    with np.errstate(invalid="ignore"):
        reach = np.quantile(maxima, 0.95, axis=1)[:, None, None] * np.sqrt(noise.own / seeds)
    return _fold(noise.estimate - reach, values)


def _holm(values: Array, step: float) -> Array:
    """Return 1 for each ordered pair of levels that Holm's procedure claims. It has no intervals."""
    tuned, levels = _levels(values, step), values.shape[1]
    pairs_left = np.full(len(values), levels * (levels - 1))
    claimed = np.zeros((len(values), levels, levels), dtype=bool)
    for remaining in range(levels * (levels - 1), 0, -1):
        significant = tuned.low(0.05, -(-remaining // 2), sides=2) > 0
        claimed |= significant & (pairs_left <= remaining)[:, None, None]
        pairs_left = levels * (levels - 1) - claimed.sum((1, 2))
    return claimed.astype(float)


def _fold(low: Array, values: Array) -> Array:
    """Return the maximum over a level's settings of the minimum over the other level's; 0 for a level with itself."""
    sweeps, levels, settings, _ = values.shape
    folded = low.reshape(sweeps, levels, settings, levels, settings).min(-1).max(-2)
    return np.asarray(np.where(np.eye(levels, dtype=bool), 0.0, folded))


def _any_claim(low: Array) -> Claims:
    return np.asarray((low > 0).any((1, 2)))


def _finds_first(low: Array) -> Claims:
    """Return whether the first level is claimed to be better than another."""
    return np.asarray((low[:, 0] > 0).any(1))


_METHODS: dict[str, Callable[[Array, float], Array]] = {
    "split": _split,
    "own t": _own_t,
    "moderated": _moderated,
    "bootstrap": _bootstrap,
    "Holm": _holm,
    "current": _all_seeds,
}
