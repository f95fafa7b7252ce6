"""Count false claims among the finished cells of a sweep with early stopping, which `verdicts.py` prints."""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import KINDS, Array, excludes_zero, rate, simulate

from tune_dml.planning.stopping import ETA
from tune_dml.stats.intervals.simultaneous import against, all_pairs

_CORRELATIONS = (0.5, 0.9)
"""Correlations between a trial's noise at a rung and at the end."""


def stopping(sweeps: int) -> Iterable[str]:
    """Print false claims among equal cells that finished, and against the baseline."""
    yield "Equal cells, two rungs that each keep the best third: any false claim among finished cells, among these and"
    yield "the baseline, and against the baseline: each at 5 %, then at 5 % x finished cells / started cells"
    for cells in (5, 18, 40):
        for seeds in (3, 5, 10):
            for correlation in _CORRELATIONS:
                row = []
                for index, kind in enumerate(KINDS):
                    rng = np.random.default_rng([cells, seeds, index])
                    row.append(f"{kind} {_rates(kind, (cells, seeds), correlation, sweeps, rng)}")
                yield f"{cells:3d} cells {seeds:3d} seeds, correlation {correlation}:  " + "   ".join(row)


def _rates(kind: str, shape: tuple[int, int], correlation: float, sweeps: int, rng: np.random.Generator) -> str:
    cells, seeds = shape
    end = simulate(kind, cells + 1, seeds, sweeps, rng)
    finished = finished_cells(end, correlation, rng)
    values = np.take_along_axis(end, finished[..., None], 1)
    found = []
    for level in (0.05, 0.05 * (finished.shape[1] - 1) / cells):
        alone, pairs, base = all_pairs(values[:, 1:], level), all_pairs(values, level), against(values, 0, level)
        claims = [(bounds.low > 0).any((1, 2)) for bounds in (alone, pairs)]
        found.append(" ".join(map(rate, [*claims, excludes_zero(base).any(1)])))
    return " / ".join(found)


def finished_cells(end: Array, correlation: float, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the indices of the baseline, cell 0, and of the cells of (sweeps, cells, seeds) that pass two rungs."""
    cells = np.tile(np.arange(1, end.shape[1]), (len(end), 1))
    for _ in range(2):
        noise = np.nanstd(end, (1, 2), keepdims=True) * rng.standard_normal(end.shape)
        rung = correlation * end + math.sqrt(1 - correlation**2) * noise
        counts = np.isfinite(rung).sum(-1)
        means = np.where(counts > 0, np.nansum(rung, -1) / np.maximum(counts, 1), -np.inf)
        means = np.take_along_axis(means, cells, 1)
        order = np.argsort(-means, 1)[:, : math.ceil(cells.shape[1] / ETA)]
        cells = np.take_along_axis(cells, order, 1)
    return np.concatenate([np.zeros((len(end), 1), dtype=int), cells], 1)
