"""False claims among the cells that a sweep lets finish, where the others were stopped early; `verdicts.py` prints it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import KINDS, Array, rate, simulate

from tune_dml.planning.stopping import ETA
from tune_dml.stats.intervals.simultaneous import against, all_pairs

_LIKE = (0.5, 0.9)
"""Correlations of a trial's noise at a rung with that at the end."""


def stopping(sweeps: int) -> Iterable[str]:
    """Nothing differs: claims between those that finished, and of those with the baseline."""
    yield "Equal cells, the best third goes on twice: false claims of any difference among those that finished, beside a"
    yield "baseline among all, of any with the baseline: each at 5 %, then at 5 % x those that finished / those that began"
    for cells in (5, 18, 40):
        for seeds in (3, 5, 10):
            for like in _LIKE:
                row = []
                for place, kind in enumerate(KINDS):
                    rng = np.random.default_rng([cells, seeds, place])
                    row.append(f"{kind} {_rates(kind, (cells, seeds), like, sweeps, rng)}")
                yield f"{cells:3d} cells {seeds:3d} seeds, like the end {like}:  " + "   ".join(row)


def _rates(kind: str, shape: tuple[int, int], like: float, sweeps: int, rng: np.random.Generator) -> str:
    cells, seeds = shape
    end = simulate(kind, cells + 1, seeds, sweeps, rng)
    left = finishing(end, like, rng)
    kept = np.take_along_axis(end, left[..., None], 1)
    found = []
    for level in (0.05, 0.05 * (left.shape[1] - 1) / cells):
        alone, pairs, base = all_pairs(kept[:, 1:], level), all_pairs(kept, level), against(kept, 0, level)
        claims = [(one.low > 0).any((1, 2)) for one in (alone, pairs)]
        found.append(" ".join(map(rate, [*claims, ((base.low > 0) | (base.high < 0)).any(1)])))
    return " / ".join(found)


def finishing(end: Array, like: float, rng: np.random.Generator) -> NDArray[np.intp]:
    """The rows that finish of tables (..., cells, seeds), the first of which is the baseline: two rungs, by their means."""
    left = np.tile(np.arange(1, end.shape[1]), (len(end), 1))
    for _ in range(2):
        now = like * end + math.sqrt(1 - like**2) * np.nanstd(end, (1, 2), keepdims=True) * rng.standard_normal(
            end.shape
        )
        held = np.isfinite(now).sum(-1)
        means = np.where(held > 0, np.nansum(now, -1) / np.maximum(held, 1), -np.inf)
        means = np.take_along_axis(means, left, 1)
        order = np.argsort(-means, 1)[:, : math.ceil(left.shape[1] / ETA)]
        left = np.take_along_axis(left, order, 1)
    return np.concatenate([np.zeros((len(end), 1), dtype=int), left], 1)
