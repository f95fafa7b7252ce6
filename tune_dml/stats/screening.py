"""Screening of many two-level settings in few runs: which of them changes the result?

    first = screening_design(12)                      # 24 runs: 12 and their mirror images, a seed a pair
    found = suspects(first, values)
    second = confirmation_design(12, found)           # 12 runs on fresh seeds
    verdict = judge(first, values, second, again)

The first stage is a Hadamard design with its mirror image, so main effects are free of all interactions of two settings.
The second stage runs the suspects alone and together. Both stages are judged by one linear model with seeds as blocks.
Its critical values come from a simulation of the whole procedure, selection included. ADR 22 has the error rates.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, stats

Matrix = NDArray[np.float64]

_LEVEL = 0.03
"""Error of each of the two tests. Further suspects add to it; in all, a setting is named wrongly in at most 5 %."""
MOST_FACTORS = 24
_PALEY = {12: 11, 20: 19, 24: 23}
_RUNS = 24  # of the first stage, for up to 12 settings
_SECOND = 12  # runs of the second stage
_MOST_SUSPECTS = 5
_SIMULATIONS = 4000
_LARGE = 9.0  # standard deviations: an effect that is always found


@dataclass(frozen=True, eq=False)
class Design:
    """Runs of an experiment on two-level settings."""

    levels: Matrix
    """(runs, factors): 1 where a run has the user's setting, -1 where it has the protocol's."""
    blocks: NDArray[np.int64]
    """(runs,): the block of each run. Runs of one block share a seed."""

    def rows(self, kept: NDArray[np.bool_]) -> Design:
        """Return the design without some runs."""
        return Design(self.levels[kept], self.blocks[kept])


@dataclass(frozen=True)
class FactorEffect:
    """The effect of one setting: the result with the user's value minus that with the protocol's."""

    effect: float
    low: float
    high: float
    suspect: bool
    named: bool


@dataclass(frozen=True)
class ScreeningVerdict:
    """The verdicts of a screening on each factor."""

    effects: tuple[FactorEffect, ...]
    one_of: tuple[int, ...] = ()
    """Two factors of which at least one has an effect, if the runs cannot tell which."""
    together: FactorEffect | None = None
    """The joint effect of the two leading suspects, if they interact."""
    noise: float = float("nan")
    """Standard deviation of one run without the seed effect."""
    freedom: int = 0
    """Degrees of freedom of the noise."""

    @property
    def named(self) -> tuple[int, ...]:
        """The factors that have an effect."""
        return tuple(index for index, effect in enumerate(self.effects) if effect.named)


def _hadamard(order: int) -> Matrix:
    """Return a Hadamard matrix whose first row is all ones: powers of two, 12, 20 and 24 (Paley's construction)."""
    if order not in _PALEY:
        return np.asarray(linalg.hadamard(order), dtype=float)
    q = _PALEY[order]
    squares = {x * x % q for x in range(1, q)}
    residue = np.array([0.0] + [1.0 if x in squares else -1.0 for x in range(1, q)])
    skew = np.zeros((order, order))
    skew[0, 1:], skew[1:, 0] = 1, -1
    skew[1:, 1:] = residue[(np.arange(q)[None, :] - np.arange(q)[:, None]) % q]
    return skew + np.eye(order)


def screening_design(factors: int) -> Design:
    """Return the first stage: a Hadamard design with its mirror image; a run shares its seed with its mirror image only.

    The first run has all of the user's settings, its mirror image all of the protocol's. Up to 12 settings take 24 runs
    under 12 seeds; 24 take 48. If more runs shared a seed, a setting that only changes the random draws, such as the batch
    size, would have one draw per seed for all of them and be named too often.
    """
    order = next(n for n in (1, 2, 4, 12, 16, 20, 24) if n >= factors)
    half = _hadamard(order)[:, :factors]
    copies = max(1, _RUNS // (2 * order))
    levels = np.tile(np.vstack([half, -half]), (copies, 1))
    return Design(levels, np.concatenate([np.tile(np.arange(order) + copy * order, 2) for copy in range(copies)]))


def confirmation_design(factors: int, chosen: Sequence[int]) -> Design:
    """Return the second stage: none of the suspects, each alone and, for two, both, under fresh seeds; at most 12 runs."""
    subsets = [(), *((one,) for one in chosen), *([tuple(chosen)] if len(chosen) == 2 else [])]
    seeds = max(2, _SECOND // len(subsets))
    levels = -np.ones((len(subsets), factors))
    for row, subset in enumerate(subsets):
        levels[row, list(subset)] = 1
    return Design(np.tile(levels, (seeds, 1)), np.repeat(np.arange(seeds), len(subsets)))


def suspects(design: Design, values: Matrix) -> tuple[int, ...]:
    """Return the factors to confirm: the pair that explains most, then others that stand out. Skip runs without a value.

    Args:
        design: The first stage.
        values: (runs,); nan where a run has none.
    """
    kept = np.isfinite(values)
    design, values = design.rows(kept), values[kept]
    factors = design.levels.shape[1]
    if factors == 1:
        return (0,)
    pairs = _pairs(factors)
    chosen = list(pairs[int(_pair_scores(design, values[None])[0].argmax())])
    while len(chosen) < min(_MOST_SUSPECTS, factors):
        base = _model(design, chosen)
        others = [factor for factor in range(factors) if factor not in chosen]
        p = [_p_value(base, np.column_stack([base, design.levels[:, [other]]]), values[None])[0] for other in others]
        if min(p) > _LEVEL / 2 / len(others):
            break
        chosen.append(others[int(np.argmin(p))])
    return tuple(chosen)


def judge(first: Design, values: Matrix, second: Design, again: Matrix, chosen: Sequence[int]) -> ScreeningVerdict:
    """Judge both stages together.

    A factor is named only if two tests reject: that no suspect has an effect, and that this factor has none.

    Args:
        first: The first stage.
        values: Its results; nan where a run has none.
        second: The second stage.
        again: Its results.
        chosen: The suspects of the first stage, the leading pair first.
    """
    both, outcome = _joined(first, values, second, again)
    factors, pair = both.levels.shape[1], tuple(chosen[:2])
    full = _model(both, chosen)
    level_all, level_each = _critical(factors)
    rest = _model(both, chosen[2:], interaction=False)
    any_effect = _p_value(rest, full, outcome[None])[0] <= level_all
    named = [
        any_effect and _p_value(_without(both, chosen, one), full, outcome[None])[0] <= level_each for one in chosen
    ]
    interacting = len(pair) == 2 and named[0] and named[1] and _interaction_p(both, chosen, outcome) <= 0.05
    fit = _Fit.of(full, outcome)
    quantile = float(stats.t.ppf(1 - _LEVEL / 2 / factors, max(fit.freedom, 1)))
    effects = []
    for factor in range(factors):
        suspect = factor in chosen
        weights = _weights(both, chosen, factor, alone=interacting and factor in pair)
        one = fit if suspect else _Fit.of(np.column_stack([full, both.levels[:, [factor]]]), outcome)
        effects.append(one.effect(weights, quantile, suspect, suspect and named[list(chosen).index(factor)]))
    together = None
    if interacting:
        terms = np.sum([_weights(both, chosen, factor, alone=True) for factor in pair], axis=0)
        terms[-1] = 0.0  # from (-1, -1) to (1, 1) the product of the two levels does not change
        together = fit.effect(terms, quantile, True, True)
    unclear = any_effect and not any(named)
    return ScreeningVerdict(tuple(effects), pair if unclear else (), together, noise=fit.noise, freedom=fit.freedom)


def _joined(first: Design, values: Matrix, second: Design, again: Matrix) -> tuple[Design, Matrix]:
    """Return both stages as one design, without runs that have no value."""
    outcome = np.concatenate([values, again])
    kept = np.isfinite(outcome)
    return _stacked(first, second).rows(kept), outcome[kept]


def _stacked(first: Design, second: Design) -> Design:
    blocks = np.concatenate([first.blocks, second.blocks + first.blocks.max() + 1])
    return Design(np.vstack([first.levels, second.levels]), blocks)


def _pairs(factors: int) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(factors), 2))


def _blocks(design: Design) -> Matrix:
    return np.asarray(design.blocks[:, None] == np.unique(design.blocks), dtype=float)


def _model(design: Design, chosen: Sequence[int], interaction: bool = True) -> Matrix:
    """Return the columns of a model: blocks, the chosen factors and the interaction of the first two, which comes last."""
    columns = [_blocks(design), design.levels[:, list(chosen)]]
    if interaction and len(chosen) > 1:
        columns.append(design.levels[:, [chosen[0]]] * design.levels[:, [chosen[1]]])
    return np.column_stack(columns)


def _without(design: Design, chosen: Sequence[int], factor: int) -> Matrix:
    """Return the model without a factor and its interaction."""
    others = [one for one in chosen if one != factor]
    return _model(design, others, interaction=False) if factor in chosen[:2] else _model(design, others)


def _residual(model: Matrix, outcomes: Matrix) -> Matrix:
    """Return the residual sum of squares of each row of outcomes."""
    basis = linalg.orth(model)
    rest = outcomes - (outcomes @ basis) @ basis.T
    return np.asarray((rest**2).sum(axis=1))


def _p_value(small: Matrix, large: Matrix, outcomes: Matrix) -> Matrix:
    """Return the p-value of the F test of two nested models, for each row of outcomes."""
    few, many = (int(np.linalg.matrix_rank(model)) for model in (small, large))
    freedom = len(large) - many
    if many == few or freedom < 1:
        return np.ones(len(outcomes))
    rest = _residual(large, outcomes)
    ratio = (_residual(small, outcomes) - rest) / (many - few) / np.maximum(rest / freedom, 1e-300)
    return np.asarray(stats.f.sf(ratio, many - few, freedom))


def _interaction_p(design: Design, chosen: Sequence[int], outcome: Matrix) -> float:
    return float(_p_value(_model(design, chosen, interaction=False), _model(design, chosen), outcome[None])[0])


def _pair_scores(design: Design, outcomes: Matrix) -> Matrix:
    """Return the sum of squares that each pair of factors with its interaction explains beside the blocks: (outcomes, pairs)."""
    blocks = linalg.orth(_blocks(design))
    scores = []
    for one, other in _pairs(design.levels.shape[1]):
        terms = design.levels[:, [one, other]]
        terms = np.column_stack([terms, terms.prod(axis=1)])
        basis = linalg.orth(terms - blocks @ (blocks.T @ terms))
        scores.append(((outcomes @ basis) ** 2).sum(axis=1))
    return np.stack(scores, axis=1)


def _weights(design: Design, chosen: Sequence[int], factor: int, *, alone: bool) -> Matrix:
    """Return the weights of an effect over a model's coefficients.

    `alone`: at the protocol's value of the interacting factor, else averaged over its two values.
    """
    blocks = _blocks(design).shape[1]
    extra = 0 if factor in chosen else 1
    weights = np.zeros(blocks + len(chosen) + (len(chosen) > 1) + extra)
    if factor not in chosen:
        weights[-1] = 2.0
        return weights
    weights[blocks + list(chosen).index(factor)] = 2.0
    if alone:
        weights[-1] = -2.0  # the other factor is at -1
    return weights


@dataclass(frozen=True, eq=False)
class _Fit:
    """A least-squares fit."""

    coefficients: Matrix
    covariance: Matrix
    """Of the coefficients, for unit noise."""
    noise: float
    freedom: int

    @classmethod
    def of(cls, model: Matrix, outcome: Matrix) -> _Fit:
        inverse = np.linalg.pinv(model)
        coefficients = inverse @ outcome
        freedom = len(outcome) - int(np.linalg.matrix_rank(model))
        rest = float(((outcome - model @ coefficients) ** 2).sum())
        return cls(coefficients, inverse @ inverse.T, float(np.sqrt(rest / max(freedom, 1))), freedom)

    def effect(self, weights: Matrix, quantile: float, suspect: bool, named: bool) -> FactorEffect:
        estimate = float(weights @ self.coefficients)
        half = quantile * self.noise * float(np.sqrt(weights @ self.covariance @ weights))
        return FactorEffect(estimate, estimate - half, estimate + half, suspect, bool(named))


@lru_cache
def _critical(factors: int) -> tuple[float, float]:
    """Return the p-values at which the tests reject: that no suspect has an effect, and that one of them has none.

    Each is a quantile of its p-value over simulated audits: without any effect, and beside one large effect.
    """
    if factors == 1:
        return _LEVEL, 1.0
    nothing = _simulated_p_values(factors, np.zeros(factors), _SIMULATIONS)
    culprit = np.zeros(factors)
    culprit[0] = _LARGE
    beside = _simulated_p_values(factors, culprit, _SIMULATIONS)
    return float(np.quantile(nothing[0], _LEVEL)), float(np.quantile(beside[1][:, 1:].min(axis=1), _LEVEL))


def _simulated_p_values(factors: int, effects: Matrix, simulations: int) -> tuple[Matrix, Matrix]:
    """Simulate audits with unit noise; return the p-values of both tests: (simulations,), (simulations, factors).

    A factor that is no suspect has the p-value 1.
    """
    generator = np.random.default_rng(0)
    design = screening_design(factors)
    outcomes = design.levels @ effects / 2 + generator.standard_normal((simulations, len(design.levels)))
    best = _pair_scores(design, outcomes).argmax(axis=1)
    overall, each = np.ones(simulations), np.ones((simulations, factors))
    for number in np.unique(best):
        chosen, rows = _pairs(factors)[number], np.flatnonzero(best == number)
        second = confirmation_design(factors, chosen)
        again = second.levels @ effects / 2 + generator.standard_normal((len(rows), len(second.levels)))
        both = _stacked(design, second)
        together = np.hstack([outcomes[rows], again])
        full = _model(both, chosen)
        overall[rows] = _p_value(_blocks(both), full, together)
        for one in chosen:
            each[rows, one] = _p_value(_without(both, chosen, one), full, together)
    return overall, each
