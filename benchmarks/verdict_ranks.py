"""Measure the coverage of the bounds of Kendall's tau between two sweeps' orders, which `verdicts.py` prints."""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from simulated_sweeps import KINDS, Array, simulate

from tune_dml.stats.intervals.simultaneous import Bounds, all_pairs
from tune_dml.stats.verdicts.ranks import kendall_tau, significant_order, tau_bounds

CASES = {
    "same order": (lambda x: x, lambda x: x),
    "opposite": (lambda x: x, lambda x: -x),
    "one is flat": (lambda x: x, lambda x: 0 * x),
    "both flat": (lambda x: 0 * x, lambda x: 0 * x),
    "ties in one": (lambda x: x, lambda x: x // 2),
    "ties in both": (lambda x: x // 2, lambda x: (x + 1) // 2),
    "all but the last": (lambda x: x, lambda x: np.where(x < x.max(), x, -1)),
}
"""Name -> true means of values 0, 1, ... in each sweep, times the step."""


def ranks(sweeps: int) -> Iterable[str]:
    """Print how often the bounds miss the true tau (0 if a sweep is flat), and how often they exclude 0."""
    number = max(100, sweeps // 4)
    yield f"Kendall's tau of two sweeps, {number} pairs: the bounds miss the true tau / exclude 0, by noise. In `common seeds`"
    yield "seeds move the values of both sweeps alike, and the second has three times the noise"
    for values in (4, 6):
        for seeds in (3, 5, 10):
            for step in (0.5, 2.0):
                for case, means in CASES.items():
                    truth = [step * mean(np.arange(values)).astype(float) for mean in means]
                    tau = kendall_tau(*truth)
                    row = []
                    for index, kind in enumerate(
                        (*KINDS[:-1], "common seeds")
                    ):  # values with a lost trial are left out
                        noise = _noise(kind, (values, seeds), number, np.random.default_rng([seeds, index]))
                        orders = [_orders(part + mean[:, None]) for part, mean in zip(noise, truth, strict=True)]
                        row.append(f"{kind} {_rates([tau_bounds(*pair) for pair in zip(*orders, strict=True)], tau)}")
                    size = f"{values} values {seeds:3d} seeds, {step:g} s.d. a step, {case:>16}"
                    yield f"{size}:  " + "   ".join(row)


def _noise(kind: str, shape: tuple[int, int], number: int, rng: np.random.Generator) -> tuple[Array, Array]:
    if kind != "common seeds":
        return simulate(kind, *shape, number, rng), simulate(kind, *shape, number, rng)
    common = simulate("slope", *shape, number, rng)
    return common, common + 3 * simulate("iid", *shape, number, rng)


def _orders(tables: Array) -> list[NDArray[np.int_]]:
    """Return the significant orders of the values of each table, as `agree_in_rank` computes them."""
    bounds = all_pairs(tables, 0.025)
    parts = zip(bounds.estimate, bounds.low, bounds.high, strict=True)
    return [significant_order(Bounds(*part), range(tables.shape[1])) for part in parts]


def _rates(found: list[tuple[float, float]], truth: float) -> str:
    truth = 0.0 if math.isnan(truth) else truth
    missed = np.mean([not low - 1e-9 <= truth <= high + 1e-9 for low, high in found])
    return f"{missed:.3f}/{np.mean([low > 0 or high < 0 for low, high in found]):.2f}"
