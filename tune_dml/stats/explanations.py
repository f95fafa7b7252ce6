"""Likelihoods of short explanations of the results of two-level runs.

An explanation names settings and the form of their effect. Either each setting adds its own effect, or two settings
have one effect: only if both are on, or if at least one of them is on. Seeds are blocks. A setting can also change the
random numbers of a run, as the batch size does: its effect then differs between seeds. All functions take many
simulated outcomes at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import comb, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.intervals import Array, Mask

_ADDED, _IN_COMMON = 3.25, 2.25
"""Penalties in log-likelihood: of each setting that adds its effect, and of the one effect that two settings have."""
_RANDOM_EFFECT = 4.5
"""Penalty of a setting's random effect, in log-likelihood; twice as large if the explanation names the setting."""
_MIN_NOISE = 0.02  # minimum noise beside a setting's random effect, as a share of the variance within seeds
_SEED_VARIANCE = 100.0  # of the seed, in noise variances: so large that a run tells only by its difference to others


@dataclass(frozen=True, eq=False)
class Explanations:
    """Short explanations of results by settings."""

    members: Mask  # (explanations, settings): whether an explanation names a setting
    maps: tuple[Array, ...]
    """For each explanation, a matrix (terms, coefficients) from its coefficients to those of all terms."""
    penalty: Array
    """(explanations,): penalty in log-likelihood; it grows with the number of explanations of the same kind."""

    @cached_property
    def groups(self) -> tuple[tuple[NDArray[np.int64], Array], ...]:
        """Numbers and maps (explanations, terms, coefficients) of the explanations with equally many coefficients."""
        sizes = np.array([matrix.shape[1] for matrix in self.maps])
        numbers = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
        return tuple((group, np.stack([self.maps[number] for number in group])) for group in numbers)


@lru_cache
def list_explanations(settings: int, factors: int, max_added: int) -> Explanations:
    """Return all explanations: no setting, up to `max_added` settings with added effects, and pairs with one effect.

    `settings` is the number of settings that an explanation can name; they were chosen from `factors` ones.
    """
    pairs = list(itertools.combinations(range(settings), 2))
    terms = np.eye(settings + len(pairs))
    rows: list[tuple[tuple[int, ...], Array, float]] = [
        (named, terms[:, list(named)], _ADDED * size)
        for size in range(max_added + 1)
        for named in itertools.combinations(range(settings), size)
    ]
    for number, pair in enumerate(pairs):
        both, product = terms[:, list(pair)].sum(axis=1), terms[:, settings + number]
        rows += [(pair, (both + sign * product)[:, None], _IN_COMMON) for sign in (1, -1)]
    members = np.array([[setting in named for setting in range(settings)] for named, _, _ in rows])
    penalty = np.array([price + log(comb(factors, len(named))) for named, _, price in rows])
    return Explanations(members, tuple(matrix for _, matrix, _ in rows), penalty)


def probabilities(levels: Array, blocks: NDArray[np.int64], outcomes: Array, explanations: Explanations) -> Array:
    """Return the probability of each explanation by its penalised likelihood: (outcomes, explanations).

    Args:
        levels: (runs, settings), or (outcomes, runs, settings) if the outcomes have different levels; each is 1 or -1.
        blocks: (runs,): block of each run; the runs of a block share a seed.
        outcomes: (outcomes, runs).
        explanations: The explanations.
    """
    return _weights(_Runs.of(levels, blocks, outcomes, explanations).with_equal_noise(explanations))


