"""Likelihoods of short explanations of the results of two-level runs.

An explanation names settings and the form of their effect. Either each setting adds its own effect, or two settings
have one effect: only if both are on, or if at least one of them is on. Seeds are blocks. A setting can also change the
random numbers of a run, as the batch size does: its effect then differs between seeds. All functions take many
simulated outcomes at once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from math import comb, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tune_dml.stats.intervals import Array, Mask

_PER_TERM = 2.5  # penalty of each coefficient of an explanation, in log-likelihood
_RANDOM_EFFECT = 4.5
"""Penalty of a setting's random effect, in log-likelihood; twice as large if the explanation names the setting."""
_MIN_NOISE = 0.02  # minimum noise beside a setting's random effect, as a share of the variance within seeds


@dataclass(frozen=True, eq=False)
class Explanations:
    """Short explanations of results by settings."""

    members: Mask  # (explanations, settings): whether an explanation names a setting
    maps: tuple[Array, ...]
    """For each explanation, a matrix (terms, coefficients) from its coefficients to those of all terms."""
    penalty: Array
    """(explanations,): penalty in log-likelihood; it grows with the number of explanations of the same kind."""
    pair_effect: NDArray[np.int64]
    """(explanations,): 1 if two settings act only together, -1 if each of them suffices, else 0."""


@lru_cache
def list_explanations(settings: int, factors: int, max_added: int) -> Explanations:
    """Return all explanations: no setting, up to `max_added` settings with added effects, and pairs with one effect.

    `settings` is the number of settings that an explanation can name; they were chosen from `factors` ones.
    """
    pairs = list(itertools.combinations(range(settings), 2))
    terms = np.eye(settings + len(pairs))
    rows: list[tuple[tuple[int, ...], Array, int]] = [
        (named, terms[:, list(named)], 0)
        for size in range(max_added + 1)
        for named in itertools.combinations(range(settings), size)
    ]
    for number, pair in enumerate(pairs):
        both, product = terms[:, list(pair)].sum(axis=1), terms[:, settings + number]
        rows += [(pair, (both + sign * product)[:, None], sign) for sign in (1, -1)]
    members = np.array([[setting in named for setting in range(settings)] for named, _, _ in rows])
    penalty = np.array([_PER_TERM * matrix.shape[1] + log(comb(factors, len(named))) for named, matrix, _ in rows])
    return Explanations(members, tuple(matrix for _, matrix, _ in rows), penalty, np.array([row[2] for row in rows]))


def log_likelihoods(levels: Array, blocks: NDArray[np.int64], outcomes: Array, explanations: Explanations) -> Array:
    """Return the penalised log-likelihood of each explanation: (outcomes, explanations).

    Args:
        levels: (runs, settings), or (outcomes, runs, settings) if the outcomes have different levels; each is 1 or -1.
        blocks: (runs,): block of each run; the runs of a block share a seed.
        outcomes: (outcomes, runs).
        explanations: The explanations.
    """
    return _Runs.of(levels, blocks, outcomes).with_equal_noise(explanations)


def evidence(
    levels: Array, blocks: NDArray[np.int64], outcomes: Array, explanations: Explanations
) -> tuple[Array, Array]:
    """Return the evidence for each setting (outcomes, settings), and for each pair of settings (outcomes, pairs).

    The evidence for a setting is the log-likelihood of the best explanation that names it, minus that of the best
    explanation that does not. For a pair, the first explanation names at least one of the two. In each explanation, the
    effect of one setting may also differ from seed to seed. For the arguments see `log_likelihoods`.
    """
    runs = _Runs.of(levels, blocks, outcomes)
    members = explanations.members
    settings = range(members.shape[1])
    scores = [runs.with_equal_noise(explanations)]
    for setting in settings:
        penalty = _RANDOM_EFFECT * (1 + members[:, setting])
        scores.append(runs.with_random_effect(explanations, setting) - penalty)
    best = np.max(scores, axis=0)
    groups = [(setting,) for setting in settings] + list(itertools.combinations(settings, 2))
    naming = [members[:, list(group)].any(axis=1) for group in groups]
    gains = np.stack([best[:, names].max(axis=1) - best[:, ~names].max(axis=1) for names in naming], axis=1)
    return gains[:, : len(settings)], gains[:, len(settings) :]


