"""Measure error rates of tuned levels and of a tuned baseline, which `verdicts.py` prints."""

from collections.abc import Iterable
from itertools import product

import numpy as np
from simulated_sweeps import Array, excludes_zero, rate, simulate

from tune_dml.stats.intervals.tuned import TunedLevels

_NOISES = ("normal", "one cell 5x", "t3", "slope", "discrete")
"""The noisy cell is the best setting of the middle level. Discrete: normal noise rounded to steps of 0.5 s.d."""
_GRIDS = ((4, 4), (2, 5), (5, 3))
_TRUTHS = ("same", "shifted", "nothing", "mixed")
"""Settings are 2 s.d. apart, in the same order at every level or in different orders; or all settings are equal; or
every other level has settings 6 s.d. apart and the rest have equal ones. The best settings of all levels are equal."""
_SEEDS = (3, 5, 6, 10)
_MARGIN = 3.0


def tuned(sweeps: int) -> Iterable[str]:
    """Print false claims and power for levels that are tuned over a nuisance knob, on a third of the sweeps."""
    sweeps //= 3
    yield "Levels x settings: a difference claimed of equal tuned levels / one level 2 s.d. better is found."
    yield "Last: 1 and 3 s.d., normal noise"
    for grid, truth, seeds in product(_GRIDS, _TRUTHS, _SEEDS):
        row = []
        for noise in _NOISES:
            same, apart = (_simulate(noise, truth, grid, seeds, sweeps=sweeps, gap=gap) for gap in (0.0, 2.0))
            false = rate((_levels(same, noise).pairs().low > 0).any((1, 2)))
            row.append(f"{noise} {false}/{_finds_first(apart, noise):.2f}")
        for gap in (1.0, 3.0):
            values = _simulate("normal", truth, grid, seeds, sweeps=sweeps, gap=gap)
            row.append(f"{gap:.0f}: {_finds_first(values, 'normal'):.2f}")
        yield f"{grid[0]}x{grid[1]} {truth:>7} {seeds:2d} seeds:  " + "  ".join(row)
    yield from _equivalence(sweeps)


def _equivalence(sweeps: int) -> Iterable[str]:
    """Print 'does not matter' when one level is better by the margin, and when all are equal."""
    yield "'Does not matter', margin 3: false (one level is 3 better) / found (all equal)"
    for grid, truth, seeds in product(_GRIDS, _TRUTHS, _SEEDS):
        row = []
        for noise in _NOISES:
            apart, same = (_simulate(noise, truth, grid, seeds, sweeps=sweeps, gap=gap) for gap in (_MARGIN, 0.0))
            false, found = ((_levels(v, noise).at_most() < _MARGIN).all((1, 2)) for v in (apart, same))
            row.append(f"{noise} {rate(false)}/ {found.mean():.2f}")
        yield f"{grid[0]}x{grid[1]} {truth:>7} {seeds:2d} seeds:  " + "  ".join(row)


def tuned_baseline(sweeps: int) -> Iterable[str]:
    """Print false claims and power against a baseline of several cells, of which the best counts."""
    yield "Cells + baseline cells: a difference claimed to an equal baseline; every cell 3 s.d. better: some cell found"
    for (cells, baselines), seeds in product(((10, 10), (20, 20), (10, 3)), (3, 5, 10)):
        row, rows = [], (*range(cells), *([cells] * baselines))
        for index, noise in enumerate(_NOISES):
            rng, step = np.random.default_rng([cells, baselines, seeds, index]), _step(noise)
            values = simulate(noise, cells + baselines, seeds, sweeps, rng)
            better = values + 3.0 * (np.arange(cells + baselines) < cells)[:, None]
            same, apart = (TunedLevels(_round_to(table, step), rows, step).against(cells) for table in (values, better))
            false, found = excludes_zero(same)[:, :cells].any(1), (apart.low[:, :cells] > 0).any(1)
            row.append(f"{noise} {rate(false)}/{found.mean():.2f}")
        yield f"{cells:2d} + {baselines:2d} cells {seeds:2d} seeds:  " + "  ".join(row)


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


def _levels(values: Array, noise: str) -> TunedLevels:
    sweeps, levels, settings, seeds = values.shape
    rows = tuple(np.repeat(range(levels), settings).tolist())
    return TunedLevels(values.reshape(sweeps, levels * settings, seeds), rows, _step(noise))


def _finds_first(values: Array, noise: str) -> float:
    """Return the share of sweeps that claim the first level to be better than another."""
    return float((_levels(values, noise).pairs().low[:, 0] > 0).any(1).mean())