def choose_runs(
    levels: Array,
    blocks: NDArray[np.int64],
    outcomes: Array,
    explanations: Explanations,
    *,
    candidates: Array,
    sizes: Sequence[int],
) -> NDArray[np.int64]:
    """Return the runs that distinguish the explanations best, as rows of `candidates`: (outcomes, runs).

    `candidates`, (candidates, settings), are the levels of the runs to choose from; `sizes` are the numbers of runs of
    each block. The runs of a block are chosen one after another: the run is next whose result is least certain given
    those before it. No block has a run twice. For the other arguments see `probabilities`.
    """
    runs = _Runs.of(levels, blocks, outcomes, explanations)
    sums, terms = _Sums.of(runs.terms, runs.values), _terms(candidates)
    weights = _weights(runs.with_equal_noise(explanations))[:, :, None]
    noise = (weights[..., 0] * sums.residuals(explanations)).sum(axis=1) / runs.freedom
    expected = sums.coefficients(explanations) @ terms.T
    apart = (expected - (weights * expected).sum(axis=1, keepdims=True)) * np.sqrt(weights)
    covariance = np.swapaxes(apart, 1, 2) @ apart / noise[:, None, None]  # between explanations
    for number, matrix in enumerate(explanations.maps):  # and of what each of them expects
        covariance += weights[:, [number]] * (terms @ matrix @ sums.inverse(matrix) @ (terms @ matrix).T)
    chosen = []
    for size in sizes:
        picked = _pick_block(covariance, size)
        centre = np.eye(size) - 1 / size
        known = np.take_along_axis(covariance, picked[:, None], axis=2)
        inner = centre @ np.take_along_axis(known, picked[..., None], axis=1) + np.eye(size)
        covariance = covariance - known @ centre @ np.linalg.solve(inner, np.swapaxes(known @ centre, 1, 2))
        chosen.append(picked)
    return np.concatenate(chosen, axis=1)


def _pick_block(covariance: Array, size: int) -> NDArray[np.int64]:
    """Pick runs of one seed from candidates with this covariance (outcomes, candidates, candidates)."""
    each, picked = np.arange(len(covariance)), np.zeros((len(covariance), size), dtype=int)
    for number in range(size):
        variance = np.diagonal(covariance, axis1=1, axis2=2).copy()
        np.put_along_axis(variance, picked[:, :number], -np.inf, axis=1)
        picked[:, number] = best = variance.argmax(axis=1)
        if number == 0:
            covariance = covariance + _SEED_VARIANCE
        column = covariance[each, :, best]
        covariance = covariance - column[:, :, None] * (column / (column[each, best] + 1)[:, None])[:, None, :]
    return picked


def evidence(
    levels: Array, blocks: NDArray[np.int64], outcomes: Array, explanations: Explanations
) -> tuple[Array, Array]:
    """Return the evidence for each setting (outcomes, settings), and for each pair of settings (outcomes, pairs).

    The evidence for a setting is the log-likelihood of the best explanation that names it, minus that of the best
    explanation that does not. For a pair, the first explanation names at least one of the two. In each explanation, the
    effect of one setting may also differ from seed to seed. `levels` can have settings after those that an explanation
    can name: these can have only such a random effect. For the arguments see `probabilities`.
    """
    runs = _Runs.of(levels, blocks, outcomes, explanations)
    members = explanations.members
    settings = range(members.shape[1])
    scores = [runs.with_equal_noise(explanations)]
    for setting in range(levels.shape[-1]):
        penalty = _RANDOM_EFFECT * (1 + (members[:, setting] if setting in settings else 0))
        scores.append(runs.with_random_effect(explanations, setting) - penalty)
    best = np.max(scores, axis=0)
    groups = [(setting,) for setting in settings] + list(itertools.combinations(settings, 2))
    naming = [members[:, list(group)].any(axis=1) for group in groups]
    gains = np.stack([best[:, names].max(axis=1) - best[:, ~names].max(axis=1) for names in naming], axis=1)
    return gains[:, : len(settings)], gains[:, len(settings) :]


