"""Error rates of tuned levels and of a tuned baseline; `verdicts.py` prints them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student
from simulated_sweeps import Array, rate, simulate

from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import against, all_pairs, at_most, half_widths
from tune_dml.stats.intervals.tuned import TunedLevels

Claims = NDArray[np.bool_]
_NOISES = ("normal", "one cell 5x", "t3", "slope", "discrete")
"""The noisy cell is the best setting of the middle level. Discrete: normal noise rounded to steps of half its deviation."""
_GRIDS = ((4, 4), (2, 5), (5, 3))
_TRUTHS = ("same", "shifted", "nothing", "mixed")
"""Settings 2 s.d. apart in the same order at every level; in another order at each; all equal; every other level all equal and
the rest 6 s.d. apart. The best settings of all levels are equal."""
_SEEDS = (3, 5, 6, 10)
_MARGIN = 3.0
_DRAWS = 500
"""Multipliers of a bootstrap."""


def tuned(sweeps: int) -> Iterable[str]:
    """A knob tuned over a nuisance knob that acts, or methods tuned each for itself; a third of the sweeps, for 132 rows."""
    sweeps //= 3
    yield "Levels x settings, tuned: a difference claimed of equal tuned levels, on a third of the seeds chosen and on the others"
    yield "judged (before) / new; one level's best 2 s.d. better: found before / new. Last: 1 and 3 s.d. better, normal noise"
    for (levels, settings), truth, seeds in product(_GRIDS, _TRUTHS, _SEEDS):
        row = []
        for noise in _NOISES:
            drawn = [_drawn(noise, truth, (levels, settings), seeds, sweeps=sweeps, gap=gap) for gap in (0.0, 2.0)]
            false = [rate(_any(method(drawn[0], _step(noise)))) for method in (_split, _all_seeds)]
            found = [f"{_first(method(drawn[1], _step(noise))).mean():.2f}" for method in (_split, _all_seeds)]
            row.append(f"{noise} {'/'.join(false)} {'/'.join(found)}")
        for gap in (1.0, 3.0):
            values = _drawn("normal", truth, (levels, settings), seeds, sweeps=sweeps, gap=gap)
            row.append(f"{gap:.0f}: {'/'.join(f'{_first(m(values, 0.0)).mean():.2f}' for m in (_split, _all_seeds))}")
        yield f"{levels}x{settings} {truth:>7} {seeds:2d} seeds:  " + "  ".join(row)
    yield from _candidates(sweeps)
    yield from _equal(sweeps)


def _candidates(sweeps: int) -> Iterable[str]:
    """Other ways to judge tuned levels, on the same sweeps."""
    yield "Ways to judge: false claims of equal tuned levels, share of sweeps in which the level that is 2 s.d. better is found."
    yield "The last knows each level's best setting and compares those cells alone"
    for (levels, settings), truth, noise, seeds in product(_GRIDS, ("same", "mixed"), _NOISES[:2], (5, 6, 10)):
        drawn = [_drawn(noise, truth, (levels, settings), seeds, sweeps=sweeps, gap=gap) for gap in (0.0, 2.0)]
        row = [
            f"{name} {rate(_any(w(drawn[0], 0.0)))} {_first(w(drawn[1], 0.0)).mean():.2f}" for name, w in _WAYS.items()
        ]
        best = _means(truth, (levels, settings)).argmax(1)
        known = [all_pairs(values[:, range(levels), best]).low for values in drawn]
        row.append(f"known {rate(_any(known[0]))} {_first(known[1]).mean():.2f}")
        yield f"{levels}x{settings} {truth:>5} {noise:>11} {seeds:2d} seeds:  " + "  ".join(row)


def _equal(sweeps: int) -> Iterable[str]:
    """'Does not matter' where one level's best is the margin better, and where all are equal."""
    yield "'Does not matter', margin 3: false (one level's best is 3 better) / found (all equal) before and new"
    for (levels, settings), truth, seeds in product(_GRIDS, _TRUTHS, _SEEDS):
        row = []
        for noise in _NOISES:
            apart, same = (
                _drawn(noise, truth, (levels, settings), seeds, sweeps=sweeps, gap=gap) for gap in (_MARGIN, 0.0)
            )
            false, found = (_small(values, _step(noise)) for values in (apart, same))
            before = (at_most(_chosen(same), 0.05, fit_pairs(_chosen(same), _step(noise))) < _MARGIN).all((1, 2))
            row.append(f"{noise} {rate(false)}/ {before.mean():.2f} {found.mean():.2f}")
        yield f"{levels}x{settings} {truth:>7} {seeds:2d} seeds:  " + "  ".join(row)