@dataclass(frozen=True, eq=False)
class _Runs:
    """Runs of many simulated audits; the mean of each seed is subtracted."""

    terms: Array  # levels of the settings, and the products of two of them
    values: Array
    member: Array  # (runs, blocks): 1 where a run is in a block
    freedom: int

    @classmethod
    def of(cls, levels: Array, blocks: NDArray[np.int64], outcomes: Array) -> _Runs:
        pairs = list(itertools.combinations(range(levels.shape[-1]), 2))
        products = [levels[..., [first]] * levels[..., [second]] for first, second in pairs]
        terms = np.concatenate([levels, *products], axis=-1)
        member = np.asarray(blocks[:, None] == np.unique(blocks), dtype=float)
        mean = (member / member.sum(axis=0)) @ member.T
        return cls(terms - mean @ terms, outcomes - outcomes @ mean, member, len(blocks) - member.shape[1])

    def with_equal_noise(self, explanations: Explanations) -> Array:
        """Return the penalised log-likelihoods if all runs have the same noise."""
        residuals = _Sums.of(self.terms, self.values).residuals(explanations)
        return np.asarray(-self.freedom / 2 * np.log(residuals / self.freedom) - explanations.penalty)

    def with_random_effect(self, explanations: Explanations, setting: int) -> Array:
        """Return the penalised log-likelihoods if the effect of one setting is random, so that it differs by seed.

        The noise then has two variances: along this setting within each seed, and in all other directions.
        """
        level = self.terms[..., setting]
        size = np.sqrt(level**2 @ self.member)
        along = level / np.maximum(size @ self.member.T, 1e-9)
        draws = (size > 1e-6).sum(axis=-1)
        everything = _Sums.of(self.terms, self.values)
        own = _Sums.of(self.member.T @ (along[..., None] * self.terms), (along * self.values) @ self.member)
        weighted = everything.minus(own, 0.99)
        scores = []
        for matrix in explanations.maps:
            coefficients = weighted.coefficients(matrix)
            inside = np.maximum(own.residual(coefficients), 1e-12 * everything.total)
            beside = np.maximum(everything.residual(coefficients) - inside, 0) / np.maximum(self.freedom - draws, 1)
            inside = inside / np.maximum(draws, 1)
            floored = np.maximum(beside, _MIN_NOISE * everything.total / self.freedom)
            score = -draws / 2 * np.log(inside)
            score -= (self.freedom - draws) / 2 * (np.log(floored) + beside / floored - 1)
            scores.append(np.where((inside > beside) & (draws > 1), score, -np.inf))
        return np.stack(scores, axis=1) - explanations.penalty


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

    def coefficients(self, matrix: Array) -> Array:
        """Return the least-squares coefficients of all terms, (outcomes, terms), under the explanation of a matrix."""
        squares = matrix.T @ self.terms @ matrix + 1e-9 * np.eye(matrix.shape[1])
        solution = (self.cross @ matrix)[..., None, :] @ np.linalg.inv(squares)
        return np.asarray(solution[..., 0, :] @ matrix.T)

    def residual(self, coefficients: Array) -> Any:
        """Return the residual sum of squares."""
        fitted = ((coefficients[..., None, :] @ self.terms)[..., 0, :] * coefficients).sum(axis=-1)
        return np.maximum(self.total - 2 * (coefficients * self.cross).sum(axis=-1) + fitted, 1e-12 * self.total)

    def residuals(self, explanations: Explanations) -> Array:
        """Return the residual sums of squares of all explanations: (outcomes, explanations)."""
        columns = []
        for matrix in explanations.maps:
            used = matrix.any(axis=1)  # an explanation uses few of the terms
            sums = _Sums(self.terms[..., used, :][..., used], self.cross[..., used], self.total)
            coefficients = sums.coefficients(matrix[used])
            columns.append(self.total - (coefficients * sums.cross).sum(axis=-1))
        return np.asarray(np.maximum(np.stack(columns, axis=1), 1e-12 * self.total[:, None]))
