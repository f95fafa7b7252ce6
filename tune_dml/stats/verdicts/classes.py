"""Generalization of a difference between two cells to other classes and other seeds.

A trial's R@1 is a mean over queries, and queries of one class are correlated. So a result on C classes varies with the
classes as well as with the seeds. Let d_cs be the hits of one cell minus those of the other in class c under seed s,
n_cs the number of queries, and N_s the sum of n_cs over the classes:

    D = mean_s D_s,  D_s = sum_c d_cs / N_s          the difference of the means over seeds
    w_cs = (d_cs - D n_cs) / (N_s S)                 contribution of a class under a seed to D - E D
    h_c = mean_s n_cs / N_s                          weight of a class in D
    V = V_class + V_seed - V_both
    V_class = (C - 1) / C sum_c (sum_s w_cs / (1 - h_c))^2
    V_seed = S / (S - 1) sum_s (sum_c w_cs)^2,       V_both likewise, from w_cs

V is the variance of a mean over two crossed factors (Cameron, Gelbach and Miller, Robust Inference with Multiway
Clustering, Journal of Business and Economic Statistics 2011), and at least each factor's own variance. With one seed,
V_class is that of Obuchowski's paired test of clustered proportions. V also holds if seeds draw different classes.
V_class leaves out each class in turn (Bell and McCaffrey 2002), because few or unequal classes pull D towards
themselves.

The quantile is a weighted average (Cochran and Cox) of Student's t with 1 / sum h_c^2 - 1 degrees of freedom (C - 1 for
equal classes) and with S - 1; the weights are V_class and V_seed. The interval contains those over classes alone and
over seeds alone. Satterthwaite's degrees of freedom claimed too much with two or three seeds (docs/log.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from tune_dml.stats.distributions import root, student_isf
from tune_dml.stats.intervals import Array
from tune_dml.stats.intervals.resolution import variance_floor

_MIN_P = 1e-12  # smallest p-value distinguished from 0


@dataclass(frozen=True)
class Generalization:
    """Difference in R@1 (percentage points) and its uncertainty over queries, classes and seeds."""

    estimate: float
    low: float  # lower end of the interval over classes and seeds, or over classes alone with one seed
    high: float
    classes: int
    seeds: int
    per_query: float  # p-value of McNemar's exact test, which assumes independent queries and fixed networks
    these_networks: float  # p-value over classes for the same networks; NaN for one class
    trained_anew: float  # p-value over classes and seeds; NaN for one seed


def judge_generalization(hits: Array, queries: Array, discordant: tuple[int, int], *, alpha: float) -> Generalization:
    """Judge whether the difference of two cells generalizes to other queries, classes and seeds.

    Args:
        hits: (C, S) hits of the first cell minus those of the second; 0 where a seed does not have a class.
        queries: (C, S) numbers of queries; 0 where a seed does not have a class.
        discordant: over all seeds, the number of queries that only the first cell answers, and only the second.
        alpha: error of the interval.
    """
    count, seeds = int((queries.sum(1) > 0).sum()), hits.shape[1]
    estimate, parts = _variance_parts(hits[None], queries[None])
    floor = 2 * float(variance_floor(1 / queries.sum(0).mean())) / seeds  # one query changes R@1 by one step
    mean, variances = float(estimate[0]), (float(parts[0][0]), max(float(parts[1][0]), floor), float(parts[2][0]))
    classes = float(_effective_classes(queries))
    half_width = half_widths(variances, classes, seeds)
    half = half_width(alpha)
    p_networks = _p_value(mean, half_widths(variances, classes, 1)) if count > 1 else math.nan
    p_trained = _p_value(mean, half_width) if seeds > 1 else math.nan
    ends = 100 * (mean - half), 100 * (mean + half)
    return Generalization(100 * mean, *ends, count, seeds, _mcnemar(*discordant), p_networks, p_trained)


def _effective_classes(queries: Array) -> Array:
    """Return 1 / sum h_c^2, the effective number of classes; queries (..., C, S)."""
    return np.asarray(1 / (_shares(queries) ** 2).sum(-1))


def _shares(queries: Array) -> Array:
    """Return the weight h_c of each class, (..., C)."""
    return np.asarray((queries / queries.sum(-2, keepdims=True)).mean(-1))


def _variance_parts(hits: Array, queries: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    """Return D and (V_class, V_seed, V_both) of many pairs, each (B,); hits and queries are (B, C, S)."""
    seeds = hits.shape[-1]
    present = queries > 0
    total = queries.sum(-2, keepdims=True)
    estimate = (hits.sum(-2) / total[..., 0, :]).mean(-1)
    parts = (hits - estimate[..., None, None] * queries) / (total * seeds)
    classes = present.any(-1).sum(-1)
    both = present.sum((-2, -1))
    left_out = (1 - 1 / classes)[..., None] / np.maximum(1 - _shares(queries), 1e-300)
    of_classes = _corrected(parts.sum(-1) * left_out, classes)
    of_seeds = _corrected(parts.sum(-2), np.full(classes.shape, seeds))
    of_both = _corrected(parts.reshape(*parts.shape[:-2], -1), both)
    return estimate, (of_classes, of_seeds, of_both)


def half_widths(variances: tuple[float, float, float], classes: float, seeds: int) -> Callable[[float], float]:
    """Return a function from error level to half the interval of D; with one seed, over classes alone.

    `variances` are V_class, V_seed and V_both; `classes` is the effective number of classes.
    """
    of_classes, of_seeds, of_both = variances
    if classes <= 1:
        return lambda alpha: math.nan
    if seeds < 2:
        return lambda alpha: _quantile(alpha, classes - 1) * math.sqrt(of_classes)
    root = math.sqrt(max(of_classes + of_seeds - of_both, of_classes, of_seeds))
    share = of_classes / max(of_classes + of_seeds, 1e-300)

    def half(alpha: float) -> float:
        t_classes, t_seeds = _quantile(alpha, classes - 1), _quantile(alpha, seeds - 1)
        single = max(t_classes * math.sqrt(of_classes), t_seeds * math.sqrt(of_seeds))
        return max(single, (share * t_classes + (1 - share) * t_seeds) * root)

    return half


def _mcnemar(first: int, second: int) -> float:
    """Return the two-sided exact p-value of discordant pairs under equal chances; 1 without pairs."""
    total = first + second
    return min(1.0, 2 * float(bdtr(min(first, second), total, 0.5))) if total else 1.0


def _corrected(sums: Array, count: NDArray[np.int64]) -> Array:
    """Return count / (count - 1) times the sum of squares; meaningless for a count of one."""
    return np.asarray((sums**2).sum(-1) * count / np.maximum(count - 1, 1))


def _quantile(alpha: float, df: float) -> float:
    return float(student_isf(alpha / 2, df))


def _p_value(mean: float, half: Callable[[float], float]) -> float:
    """Return the error level at which the end of the interval is 0."""
    size = abs(mean)
    if size <= half(1.0):
        return 1.0
    if size >= half(_MIN_P):
        return 0.0
    return math.exp(root(lambda log: half(math.exp(log)) - size, math.log(_MIN_P), 0.0))