def tuned_baseline(sweeps: int) -> Iterable[str]:
    """Cells against a baseline of several cells, of which the best counts."""
    yield "Cells + baseline cells: a difference claimed to an equally good baseline, its best cell taken as fixed (before) / new;"
    yield "every cell 3 s.d. better: some cell found better before / new"
    for (cells, baselines), seeds in product(((10, 10), (20, 20), (10, 3)), (3, 5, 10)):
        row = []
        for place, noise in enumerate(_NOISES):
            kind = "iid" if noise in {"normal", "discrete"} else noise
            rng, step = np.random.default_rng([cells, baselines, seeds, place]), _step(noise)
            values = simulate(kind, cells + baselines, seeds, sweeps, rng)
            better = values.copy()
            better[:, :cells] += 3.0
            false, found = [], []
            for drawn in (_rounded(each, step) for each in (values, better)):
                ways = (_best_as_fixed(drawn, cells, step), _against_all(drawn, cells, step))
                false = false or [rate((low > 0).any(1) | (high < 0).any(1)) for low, high in ways]
                found = [f"{(low > 0).any(1).mean():.2f}" for low, _ in ways]
            row.append(f"{noise} {'/'.join(false)} {'/'.join(found)}")
        yield f"{cells:2d} + {baselines:2d} cells {seeds:2d} seeds:  " + "  ".join(row)


def _best_as_fixed(values: Array, cells: int, step: float) -> tuple[Array, Array]:
    """Ends of the intervals against the baseline cell that has the best mean, as if nothing had chosen it."""
    best = np.take_along_axis(values, (cells + values[:, cells:].mean(-1).argmax(-1))[:, None, None], 1)
    table = np.concatenate([values[:, :cells], best], 1)
    bounds = against(table, cells, 0.05, fit_pairs(table, step))
    return bounds.low[:, :cells], bounds.high[:, :cells]


def _against_all(values: Array, cells: int, step: float) -> tuple[Array, Array]:
    rows = (*range(cells), *([cells] * (values.shape[1] - cells)))
    bounds = TunedLevels(values, rows, step).against(cells)
    return bounds.low[:, :cells], bounds.high[:, :cells]


def _step(noise: str) -> float:
    return 0.5 if noise == "discrete" else 0.0


def _rounded(values: Array, step: float) -> Array:
    return np.asarray(np.round(values / step) * step) if step else values


def _drawn(noise: str, truth: str, grid: tuple[int, int], seeds: int, *, sweeps: int, gap: float) -> Array:
    """Sweeps (sweeps, levels, settings, seeds); the first level is better by `gap` at every setting."""
    levels, settings = grid
    step = _step(noise)
    rng = np.random.default_rng([levels, settings, seeds, _TRUTHS.index(truth), _NOISES.index(noise)])
    kind = "iid" if noise in {"normal", "discrete"} else noise
    values = simulate(kind, levels * settings, seeds, sweeps, rng).reshape(sweeps, levels, settings, seeds)
    means = _means(truth, grid)
    means[0] += gap
    return _rounded(values + means[..., None], step)


def _means(truth: str, grid: tuple[int, int]) -> Array:
    """Of every level and setting, the best settings equal; the noisy cell of one level is its best."""
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
    """Lower bounds of all pairs of levels (sweeps, levels, levels), as they were judged before."""
    judged = _chosen(values)
    return all_pairs(judged, 0.05, fit_pairs(judged, step)).low


