"""Screen many two-level settings in few runs to find those that change the result.

    first = screening_design(12)                      # 24 runs: 12 and their mirror images, six runs per seed
    suspects = choose_suspects(first, values)
    second = confirmation_design(12, suspects)        # 12 runs on fresh seeds, four per seed
    verdict = judge_screening(first, values, second, second_values, suspects)

The first stage is a Hadamard design with its mirror image, so main effects are free of all two-way interactions.
Explanations with few settings are compared by their likelihood. The second stage has the runs of the suspects that
distinguish those best that are still probable. A setting is named if, over both stages, every explanation without it is
much less likely than the best one. The threshold comes from a simulation of the whole procedure, selection included.
ADR 22 has the error rates.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, stats

from tune_dml.stats.explanations import choose_runs, evidence, list_explanations, probabilities
from tune_dml.stats.intervals import Array, Mask

_LEVEL = 0.045
"""Share of simulated audits that may name a setting wrongly; below 5 %, because real audits may differ."""
_INTERVALS = 0.03  # error level of the simultaneous intervals of all effects
MAX_FACTORS = 24
_PALEY = {12: 11, 20: 19, 24: 23}  # prime of Paley's construction for each order of a Hadamard matrix
_FIRST_RUNS, SECOND_RUNS = 24, 12  # runs of the first stage, for up to 12 settings, and of the second stage
_SUSPECTS = 4
_SIMULATIONS = 1500
_CULPRITS, _EFFECT = (0, 1, 2), 2.3
"""Simulated numbers of culprits, and the effect of each in standard deviations of a run without the seed effect."""
_DRAW_SHARES = (0.0, 0.6)
"""Simulated shares of a run's noise from a setting without effect that changes the random draws."""


@dataclass(frozen=True, eq=False)
class Design:
    """Runs of an experiment on two-level settings."""

    levels: Array  # (runs, factors): 1 where a run has the user's setting, -1 where it has the protocol's
    blocks: NDArray[np.int64]  # (runs,): the block of each run; runs of one block share a seed

    def rows(self, kept: Mask) -> Design:
        """Return the design with the kept runs only."""
        return Design(self.levels[kept], self.blocks[kept])

    @property
    def indicators(self) -> Array:
        """(runs, blocks): 1 where a run is in a block, else 0."""
        return np.asarray(self.blocks[:, None] == np.unique(self.blocks), dtype=float)


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
    """The verdict of a screening on its factors."""

    effects: tuple[FactorEffect, ...]
    one_of: tuple[int, ...]
    """Two factors, at least one of which has an effect; empty unless the runs cannot tell which one."""
    together: FactorEffect | None  # the joint effect of the pair, if two named factors interact
    pair: tuple[int, int] | None  # the named factors that interact
    reference: float  # estimated mean result with the protocol's values of all factors
    noise: float  # standard deviation of one run without the seed effect
    freedom: int  # degrees of freedom of the noise

    @property
    def named(self) -> tuple[int, ...]:
        """The factors that have an effect."""
        return tuple(index for index, effect in enumerate(self.effects) if effect.named)


