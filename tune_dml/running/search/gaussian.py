"""Propose cells by a Gaussian process with the noise of each cell.

The variance of a cell's mean over n seeds is s^2 / n. To estimate s^2, the common effect of each seed is removed; then
the variance of the cell is averaged with the mean variance over cells. With one seed the process estimates one noise
for all cells. The next cell maximizes the expected improvement over the best expected value of an evaluated cell, among
points of the whole box and around the best cells. A pending cell counts as evaluated, with its expected value
(Ginsbourger et al. 2010).

The cost of scikit-learn's process grows with the cube of the number of cells, and a fit of the length scales costs a
hundred times more. So they are fitted again only when the number of cells has grown by a quarter. Beyond 300 cells, the
process uses the better half and an even selection of the others. A proposal takes less than 50 ms
(benchmarks/search.py).
"""

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tune_dml.running.search.points import Points

Array = NDArray[np.float64]

MIN_CELLS = 5  # number of evaluated cells that the process needs; until then, points are spread evenly
ROUNDING = 1e-12  # relative error of means, as in `stats.intervals`, which imports scipy
_GROWTH = 1.25
_MAX_CELLS, _MAX_FITTED = 300, 200
_UNIFORM_CANDIDATES, _NEAR_CANDIDATES = 512, 40
_STEPS = (0.03, 0.1)  # standard deviations of candidates around a good cell, as fractions of the box


@dataclass
class GaussianSearch:
    """Proposes the next cell from the evaluated ones. Caches the last fitted kernel."""

    points: Points
    _fitted: tuple[bytes, Any] | None = field(default=None, repr=False)

    def propose(self, evaluated: Array, numbers: Array, pending: Array, seed: int) -> list[float]:
        """Return the coordinates of the cell to try next, each in [0, 1).

        Args:
            evaluated: (cells, dimensions) coordinates of at least `MIN_CELLS` cells, in the order of their evaluation.
            numbers: (cells, seeds) values, all finite; larger is better.
            pending: (cells, dimensions) coordinates of running cells.
            seed: Seed of the candidates.
        """
        from scipy.stats import norm  # the import takes a second, and only this search needs it

        fitted_count = _fitted_cells(len(evaluated))
        numbers = _standardised(numbers, fitted_count)
        values, noise, columns = numbers.mean(1).round(12), _noise(numbers), self.points.columns(evaluated)
        tried = {row.tobytes() for row in (*columns, *self.points.columns(pending))}
        kernel = self._kernel(columns[:fitted_count], values[:fitted_count], _noise(numbers[:fitted_count]))
        indices = _select_cells(values, _MAX_CELLS)
        columns, values, noise = columns[indices], values[indices], noise[indices]
        process = _process(kernel, noise, fit=False).fit(columns, values)
        expected = process.predict(columns)
        if len(pending):
            pending_columns = self.points.columns(pending)
            values = np.concatenate([values, process.predict(pending_columns)])
            columns = np.concatenate([columns, pending_columns])
            noise = np.append(noise, np.full(len(pending_columns), noise.mean()))
            process = _process(kernel, noise, fit=False).fit(columns, values)
        best_cells = evaluated[indices[np.argsort(-expected, kind="stable")[:5]]]
        candidates = self._candidates(best_cells, np.random.default_rng(seed))
        columns = self.points.columns(candidates)
        is_new = np.array([row.tobytes() not in tried for row in columns])
        candidates, columns = (candidates[is_new], columns[is_new]) if is_new.any() else (candidates, columns)
        mean, spread = process.predict(columns, return_std=True)
        gain = (mean - expected.max()) / np.maximum(spread, 1e-9)
        return [float(share) for share in candidates[np.argmax(spread * (gain * norm.cdf(gain) + norm.pdf(gain)))]]

    def _candidates(self, best_cells: Array, rng: np.random.Generator) -> Array:
        steps = np.repeat(_STEPS, _NEAR_CANDIDATES // len(_STEPS))[:, None]
        near_best = [cell + steps * rng.standard_normal((len(steps), len(cell))) for cell in best_cells]
        points = np.concatenate([rng.random((_UNIFORM_CANDIDATES, self.points.dimensions)), *near_best])
        return np.asarray(np.clip(points, 0.0, math.nextafter(1.0, 0.0)))

    def _kernel(self, columns: Array, values: Array, noise: Array) -> Any:
        key = values.tobytes()
        if self._fitted is None or self._fitted[0] != key:
            from sklearn.exceptions import ConvergenceWarning
            from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

            indices = _select_cells(values, _MAX_FITTED)
            prior = ConstantKernel(1.0, (0.1, 30)) * Matern(np.full(columns.shape[1], 0.5), (0.2, 10), nu=2.5)
            if not noise.any():
                prior += WhiteKernel(0.1, (1e-4, 2))
            process = _process(prior, noise[indices], fit=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # a scale at its bound: the knob has no effect
                self._fitted = key, process.fit(columns[indices], values[indices]).kernel_
        return self._fitted[1]


def _standardised(numbers: Array, count: int) -> Array:
    """Return the numbers less the mean of the first `count` cells, over the spread of their means.

    If these means differ by rounding only, the spread is that of all numbers.
    """
    means, size = numbers[:count].mean(1), np.abs(numbers).max()
    spreads = (float(means.std()), float(numbers.std()))
    return np.asarray((numbers - means.mean()) / next((one for one in spreads if one > ROUNDING * size), 1.0))


def _fitted_cells(evaluated: int) -> int:
    count = MIN_CELLS
    while (next_count := max(count + 1, int(_GROWTH * count))) <= evaluated:
        count = next_count
    return count


def _process(kernel: Any, noise: Array, *, fit: bool) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor

    return GaussianProcessRegressor(kernel, alpha=noise + 1e-6, optimizer="fmin_l_bfgs_b" if fit else None)


def _noise(numbers: Array) -> Array:
    """Return the variance of each cell's mean; 0 with one seed."""
    cells, seeds = numbers.shape
    if seeds < 2:
        return np.zeros(cells)
    residuals = numbers - numbers.mean(1, keepdims=True) - numbers.mean(0) + numbers.mean()
    cell_variance = (residuals**2).sum(1) / (seeds - 1) * cells / (cells - 1)
    return np.asarray((cell_variance + cell_variance.mean()) / 2 / seeds)


def _select_cells(values: Array, limit: int) -> NDArray[np.intp]:
    """Return the indices of at most `limit` cells: the better ones, and an even selection of the others."""
    if len(values) <= limit:
        return np.arange(len(values))
    order = np.argsort(-values, kind="stable")
    better, others = order[: limit // 2], np.sort(order[limit // 2 :])
    return np.sort(np.concatenate([better, others[np.linspace(0, len(others) - 1, limit - limit // 2).astype(int)]]))
