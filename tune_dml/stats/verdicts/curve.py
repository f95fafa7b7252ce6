"""Parabola through the values of a knob, fitted per seed, to locate an optimum that single differences cannot locate.

Each seed's values get their own least-squares parabola on the knob's scale. The spread of the n parabolas then contains
all noise (unequal, correlated, a slope that differs by seed), and every statement is a t test on n - 1 degrees of
freedom. The derivative b + 2 c x is linear in the coefficients, hence

    interior     the derivative at the second value is significantly positive, at the second-last significantly negative
    top          all x at which zero is inside the derivative's interval (Fieller 1954)

A parabola may be the wrong curve, so its fit is checked: every cell is predicted from the other cells. No statement is
made below R^2 = 0.5, if a cubic predicts better, or if the parabola misses a cell significantly. That is not enough for
a verdict: on a curve that rises and saturates, with small differences, the result is still "interior" in up to one sweep
of six. Report it as a suggestion in addition to `best`, never instead.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tune_dml.stats.distributions import student_isf
from tune_dml.stats.intervals import ROUNDING, Array
from tune_dml.stats.intervals.resolution import variance_floor

_MIN_R2 = 0.5


@dataclass(frozen=True)
class Parabola:
    """Verdict on a parabola through the curve."""

    verdict: Literal["interior", "undecided", "no parabola"]
    r2: float  # leave-one-out R^2 of the cells' means
    low: float  # lower end of the interval of the top on the knob's scale; NaN without an interval
    high: float


def fit_parabola(
    values: Array,
    knob: Array,
    *,
    scale: Literal["linear", "log"] = "linear",
    alpha: float = 0.05,
    resolution: float = 0.0,
) -> Parabola:
    """Fit parabolas to cells x seeds (larger is better) and locate the top.

    The verdict is "no parabola" with fewer than five values of the knob or three complete seeds. `resolution` is the
    step of the values.
    """
    x = np.log(knob) if scale == "log" else np.asarray(knob, dtype=float)
    order = np.argsort(x)
    x, complete = x[order], values[order][:, np.isfinite(values).all(0)]
    m, n = complete.shape
    if m < 5 or n < 3:
        return Parabola("no parabola", np.nan, np.nan, np.nan)
    centre, half = (x[0] + x[-1]) / 2, (x[-1] - x[0]) / 2
    u = (x - centre) / half
    design = np.stack([np.ones(m), u, u**2], axis=1)
    solve = np.linalg.pinv(design)
    r2, misfit = _check(u, complete, alpha)
    if r2 < _MIN_R2 or misfit:
        return Parabola("no parabola", r2, np.nan, np.nan)
    grid = np.linspace(-1, 1, 401)
    derivatives = solve[1] + 2 * np.concatenate([u[[1, -2]], grid])[:, None] * solve[2]
    slopes, floor = derivatives @ complete, variance_floor(resolution, derivatives)
    rising = _bounds(slopes[0], alpha, floor[0])[0] > 0
    falling = _bounds(slopes[1], alpha, floor[1])[1] < 0
    low, high = _bounds(slopes[2:], alpha / 2, floor[2:])
    possible = grid[(low <= 0) & (high >= 0)]
    ends = centre + half * np.array([possible.min(), possible.max()]) if len(possible) else np.full(2, np.nan)
    ends = np.exp(ends) if scale == "log" else ends
    return Parabola("interior" if rising and falling else "undecided", r2, float(ends[0]), float(ends[1]))


def _bounds(values: Array, tail: float, floor: Array | float = 0.0) -> tuple[Array, Array]:
    """Return one-sided t bounds of the mean over seeds (last axis); variances are at least `floor`."""
    n = values.shape[-1]
    variance = np.maximum(values.var(-1, ddof=1), floor)
    mean, reach = values.mean(-1), student_isf(tail, n - 1) * np.sqrt(variance / n)
    return mean - reach, mean + reach


def _check(u: Array, values: Array, alpha: float) -> tuple[float, bool]:
    """Return the leave-one-out R^2, and whether a cubic predicts better or the parabola misses a cell."""
    means = values.mean(1)
    hat = _hat_matrix(u, 2)
    error, cubic_error = _leave_one_out_error(hat, means), _leave_one_out_error(_hat_matrix(u, 3), means)
    spread = ((means - means.mean()) ** 2).sum()
    low, high = _bounds(values - hat @ values, alpha / (2 * len(means)))
    rounding = ROUNDING * float(np.abs(values).max())
    misfit = bool(((low > rounding) | (high < -rounding)).any()) or bool(cubic_error < error)
    return (float(1 - error / spread) if np.ptp(means) > rounding else -np.inf), misfit


def _hat_matrix(u: Array, degree: int) -> Array:
    design = u[:, None] ** np.arange(degree + 1)
    return np.asarray(design @ np.linalg.pinv(design))


def _leave_one_out_error(hat: Array, means: Array) -> float:
    """Return the squared error of predicting each mean from the others."""
    return float((((means - hat @ means) / np.maximum(1 - np.diag(hat), 1e-9)) ** 2).sum())
