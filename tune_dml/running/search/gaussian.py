"""Propose cells by a Gaussian process with the noise of each cell.

The variance of a cell's mean over n seeds is s^2 / n; s is its spread after removing the seeds' common effect, and s^2 is
half the cell's own, half the mean over cells. With one seed the process estimates a common noise. The next cell maximizes
the expected improvement over the best expected value of a told cell, among points of the whole box and around the best.
Pending cells count as told their expectation (Ginsbourger et al. 2010).

The cost of scikit-learn's process grows with the cube of its cells, and fitting length scales costs a hundred times more.
So they are fitted only when the told cells have grown by a quarter, and beyond 300 cells the better half and an even
selection of the others are used: a proposal takes less than 50 ms (benchmarks/search.py).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tune_dml.running.search.points import Points

Array = NDArray[np.float64]

FIRST = 5
"""Told cells from which the process proposes; earlier points are spread evenly."""
_GROWTH = 1.25
_MOST_CELLS, _MOST_FITTED = 300, 200
_EVERYWHERE, _AROUND = 512, 40
_STEPS = (0.03, 0.1)
"""Standard deviations around a good cell, as shares of the box's sides."""


@dataclass
class GaussianSearch:
    """Proposes the next cell from the told ones; keeps the kernel that was fitted last."""

    points: Points
    _fitted: tuple[bytes, Any] | None = field(default=None, repr=False)

    def propose(self, told: Array, numbers: Array, pending: Array, seed: int) -> list[float]:
        """Return the place in the box to try next.

        Args:
            told: (cells, sides), at least `FIRST` places, in the order they were told.
            numbers: (cells, seeds), larger is better, all finite.
            pending: (cells, sides), places of running cells.
            seed: Seed of the candidate places.
        """
        from scipy.stats import norm  # takes a second; only this search needs it

        fitted = _fitted_cells(len(told))
        first = numbers[:fitted].mean(1)
        numbers = (numbers - first.mean()) / (first.std() or 1.0)
        values, noise, columns = numbers.mean(1), _noise(numbers), self.points.columns(told)
        tried = {row.tobytes() for row in (*columns, *self.points.columns(pending))}
        kernel = self._kernel(columns[:fitted], values[:fitted], _noise(numbers[:fitted]))
        kept = _thinned(values, _MOST_CELLS)
        columns, values, noise = columns[kept], values[kept], noise[kept]
        process = _process(kernel, noise, fit=False).fit(columns, values)
        expected = process.predict(columns)
        if len(pending):
            more = self.points.columns(pending)
            values = np.concatenate([values, process.predict(more)])
            columns, noise = np.concatenate([columns, more]), np.append(noise, np.full(len(more), noise.mean()))
            process = _process(kernel, noise, fit=False).fit(columns, values)
        good = told[kept[np.argsort(-expected, kind="stable")[:5]]]
        places = self._candidates(good, np.random.default_rng(seed))
        columns = self.points.columns(places)
        fresh = np.array([row.tobytes() not in tried for row in columns])
        places, columns = (places[fresh], columns[fresh]) if fresh.any() else (places, columns)
        mean, spread = process.predict(columns, return_std=True)
        gain = (mean - expected.max()) / np.maximum(spread, 1e-9)
        return [float(share) for share in places[np.argmax(spread * (gain * norm.cdf(gain) + norm.pdf(gain)))]]

    def _candidates(self, good: Array, rng: np.random.Generator) -> Array:
        """Draw places in the whole box and around the good ones, (candidates, sides)."""
        steps = np.repeat(_STEPS, _AROUND // len(_STEPS))[:, None]
        around = [place + steps * rng.standard_normal((len(steps), len(place))) for place in good]
        drawn = np.concatenate([rng.random((_EVERYWHERE, self.points.sides)), *around])
        return np.asarray(np.clip(drawn, 0.0, math.nextafter(1.0, 0.0)))

    def _kernel(self, columns: Array, values: Array, noise: Array) -> Any:
        """Return the kernel fitted to these cells, cached."""
        key = values.tobytes()
        if self._fitted is None or self._fitted[0] != key:
            from sklearn.exceptions import ConvergenceWarning

            kept = _thinned(values, _MOST_FITTED)
            process = _process(_prior(columns.shape[1], noise), noise[kept], fit=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # a scale at its bound: the knob does nothing
                self._fitted = key, process.fit(columns[kept], values[kept]).kernel_
        return self._fitted[1]


def _fitted_cells(told: int) -> int:
    """Return the number of told cells that the kernel is fitted to."""
    count = FIRST
    while (more := max(count + 1, int(_GROWTH * count))) <= told:
        count = more
    return count


def _prior(size: int, noise: Array) -> Any:
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel(1.0, (0.1, 30)) * Matern(np.full(size, 0.5), (0.2, 10), nu=2.5)
    return kernel if noise.any() else kernel + WhiteKernel(0.1, (1e-4, 2))


def _process(kernel: Any, noise: Array, *, fit: bool) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor

    return GaussianProcessRegressor(kernel, alpha=noise + 1e-6, optimizer="fmin_l_bfgs_b" if fit else None)


def _noise(numbers: Array) -> Array:
    """Return the variance of each cell's mean; 0 with one seed."""
    cells, seeds = numbers.shape
    if seeds < 2:
        return np.zeros(cells)
    rest = numbers - numbers.mean(1, keepdims=True) - numbers.mean(0) + numbers.mean()
    own = (rest**2).sum(1) / (seeds - 1) * cells / (cells - 1)
    return np.asarray((own + own.mean()) / 2 / seeds)


def _thinned(values: Array, most: int) -> NDArray[np.intp]:
    """Return the indices of at most `most` cells: the better ones, and an even selection of the others."""
    if len(values) <= most:
        return np.arange(len(values))
    order = np.argsort(-values, kind="stable")
    better, others = order[: most // 2], np.sort(order[most // 2 :])
    return np.sort(np.concatenate([better, others[np.linspace(0, len(others) - 1, most - most // 2).astype(int)]]))
