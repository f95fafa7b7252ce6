"""Simulate sweeps under the kinds of noise that real sweeps have, and print error rates."""

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

Array = NDArray[np.float64]
KINDS = ("iid", "t3", "ramp", "one cell 5x", "slope", "measured-like", "15 % holes")
TAILS = ("iid", "t3", "one cell 5x", "ceiling", "one at ceiling", "collapses", "one collapses", "twins")
"""Noise with heavy tails; of unequal size; skewed as near 100 %, in all cells or one; 5 % of seeds 8 s.d. lower, in all
cells or one; with two equal cells."""


def simulate(
    kind: str, cells: int, seeds: int, sweeps: int, rng: np.random.Generator, *, seed_sd: float = 1.0
) -> Array:
    """Return sweeps of equal cells, shape (sweeps, cells, seeds). Other kinds than the listed ones have iid noise.

    `seed_sd` is the spread of the seeds' effects on all cells.
    """
    noise = rng.standard_normal((sweeps, cells, seeds))
    x = np.linspace(-0.5, 0.5, cells)[:, None]
    if kind == "t3":
        noise = rng.standard_t(3, noise.shape) / math.sqrt(3)
    elif kind == "ramp":
        noise *= np.linspace(1, 5, cells)[:, None]
    elif kind == "one cell 5x":
        noise[:, cells // 2] *= 5
    elif kind == "slope":
        noise += 10 * x * rng.standard_normal((sweeps, 1, seeds))
    elif kind == "measured-like":
        coefficients = rng.standard_normal((2, sweeps, 1, seeds))
        curve = x * coefficients[0] + x**2 * coefficients[1]
        noise = noise * np.linspace(0.6, 1.4, cells)[:, None] + _reaction(cells) * curve
    elif kind in {"ceiling", "one at ceiling"}:
        rows = slice(None) if kind == "ceiling" else cells // 2
        noise[:, rows] = 1 - rng.standard_exponential(noise[:, rows].shape)
    elif kind in {"collapses", "one collapses"}:
        rows = slice(None) if kind == "collapses" else cells // 2
        noise[:, rows] -= 8 * ((rng.random(noise[:, rows].shape) < 0.05) - 0.05)
    elif kind == "twins":
        noise[:, cells // 2] = noise[:, 0]
    elif kind == "15 % holes":
        noise[rng.random(noise.shape) < 0.15] = np.nan
    return noise + seed_sd * rng.standard_normal((sweeps, 1, seeds))


@cache
def _reaction(cells: int) -> float:
    """Return the size of slope and curvature at which the covariance of `cells` values has the demo's epsilon, 0.37.

    Fewer than five values have no such size.
    """
    x = np.linspace(-0.5, 0.5, cells)

    def excess(size: float) -> float:
        covariance = np.diag(np.linspace(0.6, 1.4, cells) ** 2) + size**2 * (np.outer(x, x) + np.outer(x**2, x**2))
        centred = covariance - covariance.mean(0) - covariance.mean(1)[:, None] + covariance.mean()
        return float(np.trace(centred) ** 2 / ((cells - 1) * (centred**2).sum())) - 0.37

    return float(brentq(excess, 0.1, 50)) if cells > 4 else 3.0


def rate(hits: ArrayLike, goal: float = 0.05) -> str:
    """Format a share of sweeps; `!` marks a share significantly above the goal."""
    share, error = float(np.asarray(hits).mean()), math.sqrt(goal * (1 - goal) / np.size(hits))
    return f"{share:.3f}{'!' if share > goal + 2 * error else ' '}"


def excludes_zero(bounds: Any) -> NDArray[np.bool_]:
    """Return which intervals lie above or below 0."""
    return np.asarray((bounds.low > 0) | (bounds.high < 0))