def _weights(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _terms(levels: Array) -> Array:
    """Return the levels of the settings, and the products of two of them."""
    pairs = list(itertools.combinations(range(levels.shape[-1]), 2))
    return np.concatenate([levels, *[levels[..., [first]] * levels[..., [second]] for first, second in pairs]], axis=-1)


@dataclass(frozen=True, eq=False)
class _Runs:
    """Runs of many simulated audits; the mean of each seed is subtracted."""

    levels: Array
    terms: Array  # levels of the settings that an explanation can name, and the products of two of them
    values: Array
    member: Array  # (runs, blocks): 1 where a run is in a block
    freedom: int

    @classmethod
    def of(cls, levels: Array, blocks: NDArray[np.int64], outcomes: Array, explanations: Explanations) -> _Runs:
        terms = _terms(levels[..., : explanations.members.shape[1]])
        member = np.asarray(blocks[:, None] == np.unique(blocks), dtype=float)
        mean = (member / member.sum(axis=0)) @ member.T
        within = np.eye(len(blocks)) - mean
        return cls(within @ levels, within @ terms, outcomes @ within, member, len(blocks) - member.shape[1])

    def with_equal_noise(self, explanations: Explanations) -> Array:
        """Return the penalised log-likelihoods if all runs have the same noise."""
        residuals = _Sums.of(self.terms, self.values).residuals(explanations)
        return np.asarray(-self.freedom / 2 * np.log(residuals / self.freedom) - explanations.penalty)

    def with_random_effect(self, explanations: Explanations, setting: int) -> Array:
        """Return the penalised log-likelihoods if the effect of one setting is random, so that it differs by seed.

        The noise then has two variances: along this setting within each seed, and in all other directions.
        """
        level = self.levels[..., setting]
        size = np.sqrt(level**2 @ self.member)
        along = level / np.maximum(size @ self.member.T, 1e-9)
        draws = (size > 1e-6).sum(axis=-1)
        everything = _Sums.of(self.terms, self.values)
        own = _Sums.of(self.member.T @ (along[..., None] * self.terms), (along * self.values) @ self.member)
        weighted = everything.minus(own, 0.99)
        coefficients = weighted.coefficients(explanations)
        total, draws = everything.total[:, None], draws[..., None]
        inside = np.maximum(own.residual(coefficients), 1e-12 * total)
        beside = np.maximum(everything.residual(coefficients) - inside, 0) / np.maximum(self.freedom - draws, 1)
        inside = inside / np.maximum(draws, 1)
        floored = np.maximum(beside, _MIN_NOISE * total / self.freedom)
        score = -draws / 2 * np.log(inside)
        score -= (self.freedom - draws) / 2 * (np.log(floored) + beside / floored - 1)
        return np.where((inside > beside) & (draws > 1), score, -np.inf) - explanations.penalty


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of squares and products of terms and outcomes."""

    terms: Array
    cross: Array
    total: Array

    @classmethod
    def of(cls, terms: Array, values: Array) -> _Sums:
        squares = np.swapaxes(terms, -1, -2) @ terms
        total = (values**2).sum(axis=-1) + 1e-200  # equal results have a finite likelihood
        return cls(squares, (values[..., None, :] @ terms)[..., 0, :], total)

    def minus(self, part: _Sums, share: float) -> _Sums:
        return _Sums(self.terms - share * part.terms, self.cross - share * part.cross, self.total - share * part.total)

    def inverse(self, maps: Array) -> Array:
        """Return the covariance of the coefficients of one or several maps, for unit noise."""
        terms = self.terms if maps.ndim == 2 else self.terms[..., None, :, :]  # of all maps
        squares = np.swapaxes(maps, -1, -2) @ terms @ maps
        return np.asarray(np.linalg.inv(squares + 1e-9 * np.eye(maps.shape[-1])))

    def coefficients(self, explanations: Explanations) -> Array:
        """Return the least-squares coefficients of all terms under each explanation: (outcomes, explanations, terms)."""
        found = np.empty((len(self.cross), len(explanations.maps), self.cross.shape[-1]))
        for numbers, maps in explanations.groups:
            solution, _ = self._solve(maps)
            found[:, numbers] = (maps @ solution[..., None])[..., 0]
        return found

    def _solve(self, maps: Array) -> tuple[Array, Array]:
        """Return the coefficients of each map, and the sums of products with what they multiply."""
        cross = np.tensordot(self.cross, maps, axes=(-1, 1))
        return (cross[..., None, :] @ self.inverse(maps))[..., 0, :], cross

    def residual(self, coefficients: Array) -> Any:
        """Return the residual sums of squares of coefficients of all terms: (outcomes, explanations)."""
        fitted = ((coefficients @ self.terms) * coefficients).sum(axis=-1)
        total = self.total[:, None]
        explained = 2 * (coefficients @ self.cross[..., None])[..., 0]
        return np.maximum(total - explained + fitted, 1e-12 * total)

    def residuals(self, explanations: Explanations) -> Array:
        """Return the residual sums of squares of all explanations: (outcomes, explanations)."""
        explained = np.empty((len(self.cross), len(explanations.maps)))
        for numbers, maps in explanations.groups:
            solution, cross = self._solve(maps)
            explained[:, numbers] = (solution * cross).sum(axis=-1)
        total = self.total[:, None]
        return np.asarray(np.maximum(total - explained, 1e-12 * total))