def _hadamard(order: int) -> Array:
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
    """Return the first stage: a Hadamard design with its mirror image; three runs and their mirror images share a seed.

    The first run has all of the user's settings, its mirror image all of the protocol's. Up to 12 settings take 24 runs,
    five and more under 4 seeds; 24 take 48 runs under 8. If more runs shared a seed, settings that only change the random
    draws, such as the batch size, would have too few draws to be distinguished from those that change the result. If
    fewer did, less of each interaction would be free of the noise between seeds.
    """
    order = next(n for n in (1, 2, 4, 12, 16, 20, 24) if n >= factors)
    half = _hadamard(order)[:, :factors]
    copies = max(1, _FIRST_RUNS // (2 * order))
    seeds = np.tile(np.arange(order) // 3, 2)
    blocks = np.concatenate([seeds + copy * (seeds.max() + 1) for copy in range(copies)])
    return Design(np.tile(np.vstack([half, -half]), (copies, 1)), blocks)


@dataclass(frozen=True)
class Suspects:
    """The factors to confirm, and the runs that confirm them."""

    factors: tuple[int, ...]  # the most probable first
    runs: tuple[tuple[bool, ...], ...]
    """For each run of the second stage, whether it has the user's value of each suspect."""


def confirmation_design(factors: int, chosen: Suspects) -> Design:
    """Return the second stage: runs of the suspects on fresh seeds; all other factors have the protocol's values."""
    levels = -np.ones((len(chosen.runs), factors))
    levels[:, list(chosen.factors)] = np.where(chosen.runs, 1, -1)
    return Design(levels, _fresh_blocks(len(chosen.factors)))


def choose_suspects(design: Design, values: Array) -> Suspects:
    """Choose the factors to confirm, the four most probable, and the runs that confirm them.

    `values`, (runs,), are the results of the first stage; NaN for a run without a value, which is skipped.
    """
    kept = np.isfinite(values)
    chosen, levels = _confirming_levels(design.rows(kept), values[None, kept])
    return Suspects(tuple(chosen[0, :_SUSPECTS].tolist()), tuple(map(tuple, (levels[0] > 0).tolist())))


def judge_screening(
    first: Design, values: Array, second: Design, second_values: Array, chosen: Suspects, *, resolution: float = 0.0
) -> ScreeningVerdict:
    """Judge both stages together; the results of each have NaN for a run without a value.

    A metric that moves in steps of `resolution` may give equal values by chance: noise is taken as at least half a step.
    """
    outcome = np.concatenate([values, second_values])
    kept = np.isfinite(outcome)
    blocks_of_runs = np.concatenate([first.blocks, second.blocks + first.blocks.max() + 1])
    both = Design(np.vstack([first.levels, second.levels]), blocks_of_runs).rows(kept)
    outcome = outcome[kept]
    factors, suspects = both.levels.shape[1], chosen.factors
    explanations = list_explanations(len(suspects), factors, len(suspects))
    order = [*suspects, *(factor for factor in range(factors) if factor not in suspects)]
    gains, pair_gains = evidence(both.levels[:, order], both.blocks, outcome[None], explanations)
    threshold, pair_threshold = _critical(factors)
    named = tuple(factor for factor, gain in zip(suspects, gains[0], strict=True) if gain > threshold)
    one_of: tuple[int, ...] = ()
    if not named and len(suspects) > 1 and pair_gains[0].max() > pair_threshold:
        one_of = list(itertools.combinations(suspects, 2))[int(pair_gains[0].argmax())]
    pair = _interacting_pair(both, suspects, named, outcome)
    floor = resolution / 2
    fit = _Fit.of(_model(both, suspects, pair), outcome, floor)
    effects, together = _effects(both, outcome, fit, suspects, named=named, pair=pair, floor=floor)
    blocks = both.indicators.shape[1]
    signs = [-1.0] * len(suspects) + [1.0] * (pair is not None)  # levels of the columns under the protocol's settings
    reference = float(fit.coefficients[:blocks].mean() + fit.coefficients[blocks:] @ signs)
    return ScreeningVerdict(effects, one_of, together, pair, reference, fit.noise, fit.freedom)


def _effects(
    both: Design,
    outcome: Array,
    fit: _Fit,
    suspects: Sequence[int],
    *,
    named: Sequence[int],
    pair: tuple[int, int] | None,
    floor: float,
) -> tuple[tuple[FactorEffect, ...], FactorEffect | None]:
    """Return the least-squares effect of each factor and the joint effect of a pair, with seeds as blocks."""
    factors, blocks = both.levels.shape[1], both.indicators.shape[1]
    model = _model(both, suspects, pair)
    effects = []
    for factor in range(factors):
        is_suspect = factor in suspects
        own_fit = fit if is_suspect else _Fit.of(np.column_stack([model, both.levels[:, [factor]]]), outcome, floor)
        weights = np.zeros(len(own_fit.coefficients))
        weights[blocks + suspects.index(factor) if is_suspect else -1] = 2.0
        if pair is not None and factor in pair:
            weights[-1] = -2.0  # the other factor is at -1
        half = own_fit.half_width(weights, _INTERVALS / factors, both.indicators)
        effects.append(own_fit.effect(weights, half, is_suspect, factor in named))
    if pair is None:
        return tuple(effects), None
    weights = np.zeros(len(fit.coefficients))
    weights[[blocks + suspects.index(factor) for factor in pair]] = 2.0  # the product is 1 at both ends
    half = fit.half_width(weights, _INTERVALS / factors, both.indicators)
    return tuple(effects), fit.effect(weights, half, True, True)


def _interacting_pair(
    both: Design, suspects: Sequence[int], named: Sequence[int], outcome: Array
) -> tuple[int, int] | None:
    """Return the two named factors whose interaction has the smallest p-value, if it is significant at 5 %."""
    pairs = list(itertools.combinations(named, 2))
    p = [_p_value(_model(both, suspects), _model(both, suspects, pair), outcome) for pair in pairs]
    return pairs[int(np.argmin(p))] if pairs and min(p) * len(pairs) <= 0.05 else None


def _confirming_levels(design: Design, outcomes: Array) -> tuple[NDArray[np.int64], Array]:
    """Rank the factors by their probability after the first stage, and choose the runs of the second stage.

    Return the factors, the most probable first, (outcomes, factors), and the levels of the suspects, which are the
    first of them: (outcomes, runs, suspects).
    """
    factors = design.levels.shape[1]
    known, count = list_explanations(factors, factors, 2), min(_SUSPECTS, factors)
    probable = probabilities(design.levels, design.blocks, outcomes, known) @ known.members
    order = np.argsort(-probable, axis=1, kind="stable")
    levels, explanations = (
        design.levels[:, order[:, :count]].transpose(1, 0, 2),
        list_explanations(count, factors, count),
    )
    candidates = np.array(list(itertools.product([-1.0, 1.0], repeat=count)))
    sizes = np.bincount(_fresh_blocks(count)).tolist()
    runs = choose_runs(levels, design.blocks, outcomes, explanations, candidates=candidates, sizes=sizes)
    return order, candidates[runs]


def _fresh_blocks(suspects: int) -> NDArray[np.int64]:
    """Return the block of each run of the second stage: four runs share a seed, or both of a single suspect."""
    return np.asarray(np.arange(SECOND_RUNS) // min(4, 2**suspects))


def _model(design: Design, chosen: Sequence[int], pair: tuple[int, int] | None = None) -> Array:
    """Return the columns of a model: blocks, the chosen factors and the interaction of a pair, which comes last."""
    columns = [design.indicators, design.levels[:, list(chosen)]]
    if pair is not None:
        columns.append(design.levels[:, list(pair)].prod(axis=1, keepdims=True))
    return np.column_stack(columns)


def _p_value(small: Array, large: Array, outcome: Array) -> float:
    """Return the p-value of the F test of two models; the large one has one more column."""
    small_fit, large_fit = _Fit.of(small, outcome), _Fit.of(large, outcome)
    if large_fit.freedom < 1 or small_fit.freedom == large_fit.freedom:
        return 1.0
    gain = small_fit.noise**2 * small_fit.freedom - large_fit.noise**2 * large_fit.freedom
    return float(stats.f.sf(gain / max(large_fit.noise**2, 1e-300), 1, large_fit.freedom))


@dataclass(frozen=True, eq=False)
class _Fit:
    coefficients: Array
    inverse: Array  # (coefficients, runs): what each result adds to each coefficient
    residuals: Array
    noise: float
    freedom: int

    @classmethod
    def of(cls, model: Array, outcome: Array, floor: float = 0.0) -> _Fit:
        inverse = np.asarray(np.linalg.pinv(model), dtype=float)
        coefficients = inverse @ outcome
        freedom = len(outcome) - int(np.linalg.matrix_rank(model))
        residuals = outcome - model @ coefficients
        noise = max(float(np.sqrt((residuals**2).sum() / max(freedom, 1))), floor)
        return cls(coefficients, inverse, residuals, noise, freedom)

    def half_width(self, weights: Array, level: float, blocks: Array) -> float:
        """Return half the interval of a sum of coefficients; the runs of a block (runs, blocks) share a seed.

        A setting that draws random numbers gives the residuals of a seed a common part. The half-width is therefore at
        least that of the variance between seeds (Liang and Zeger 1986). Of n seeds that count equally it has n - 1
        degrees of freedom or more; with twice as many, all intervals hold in 95 % of simulated audits (docs/audit.md).
        """
        pull = weights @ self.inverse
        squares = pull**2 @ blocks
        seeds = max(float(squares.sum() ** 2 / (squares**2).sum()), 1.5)
        runs, added = len(pull), len(self.coefficients) - blocks.shape[1]
        between = (((pull * self.residuals) @ blocks) ** 2).sum() * seeds / (seeds - 1) * (runs - 1) / (runs - added)
        parts = ((self.noise**2 * squares.sum(), max(self.freedom, 1)), (between, 2 * (seeds - 1)))
        return max(float(stats.t.ppf(1 - level / 2, df) * np.sqrt(variance)) for variance, df in parts)

    def effect(self, weights: Array, half: float, suspect: bool, named: bool) -> FactorEffect:
        estimate = float(weights @ self.coefficients)
        return FactorEffect(estimate, estimate - half, estimate + half, suspect, bool(named))


@lru_cache
def _critical(factors: int) -> tuple[float, float]:
    """Return two thresholds of the evidence: for naming a setting, and for naming a pair of which one has an effect.

    In every simulated case, at most a share `_LEVEL` of audits exceeds a threshold wrongly. The cases have up to two
    culprits, each with and without a setting that changes only the random draws of a run.
    """
    cases = itertools.product(_CULPRITS[:factors], _DRAW_SHARES)
    simulations = _SIMULATIONS * 12 // max(factors, 12)
    evidences = [_simulate_evidence(factors, culprits, share, simulations) for culprits, share in cases]
    threshold = max(_upper_quantile(single) for single, _ in evidences)
    return threshold, max(threshold, *(_upper_quantile(pair) for _, pair in evidences))


def _upper_quantile(evidence: Array) -> float:
    return float(np.quantile(evidence, 1 - _LEVEL, method="higher"))


def _simulate_evidence(
    factors: int, culprits: int, share: float, simulations: int, *, seed: int = 0
) -> tuple[Array, Array]:
    """Simulate audits with unit noise, and return the largest evidence of each for a wrong setting and a wrong pair.

    Args:
        factors: Number of settings. The first ones are the culprits.
        culprits: Number of culprits, which add their effects.
        share: Share of the noise variance from the last setting, which has one random draw per seed and value.
        simulations: Number of audits.
        seed: Seed of the simulation.
    """
    generator = np.random.default_rng(seed)
    count = min(_SUSPECTS, factors)

    def outcomes(blocks: NDArray[np.int64], levels: Array) -> Array:
        draws = generator.standard_normal((simulations, int(blocks.max()) + 1, 2))
        shared = draws[np.arange(simulations)[:, None], blocks, (levels[..., -1] > 0).astype(int)]
        noise = np.sqrt(share) * shared + np.sqrt(1 - share) * generator.standard_normal(shared.shape)
        return np.asarray(_EFFECT / 2 * levels[..., :culprits].sum(axis=-1) + noise)

    first = screening_design(factors)
    values = outcomes(first.blocks, first.levels)
    order, suspect_levels = _confirming_levels(first, values)
    chosen = order[:, :count]
    levels = -np.ones((simulations, SECOND_RUNS, factors))
    np.put_along_axis(levels, np.broadcast_to(chosen[:, None], suspect_levels.shape), suspect_levels, axis=2)
    second_values = outcomes(_fresh_blocks(count), levels)
    both = np.concatenate([np.broadcast_to(first.levels, (simulations, *first.levels.shape)), levels], axis=1)
    blocks = np.concatenate([first.blocks, _fresh_blocks(count) + first.blocks.max() + 1])
    explanations = list_explanations(count, factors, count)
    ordered = np.take_along_axis(both, order[:, None], axis=2)
    single, pair = evidence(ordered, blocks, np.hstack([values, second_values]), explanations)
    is_culprit = chosen < culprits
    pairs = np.array(list(itertools.combinations(range(count), 2)), dtype=int).reshape(-1, 2)
    has_culprit = is_culprit[:, pairs].any(axis=2)
    single, pair = np.where(is_culprit, -np.inf, single), np.where(has_culprit, -np.inf, pair)
    return single.max(axis=1), pair.max(axis=1, initial=-np.inf)
