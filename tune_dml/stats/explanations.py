"""Which settings explain the results of two-level runs: a likelihood for each short explanation.

An explanation says which settings matter and how: each adds its own effect, two have an effect only together, or two have
one effect in common, whichever of them is on. Seeds are blocks. A setting can also change the random numbers of a run, as
the batch size does: its effect then differs between seeds. All functions take many simulated outcomes at once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from math import comb, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

_PER_TERM = 2.5
"""Log-likelihood that each coefficient of an explanation has to add."""
_OWN_DRAWS = 4.5
"""Log-likelihood that a random effect of a setting has to add; twice that in an explanation that names the setting."""
_SMALL = 0.02  # least noise beside a setting's random effect, as a share of all variance within seeds


@dataclass(frozen=True, eq=False)
class Explanations:
    """Short explanations over some settings."""

    members: NDArray[np.bool_]
    """(explanations, settings): the settings that each one names."""
    maps: tuple[Matrix, ...]
    """Of each: (terms, coefficients), from its coefficients to those of all terms."""
    price: Matrix
    """(explanations,): log-likelihood that each has to add, more if there are many of its kind."""
    either: NDArray[np.int64]
    """(explanations,): 1 if two settings act only together, -1 if either does it alone, else 0."""


@lru_cache
def explanations(settings: int, factors: int, most: int) -> Explanations:
    """Return the explanations over some settings: none, up to `most` that add, and pairs with one effect.

    Args:
        settings: Number of settings that an explanation can name.
        factors: Number of settings from which these were chosen.
        most: Most settings that add their effects.
    """
    pairs = list(itertools.combinations(range(settings), 2))
    terms = np.eye(settings + len(pairs))
    found: list[tuple[tuple[int, ...], Matrix, int]] = [
        (some, terms[:, list(some)], 0)
        for size in range(most + 1)
        for some in itertools.combinations(range(settings), size)
    ]
    for number, pair in enumerate(pairs):
        both, product = terms[:, list(pair)].sum(axis=1), terms[:, settings + number]
        found += [(pair, (both + sign * product)[:, None], sign) for sign in (1, -1)]
    members = np.array([[setting in some for setting in range(settings)] for some, _, _ in found])
    price = np.array([_PER_TERM * one.shape[1] + log(comb(factors, len(some))) for some, one, _ in found])
    return Explanations(members, tuple(one for _, one, _ in found), price, np.array([sign for *_, sign in found]))


def log_likelihoods(levels: Matrix, blocks: NDArray[np.int64], outcomes: Matrix, known: Explanations) -> Matrix:
    """Return the penalised log-likelihood of each explanation: (outcomes, explanations).

    Args:
        levels: (runs, settings), or (outcomes, runs, settings) if they differ; 1 and -1.
        blocks: (runs,): runs of one block share a seed.
        outcomes: (outcomes, runs).
        known: The explanations.
    """
    return _Runs.of(levels, blocks, outcomes).alike(known)


def evidence(levels: Matrix, blocks: NDArray[np.int64], outcomes: Matrix, known: Explanations) -> tuple[Matrix, Matrix]:
    """Return by how much explanations with a setting are better than those without: (outcomes, settings).

    The second array compares, for each pair of settings, with the explanations that name neither. In each explanation the
    effect of one setting may also differ from seed to seed.
    """
    runs = _Runs.of(levels, blocks, outcomes)
    settings = known.members.shape[1]
    scores = [runs.alike(known)]
    scores += [runs.with_own_draws(known, one) - _OWN_DRAWS * (1 + known.members[:, one]) for one in range(settings)]
    best = np.max(scores, axis=0)
    groups = [(one,) for one in range(settings)] + list(itertools.combinations(range(settings), 2))
    named = [known.members[:, list(group)].any(axis=1) for group in groups]
    gains = np.stack([best[:, some].max(axis=1) - best[:, ~some].max(axis=1) for some in named], axis=1)
    return gains[:, :settings], gains[:, settings:]


@dataclass(frozen=True, eq=False)
class _Runs:
    """Runs of many simulated audits, less the means of their seeds."""

    terms: Matrix
    """Settings and products of two."""
    values: Matrix
    member: Matrix
    """(runs, blocks): 1 where a run is in a block."""
    freedom: int

    @classmethod
    def of(cls, levels: Matrix, blocks: NDArray[np.int64], outcomes: Matrix) -> _Runs:
        pairs = list(itertools.combinations(range(levels.shape[-1]), 2))
        products = [levels[..., [one]] * levels[..., [other]] for one, other in pairs]
        terms = np.concatenate([levels, *products], axis=-1)
        member = np.asarray(blocks[:, None] == np.unique(blocks), dtype=float)
        mean = (member / member.sum(axis=0)) @ member.T
        return cls(terms - mean @ terms, outcomes - outcomes @ mean, member, len(blocks) - member.shape[1])

    def alike(self, known: Explanations) -> Matrix:
        """Return the penalised log-likelihoods if all runs have the same noise."""
        rest = _Sums.of(self.terms, self.values).rest(known)
        return np.asarray(-self.freedom / 2 * np.log(rest / self.freedom) - known.price)

    def with_own_draws(self, known: Explanations, setting: int) -> Matrix:
        """Return the penalised log-likelihoods if the effect of one setting is random: another one under each seed.

        Noise then has two variances: along this setting under each seed, and beside it.
        """
        level = self.terms[..., setting]
        size = np.sqrt(level**2 @ self.member)
        along = level / np.maximum(size @ self.member.T, 1e-9)
        draws = (size > 1e-6).sum(axis=-1)
        everything = _Sums.of(self.terms, self.values)
        own = _Sums.of(self.member.T @ (along[..., None] * self.terms), (along * self.values) @ self.member)
        weighted = everything.less(own, 0.99)
        scores = []
        for one in known.maps:
            coefficients = weighted.coefficients(one)
            inside = np.maximum(own.rest_of(coefficients), 1e-12 * everything.total)
            beside = np.maximum(everything.rest_of(coefficients) - inside, 0) / np.maximum(self.freedom - draws, 1)
            inside = inside / np.maximum(draws, 1)
            least = np.maximum(beside, _SMALL * everything.total / self.freedom)
            score = -draws / 2 * np.log(inside) - (self.freedom - draws) / 2 * (np.log(least) + beside / least - 1)
            scores.append(np.where((inside > beside) & (draws > 1), score, -np.inf))
        return np.stack(scores, axis=1) - known.price


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of squares and products of terms and outcomes."""

    terms: Matrix
    cross: Matrix
    total: Matrix

    @classmethod
    def of(cls, terms: Matrix, values: Matrix) -> _Sums:
        squares = np.swapaxes(terms, -1, -2) @ terms
        return cls(squares, (values[..., None, :] @ terms)[..., 0, :], (values**2).sum(axis=-1))

    def less(self, other: _Sums, share: float) -> _Sums:
        return _Sums(
            self.terms - share * other.terms, self.cross - share * other.cross, self.total - share * other.total
        )

    def coefficients(self, one: Matrix) -> Matrix:
        """Return the least-squares coefficients of all terms under an explanation: (outcomes, terms)."""
        squares = one.T @ self.terms @ one + 1e-9 * np.eye(one.shape[1])
        found = (self.cross @ one)[..., None, :] @ np.linalg.inv(squares)
        return np.asarray(found[..., 0, :] @ one.T)

    def rest_of(self, coefficients: Matrix) -> Any:
        """Return the residual sum of squares."""
        fitted = ((coefficients[..., None, :] @ self.terms)[..., 0, :] * coefficients).sum(axis=-1)
        return np.maximum(self.total - 2 * (coefficients * self.cross).sum(axis=-1) + fitted, 1e-12 * self.total)

    def rest(self, known: Explanations) -> Matrix:
        """Return the residual sums of squares of all explanations: (outcomes, explanations)."""
        found = []
        for one in known.maps:
            used = one.any(axis=1)  # few of all terms
            few = _Sums(self.terms[..., used, :][..., used], self.cross[..., used], self.total)
            coefficients = few.coefficients(one[used])
            found.append(self.total - (coefficients * few.cross).sum(axis=-1))
        return np.asarray(np.maximum(np.stack(found, axis=1), 1e-12 * self.total[:, None]))
