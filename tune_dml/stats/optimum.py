"""Where is the best value of an ordered knob: inside the tested range, or at its edge?

The probability that the best cell lies at an edge is read off seeded draws from the fitted block model: cell means with
multivariate t noise (the posterior under a flat prior). p >= 0.95 is "edge", p <= 0.05 "interior", the rest undecided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainables.methods import KnobDomain
from tune_dml.stats.blocks import BlockFit

DRAWS = 20_000
"""Fewer for more than 200 cells: the work stays the same."""

OptimumVerdict = Literal["interior", "edge", "undecided", "none"]
Side = Literal["low", "high", "either", ""]


@dataclass(frozen=True)
class Optimum:
    """The verdict on the best value."""

    verdict: OptimumVerdict
    reason: str
    best: str
    """Label of the cell with the best mean; empty when there is none."""
    side: Side
    """Which edge, for verdict "edge"; "either" when only their sum is sure."""
    edge_probability: float
    """Probability that the best value is the lowest or the highest tested; NaN without a noise estimate."""
    probabilities: tuple[tuple[str, float], ...]
    """Per cell, the probability that it is the best."""
    natural_bound: bool
    """The edge in question is as far as the knob may go: there is no range left to extend."""
    extend: tuple[float, ...]
    """Values to add beyond the edge: the next two steps on the knob's scale."""
    algorithm: str


def judge_optimum(
    fit: BlockFit,
    values: Sequence[float],
    *,
    goal: Literal["maximize", "minimize"] = "maximize",
    scale: Literal["linear", "log"] = "linear",
    domain: KnobDomain | None = None,
    insensitive: bool = False,
    confidence: float = 0.95,
) -> Optimum:
    """Judge where the best of the fitted cells lies; `values` are the knob's, one for each fitted cell, in any order."""
    domain = domain or KnobDomain()
    sign = 1.0 if goal == "maximize" else -1.0
    labels = fit.table.labels
    best = labels[int(np.argmax(sign * fit.means))] if labels else ""
    if insensitive:
        return _without("none", "the curve is flat within the margin, so there is no optimum to locate", best)
    if len(values) < 3:
        return _without("undecided", "with fewer than three values there is nothing between the edges", best)
    if fit.df < 1:
        return _without("undecided", "one seed gives no noise estimate", best)
    shares = _shares_of_best(fit, sign)
    order = np.argsort(values)
    low, high = float(shares[order[0]]), float(shares[order[-1]])
    edge = low + high
    side = _side(low, high, confidence)
    ends = [
        extension(sorted(values), end, scale=scale, domain=domain)
        for end, share in (("low", low), ("high", high))
        if share > 1 - confidence
    ]
    verdict: OptimumVerdict = "edge" if edge >= confidence else ("interior" if edge <= 1 - confidence else "undecided")
    extend = tuple(value for end in ends for value in end)
    return Optimum(
        verdict,
        _reason(verdict, side),
        best,
        side if verdict == "edge" else "",
        edge,
        tuple(zip(labels, shares.tolist(), strict=True)),
        natural_bound=bool(ends) and verdict == "edge" and not extend,
        extend=() if verdict == "interior" else extend,
        algorithm=_algorithm(len(labels)),
    )


def extension(
    values: Sequence[float], side: str, *, scale: Literal["linear", "log"], domain: KnobDomain
) -> tuple[float, ...]:
    """The next two values beyond an edge, by the step (linear) or ratio (log) of its two outermost values.

    A step that leaves the legal domain is clipped to the bound where the bound itself is legal, and halves the distance to
    it where it is not (rho > 0: from 0.01 to 0.005); nothing is added when the edge is the bound.
    """
    edge, inner = (values[0], values[1]) if side == "low" else (values[-1], values[-2])
    bound = domain.low if side == "low" else domain.high
    found: list[float] = []
    for _ in range(2):
        value = edge * (edge / inner) if scale == "log" and inner > 0 < edge else edge + (edge - inner)
        if not domain.allows(value):
            value = bound if domain.allows(bound) else (edge + bound) / 2
        value = float(f"{value:.2g}") if not domain.integer else float(round(value))
        if value == edge or not domain.allows(value):
            break
        found.append(value)
        edge, inner = value, edge
    return tuple(found)


def _draws(cells: int) -> int:
    return max(2000, min(DRAWS, 200 * DRAWS // max(1, cells)))


def _algorithm(cells: int) -> str:
    return f"multivariate t on the block design, {_draws(cells)} draws, seed 0"


def _shares_of_best(fit: BlockFit, sign: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How often each cell is the best over the draws; exact ties share their draw."""
    random = np.random.default_rng(0)
    size = len(fit.means)
    draws = _draws(size)
    root = _root(fit.covariance())
    noise = random.standard_normal((draws, size)) @ root.T
    scale = np.sqrt(random.chisquare(fit.df, draws) / fit.df)
    drawn = sign * (fit.means + noise / scale[:, None])
    first = drawn == drawn.max(axis=1, keepdims=True)
    return np.asarray((first / first.sum(axis=1, keepdims=True)).mean(axis=0))


def _root(
    covariance: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """A square root that allows singular covariances."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0)))


def _side(low: float, high: float, confidence: float) -> Side:
    if low >= confidence:
        return "low"
    return "high" if high >= confidence else "either"


def _reason(verdict: OptimumVerdict, side: Side) -> str:
    if verdict == "interior":
        return "the best value lies inside the tested range"
    if verdict == "edge":
        where = {"low": "the lowest tested value is", "high": "the highest tested value is"}
        return f"{where.get(side, 'one of the two outermost values is')} the best"
    return "the noise leaves open whether the best value lies at an edge"


def _without(verdict: OptimumVerdict, reason: str, best: str) -> Optimum:
    return Optimum(verdict, reason, best, "", math.nan, (), False, (), _algorithm(0))
