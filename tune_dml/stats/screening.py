"""Screen many two-level settings in few runs to find those that change the result.

    first = screening_design(12)                      # 24 runs: 12 and their mirror images, four runs a seed
    found = suspects(first, values)
    second = confirmation_design(12, found)           # 12 runs on fresh seeds
    verdict = judge(first, values, second, again, found)

The first stage is a Hadamard design with its mirror image, so main effects are free of all two-way interactions.
The second stage starts from all suspects and undoes one at a time, or from none and adds one at a time. Explanations
with few settings are then compared by their likelihood over both stages. A setting is named if every explanation
without it is much less likely than the best one. The threshold comes from a simulation of the whole procedure,
selection included. ADR 22 has the error rates.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, stats

from tune_dml.stats.explanations import Matrix, evidence, explanations, log_likelihoods

_LEVEL = 0.045
"""Share of simulated audits that may name a setting wrongly; below 5 %, because real audits may differ."""
_INTERVALS = 0.03
"""Error level of the simultaneous intervals of all effects."""
MOST_FACTORS = 24
_PALEY = {12: 11, 20: 19, 24: 23}
_RUNS = 24  # runs of the first stage, for up to 12 settings
_SECOND = 12  # runs of the second stage
USUAL_SUSPECTS, _MOST_SUSPECTS = 3, 5
_SIMULATIONS = 1500
_EFFECTS = (0.0, 2.3)  # of the simulated culprit, in standard deviations of a run without the seed effect
_OWN_DRAWS = (0.0, 0.5, 1.0)  # share of a run's noise from a setting without effect that changes the random draws


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
    one_of: tuple[int, ...]
    """Two factors of which at least one has an effect, if the runs cannot tell which."""
    together: FactorEffect | None
    """The joint effect of the pair, if two named factors interact."""
    pair: tuple[int, int] | None
    """The named factors that interact."""
    reference: float
    """The result with the protocol's values of all factors, over all seeds."""
    noise: float
    """Standard deviation of one run without the seed effect."""
    freedom: int
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
    """Return the first stage: a Hadamard design with its mirror image; two runs and their mirror images share a seed.

    The first run has all of the user's settings, its mirror image all of the protocol's. Up to 12 settings take 24 runs
    under 6 seeds; 24 take 48. If more runs shared a seed, settings that only change the random draws, such as the batch
    size, would have too few draws to be distinguished from those that change the result.
    """
    order = next(n for n in (1, 2, 4, 12, 16, 20, 24) if n >= factors)
    half = _hadamard(order)[:, :factors]
    copies = max(1, _RUNS // (2 * order))
    rows = np.arange(order)
    seeds = np.minimum(rows, order - 1 - rows)  # with 12 rows, each product of two settings varies under some seed
    levels = np.tile(np.vstack([half, -half]), (copies, 1))
    return Design(levels, np.concatenate([np.tile(seeds + copy * order, 2) for copy in range(copies)]))


@dataclass(frozen=True)
class Suspects:
    """The factors to confirm."""

    factors: tuple[int, ...]
    """The most probable first."""
    undo: bool = True
    """Whether the second stage starts from all of them and undoes one at a time, rather than adding one at a time."""


def confirmation_design(factors: int, chosen: Suspects) -> Design:
    """Return the second stage, on fresh seeds, with at most 12 runs.

    With `undo`, it runs all suspects together and all but each one; otherwise it runs none and each one alone. Two
    suspects take all four combinations. If two settings act only together, undoing either one removes the whole effect.
    """
    number = len(chosen.factors)
    changed = np.vstack([np.zeros(number), np.eye(number)]) > 0
    if number == 2:
        changed = np.vstack([changed, [True, True]])
    levels = -np.ones((len(changed), factors))
    levels[:, list(chosen.factors)] = np.where(changed ^ chosen.undo, 1, -1)
    seeds = max(2, _SECOND // len(levels))
    return Design(np.tile(levels, (seeds, 1)), np.repeat(np.arange(seeds), len(levels)))


def suspects(design: Design, values: Matrix) -> Suspects:
    """Return the factors to confirm: the three most probable, and up to two more with a probability above 0.5.

    Args:
        design: The first stage.
        values: (runs,); NaN for a run without a value, which is skipped.
    """
    kept = np.isfinite(values)
    probable, undo = _probabilities(design.rows(kept), values[None, kept])
    order = np.argsort(-probable[0], kind="stable")[:_MOST_SUSPECTS]
    chosen = [int(one) for place, one in enumerate(order) if place < USUAL_SUSPECTS or probable[0, one] > 0.5]
    return Suspects(tuple(chosen), bool(undo[0]))


def judge(first: Design, values: Matrix, second: Design, again: Matrix, chosen: Suspects) -> ScreeningVerdict:
    """Judge both stages together.

    Args:
        first: The first stage.
        values: Its results; NaN for a run without a value.
        second: The second stage.
        again: Its results.
        chosen: The suspects of the first stage.
    """
    outcome = np.concatenate([values, again])
    kept = np.isfinite(outcome)
    both = Design(np.vstack([first.levels, second.levels]), _all_blocks(first, second)).rows(kept)
    outcome = outcome[kept]
    factors, tried = both.levels.shape[1], chosen.factors
    known = explanations(len(tried), factors, len(tried))
    gain, gain_of_two = (one[0] for one in evidence(both.levels[:, list(tried)], both.blocks, outcome[None], known))
    least, least_of_two = _critical(factors)
    named = tuple(one for one, better in zip(tried, gain, strict=True) if better > least)
    one_of: tuple[int, ...] = ()
    if not named and len(tried) > 1 and gain_of_two.max() > least_of_two:
        one_of = list(itertools.combinations(tried, 2))[int(gain_of_two.argmax())]
    pair = _interacting(both, tried, named, outcome)
    fit = _Fit.of(_model(both, tried, pair), outcome)
    effects, together = _effects(both, outcome, fit, tried, named=named, pair=pair)
    blocks = _blocks(both).shape[1]
    signs = [-1.0] * len(tried) + [1.0] * (pair is not None)  # levels of the columns if all settings are the protocol's
    reference = float(fit.coefficients[:blocks].mean() + fit.coefficients[blocks:] @ signs)
    return ScreeningVerdict(effects, one_of, together, pair, reference, fit.noise, fit.freedom)


def _effects(
    both: Design,
    outcome: Matrix,
    fit: _Fit,
    tried: Sequence[int],
    *,
    named: Sequence[int],
    pair: tuple[int, int] | None,
) -> tuple[tuple[FactorEffect, ...], FactorEffect | None]:
    """Return the least-squares effect of each factor and the joint effect of a pair, with seeds as blocks."""
    factors, blocks = both.levels.shape[1], _blocks(both).shape[1]
    full = _model(both, tried, pair)
    quantile = float(stats.t.ppf(1 - _INTERVALS / 2 / factors, max(fit.freedom, 1)))
    effects = []
    for factor in range(factors):
        suspect = factor in tried
        one = fit if suspect else _Fit.of(np.column_stack([full, both.levels[:, [factor]]]), outcome)
        weights = np.zeros(len(one.coefficients))
        weights[blocks + tried.index(factor) if suspect else -1] = 2.0
        if pair is not None and factor in pair:
            weights[-1] = -2.0  # the other factor is at -1
        effects.append(one.effect(weights, quantile, suspect, factor in named))
    if pair is None:
        return tuple(effects), None
    weights = np.zeros(len(fit.coefficients))
    weights[[blocks + tried.index(factor) for factor in pair]] = 2.0  # the product is 1 at both ends
    return tuple(effects), fit.effect(weights, quantile, True, True)


def _interacting(both: Design, tried: Sequence[int], named: Sequence[int], outcome: Matrix) -> tuple[int, int] | None:
    """Return the two named factors whose interaction is clearest, if it is significant at 5 %."""
    pairs = list(itertools.combinations(named, 2))
    p = [_p_value(_model(both, tried), _model(both, tried, pair), outcome) for pair in pairs]
    return pairs[int(np.argmin(p))] if pairs and min(p) * len(pairs) <= 0.05 else None


def _probabilities(design: Design, outcomes: Matrix) -> tuple[Matrix, NDArray[np.bool_]]:
    """Return each factor's probability after the first stage, and whether to undo suspects rather than add them.

    Undoing is chosen if "two act only together" is at least as probable as "either has the whole effect".
    """
    factors = design.levels.shape[1]
    known = explanations(factors, factors, 2)
    scores = log_likelihoods(design.levels, design.blocks, outcomes, known)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    undo = weights[:, known.either > 0].sum(axis=1) >= weights[:, known.either < 0].sum(axis=1)
    return weights @ known.members, undo


def _all_blocks(first: Design, second: Design) -> NDArray[np.int64]:
    return np.concatenate([first.blocks, second.blocks + first.blocks.max() + 1])


def _blocks(design: Design) -> Matrix:
    return np.asarray(design.blocks[:, None] == np.unique(design.blocks), dtype=float)


def _model(design: Design, chosen: Sequence[int], pair: tuple[int, int] | None = None) -> Matrix:
    """Return the columns of a model: blocks, the chosen factors and the interaction of a pair, which comes last."""
    columns = [_blocks(design), design.levels[:, list(chosen)]]
    if pair is not None:
        columns.append(design.levels[:, list(pair)].prod(axis=1, keepdims=True))
    return np.column_stack(columns)


def _p_value(small: Matrix, large: Matrix, outcome: Matrix) -> float:
    """Return the p-value of the F test of two models, of which the large one has one column more."""
    less, more = _Fit.of(small, outcome), _Fit.of(large, outcome)
    if more.freedom < 1 or less.freedom == more.freedom:
        return 1.0
    gain = less.noise**2 * less.freedom - more.noise**2 * more.freedom
    return float(stats.f.sf(gain / max(more.noise**2, 1e-300), 1, more.freedom))


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
    """Return two thresholds of the evidence: for naming a setting, and for naming one of two.

    In every simulated case at most a share `_LEVEL` of audits exceeds a threshold wrongly. The cases have no effect or
    one culprit, each with and without a setting that changes only the random draws of a run.
    """
    cases = itertools.product(_EFFECTS if factors > 1 else (0.0,), _OWN_DRAWS)
    simulations = _SIMULATIONS * 12 // max(factors, 12)
    found = [_simulated_evidence(factors, effect, share, simulations) for effect, share in cases]
    one = max(_exceeded(most) for most, _ in found)
    return one, max(one, *(_exceeded(most) for _, most in found))


def _exceeded(evidence: Matrix) -> float:
    return float(np.quantile(evidence, 1 - _LEVEL, method="higher"))


def _simulated_evidence(
    factors: int, effect: float, share: float, simulations: int, *, seed: int = 0
) -> tuple[Matrix, Matrix]:
    """Simulate audits with unit noise. Return each one's largest evidence for a setting without effect, and for a pair.

    Args:
        factors: Number of settings. The first is the culprit if there is one.
        effect: The culprit's effect.
        share: Share of the noise variance from the last setting, which has one random draw per seed and value.
        simulations: Number of audits.
        seed: Seed of the simulation.
    """
    generator = np.random.default_rng(seed)
    number = min(USUAL_SUSPECTS, factors)

    def outcomes(design: Design, levels: Matrix) -> Matrix:
        own = generator.standard_normal((simulations, int(design.blocks.max()) + 1, 2))
        drawn = own[np.arange(simulations)[:, None], design.blocks, (levels[..., -1] > 0).astype(int)]
        alone = generator.standard_normal(drawn.shape)
        return np.asarray(levels[..., 0] * effect / 2 + np.sqrt(share) * drawn + np.sqrt(1 - share) * alone)

    first = screening_design(factors)
    values = outcomes(first, first.levels)
    probable, undo = _probabilities(first, values)
    chosen = np.argsort(-probable, axis=1, kind="stable")[:, :number]
    plans = [confirmation_design(number, Suspects(tuple(range(number)), way)) for way in (False, True)]
    tried = np.where(undo[:, None, None], plans[1].levels, plans[0].levels)
    levels = -np.ones((simulations, len(plans[0].levels), factors))
    np.put_along_axis(levels, np.broadcast_to(chosen[:, None], tried.shape), tried, axis=2)
    again = outcomes(plans[0], levels)
    both = np.concatenate([first.levels[:, chosen].transpose(1, 0, 2), tried], axis=1)
    known = explanations(number, factors, number)
    gains = evidence(both, _all_blocks(first, plans[0]), np.hstack([values, again]), known)
    culprit = (chosen == 0) & (effect != 0)
    pairs = np.array(list(itertools.combinations(range(number), 2)), dtype=int).reshape(-1, 2)
    guilty = culprit[:, pairs].any(axis=2)
    most = [np.where(some, -np.inf, gain) for gain, some in zip(gains, (culprit, guilty), strict=True)]
    return most[0].max(axis=1), most[1].max(axis=1, initial=-np.inf)