def _chosen(values: Array) -> Array:
    """Each level's setting by the first third of the seeds, on the other seeds."""
    choosing = max(1, values.shape[-1] // 3)
    setting = values[..., :choosing].mean(-1).argmax(-1)
    return np.asarray(np.take_along_axis(values, setting[..., None, None], -2)[..., 0, choosing:])


def _levels(values: Array, step: float) -> TunedLevels:
    sweeps, levels, settings, seeds = values.shape
    rows = tuple(np.repeat(range(levels), settings).tolist())
    return TunedLevels(values.reshape(sweeps, levels * settings, seeds), rows, step)


def _all_seeds(values: Array, step: float) -> Array:
    return _levels(values, step).pairs().low


def _small(values: Array, step: float) -> Claims:
    return np.asarray((_levels(values, step).at_most() < _MARGIN).all((1, 2)))


def _own_t(values: Array, step: float) -> Array:
    """The same without shared noise, and with every setting in the correction."""
    noise, tails = _levels(values, step).noise, 0.05 / values.shape[1] / (values.shape[1] - 1) / values.shape[2]
    with np.errstate(invalid="ignore"):
        reach = student.isf(tails, values.shape[-1] - 1) * np.sqrt(noise.own / values.shape[-1])
    return _folded(noise.estimate - reach, values)


def _moderated(values: Array, step: float) -> Array:
    """The same with every setting in the correction."""
    noise, (levels, settings) = _levels(values, step).noise, values.shape[1:3]
    return _folded(noise.estimate - half_widths(noise, 0.05, levels * (levels - 1) // 2 * settings), values)


def _bootstrap(values: Array, step: float) -> Array:
    """Gaussian multipliers on the seeds' residuals: their maximum over pairs of levels and settings.

    Centred at equality with the setting of the other level that has the best mean. Of 500 sweeps at most.
    """
    values = values[:500]
    sweeps, levels, settings, seeds = values.shape
    cells = values.reshape(sweeps, levels * settings, seeds)
    best = values.mean(-1).argmax(-1)
    draws = np.random.default_rng(0).standard_normal((seeds, _DRAWS)) / math.sqrt(seeds)
    most = np.zeros((sweeps, _DRAWS))
    for level in range(levels):
        rival = np.take_along_axis(values[:, level], best[:, level, None, None], 1)
        gaps = np.delete(cells, np.s_[level * settings : (level + 1) * settings], 1) - rival
        gaps -= gaps.mean(-1, keepdims=True)
        most = np.maximum(most, (gaps / gaps.std(-1, ddof=1, keepdims=True) @ draws).max(1))
    noise = _levels(values, step).noise
    with np.errstate(invalid="ignore"):
        reach = np.quantile(most, 0.95, axis=1)[:, None, None] * np.sqrt(noise.own / seeds)
    return _folded(noise.estimate - reach, values)


def _holm(values: Array, step: float) -> Array:
    """Ordered pairs of levels by Holm's procedure: claims have no intervals, so 1 stands for a claim."""
    tuned, levels = _levels(values, step), values.shape[1]
    left = np.full(len(values), levels * (levels - 1))
    claimed = np.zeros((len(values), levels, levels), dtype=bool)
    for left_at_most in range(levels * (levels - 1), 0, -1):
        now = tuned.low(0.05, -(-left_at_most // 2), sides=2) > 0
        claimed |= now & (left <= left_at_most)[:, None, None]
        left = levels * (levels - 1) - claimed.sum((1, 2))
    return claimed.astype(float)


def _folded(low: Array, values: Array) -> Array:
    """max_s min_t, as the issue proposed it; 0 of a level with itself."""
    sweeps, levels, settings, _ = values.shape
    folded = low.reshape(sweeps, levels, settings, levels, settings).min(-1).max(-2)
    return np.asarray(np.where(np.eye(levels, dtype=bool), 0.0, folded))


def _any(low: Array) -> Claims:
    return np.asarray((low > 0).any((1, 2)))


def _first(low: Array) -> Claims:
    """Whether the first level is said to be better than some other one."""
    return np.asarray((low[:, 0] > 0).any(1))


_WAYS: dict[str, Callable[[Array, float], Array]] = {
    "split": _split,
    "own t": _own_t,
    "moderated": _moderated,
    "bootstrap": _bootstrap,
    "Holm": _holm,
    "new": _all_seeds,
}
