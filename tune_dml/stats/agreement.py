"""Do our numbers agree with a published curve? Level point by point where that is fair, shape always.

Levels are compared only when nothing that sets the level differs (`reasons` is empty). A paper prints one number from
one or a few runs and no standard deviation, so its noise is taken to be ours: the gap at a value has variance
s^2 (1/n + 1/runs), s being the run-to-run standard deviation, seed effect included, pooled over values (Satterthwaite's
degrees of freedom). The intervals are Bonferroni's over the shared values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import t as student

from tune_dml.stats.blocks import BlockFit

LEVELS = "Student's t prediction intervals, Bonferroni over the shared values; the paper's noise taken equal to ours"
SHAPE = "Kendall's tau-b of the cell means; interval from 2000 draws of our noise, seed 0"

AgreementVerdict = Literal["matches", "higher", "lower", "mixed", "not comparable", "undecided"]


@dataclass(frozen=True)
class PointGap:
    """Ours minus published at one value."""

    value: float | str
    ours: float
    published: float
    gap: float
    low: float
    """NaN when not comparable or without a noise estimate."""
    high: float


@dataclass(frozen=True)
class Agreement:
    """The verdict on one published curve."""

    verdict: AgreementVerdict
    reasons: tuple[str, ...]
    """Why levels are not comparable; empty when they are."""
    caveats: tuple[str, ...]
    """What weakens the comparison without forbidding it."""
    points: tuple[PointGap, ...]
    tau: float
    """Kendall's tau-b between our means and the published ones over the shared values; NaN with fewer than three."""
    tau_low: float
    tau_high: float
    shared: int
    algorithm: str
    shape_algorithm: str = SHAPE


def judge_agreement(
    fit: BlockFit,
    values: Sequence[float | str],
    published: Mapping[float | str, float],
    *,
    runs: int = 1,
    reasons: Sequence[str] = (),
    caveats: Sequence[str] = (),
    confidence: float = 0.95,
) -> Agreement:
    """Compare the fitted cells, at knob `values` (one for each cell), with published numbers at theirs."""
    shared = [
        (cell, value, number) for cell, value in enumerate(values) if (number := _lookup(published, value)) is not None
    ]
    printed = np.array([number for _, _, number in shared])
    tau, tau_low, tau_high = _shape(fit, [cell for cell, _, _ in shared], printed, confidence)
    reach = _reach(fit, len(shared), runs, confidence)
    points = []
    for cell, value, number in shared:
        ours = float(fit.means[cell])
        wide = math.nan if reasons else float(reach[cell])
        points.append(PointGap(value, ours, number, ours - number, ours - number - wide, ours - number + wide))
    verdict = _word(points, reasons)
    return Agreement(
        verdict, tuple(reasons), tuple(caveats), tuple(points), tau, tau_low, tau_high, len(shared), LEVELS
    )


def _lookup(published: Mapping[float | str, float], value: float | str) -> float | None:
    for x, y in published.items():
        if isinstance(x, str) or isinstance(value, str):
            if x == value:
                return y
        elif math.isclose(x, value, rel_tol=1e-9, abs_tol=1e-15):
            return y
    return None


def _reach(fit: BlockFit, points: int, runs: int, confidence: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Half the prediction interval at each cell; NaN without a noise estimate."""
    values = fit.table.values
    m, n = values.shape
    if fit.df < 1 or points == 0 or n < 2:
        return np.full(m, np.nan)
    # per-trial variance = residual + seed; var(b) estimated from the spread of the seed effects
    residual, between = fit.sd**2, fit.seed_sd**2
    variance = between + residual * (m - 1) / m
    top = variance**2
    bottom = between**2 / (n - 1) + (residual * (m - 1) / m) ** 2 / fit.df
    df = max(1.0, top / bottom) if bottom > 0 else float(n - 1)
    quantile = float(student.ppf(1 - (1 - confidence) / (2 * points), df))
    counts = np.asarray(fit.table.counts, dtype=np.float64)
    return np.asarray(quantile * np.sqrt(variance * (1 / counts + 1 / runs)))


def _shape(
    fit: BlockFit,
    rows: list[int],
    published: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    confidence: float,
) -> tuple[float, float, float]:
    if len(rows) < 3:
        return math.nan, math.nan, math.nan
    means = fit.means[rows]
    tau = float(_taus(means[None], published)[0])
    if fit.df < 1:
        return tau, math.nan, math.nan
    random = np.random.default_rng(0)
    values, vectors = np.linalg.eigh(fit.covariance()[np.ix_(rows, rows)])
    noise = random.standard_normal((2000, len(rows))) @ (vectors * np.sqrt(np.maximum(values, 0))).T
    drawn = means + noise / np.sqrt(random.chisquare(fit.df, 2000) / fit.df)[:, None]
    taus = _taus(drawn, published)
    tail = (1 - confidence) / 2
    low, high = np.quantile(taus, [tail, 1 - tail])
    return tau, float(low), float(high)


def _taus(
    drawn: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    published: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Kendall's tau-b of every row of `drawn` with `published`; 0 where either is constant."""
    i, k = np.triu_indices(len(published), 1)
    ours, theirs = np.sign(drawn[:, i] - drawn[:, k]), np.sign(published[i] - published[k])
    scale = np.sqrt(np.abs(ours).sum(1) * np.abs(theirs).sum())
    return np.asarray(np.divide(ours @ theirs, scale, out=np.zeros(len(drawn)), where=scale > 0))


def _word(points: Sequence[PointGap], reasons: Sequence[str]) -> AgreementVerdict:
    if reasons or not points:
        return "not comparable"
    if any(math.isnan(point.low) for point in points):
        return "undecided"
    above, below = any(point.low > 0 for point in points), any(point.high < 0 for point in points)
    if above and below:
        return "mixed"
    return "higher" if above else "lower" if below else "matches"
