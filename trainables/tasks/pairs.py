"""Pairs of pictures to verify: a benchmark's own list, or pairs drawn from classes that were held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainables.data.base import Indices, Labels, Pictures
from trainables.errors import ConfigError, DataError, Problem, raise_if_any

_PAIR_STREAM = 0xFA_CE01
_CLASS_STREAM = 0xFA_CE02


@dataclass(frozen=True)
class Pairs:
    """Couples of picture numbers, in the order of the folds, and whether each shows one class."""

    couples: Indices
    """(P, 2)."""
    same: NDArray[np.bool_]
    """(P,)."""


@dataclass(frozen=True)
class Identification:
    """Probes to find again among strangers."""

    probes: Indices
    labels: Labels
    strangers: Indices
    """In the order in which they join the gallery."""


def listed_pairs(pictures: Pictures) -> Pairs:
    """The benchmark's own list (`extras` of lfw, lfw_bin, agedb30 ...). Raises DataError where a data set has none."""
    try:
        return Pairs(np.asarray(pictures.extras["pairs"]), np.asarray(pictures.extras["same"], dtype=bool))
    except KeyError:
        rule = "a verification set must list pairs of pictures"
        remedy = "Use lfw, lfw_bin, agedb30, cfp_fp, cfp_ff, calfw or cplfw."
        raise DataError(Problem("task", rule, pictures.name, remedy)) from None


def drawn_pairs(labels: Labels, pictures: Indices, count: int, *, seed: int) -> Pairs:
    """`count` (even) different pairs of `pictures`, alternately of one class and of two, each kind uniform among all such.

    `labels` (N,) are those of the whole data set. Raises ConfigError when there are not that many pairs of both kinds.
    """
    pictures = pictures[np.argsort(labels[pictures], kind="stable")]
    sizes = np.unique(labels[pictures], return_counts=True)[1]
    n, wanted = len(pictures), count // 2
    within = sizes * (sizes - 1) // 2
    raise_if_any(
        Problem("task.pairs", f"there are only {available} pairs of {kind}", count, f"Try {2 * available}.")
        for kind, available in (("one class", within.sum()), ("two classes", n * (n - 1) // 2 - within.sum()))
        if available < wanted
    )
    generator = np.random.default_rng((_PAIR_STREAM, seed))
    couples = np.empty((wanted, 2, 2), dtype=np.int64)
    couples[:, 0] = _of_one_class(generator, sizes, within, wanted)
    couples[:, 1] = _of_two_classes(generator, np.repeat(np.arange(len(sizes)), sizes), wanted)
    return Pairs(pictures[couples.reshape(-1, 2)], np.tile([True, False], wanted))


def _of_one_class(generator: np.random.Generator, sizes: Indices, within: Indices, wanted: int) -> Indices:
    """Places (wanted, 2) of pictures sorted by class: pair numbers drawn without replacement, then decoded."""
    number = generator.choice(int(within.sum()), wanted, replace=False)
    ends = within.cumsum()
    owner = np.searchsorted(ends, number, side="right")
    first: Indices = sizes.cumsum()[owner] - sizes[owner]
    local: Indices = np.asarray(number - (ends[owner] - within[owner]), dtype=np.int64)
    return _couple(local) + first[:, None]


def _of_two_classes(generator: np.random.Generator, owner: Indices, wanted: int) -> Indices:
    """Places (wanted, 2): pairs of any two pictures in random order, those of one class passed over."""
    total = len(owner) * (len(owner) - 1) // 2
    size = 2 * wanted
    while True:
        couples = _couple(generator.choice(total, min(size, total), replace=False))
        different = couples[owner[couples[:, 0]] != owner[couples[:, 1]]]
        if len(different) >= wanted:
            return np.asarray(different[:wanted])
        size *= 2  # few pairs differ; all of them are enough, as the caller has checked


def _couple(number: Indices) -> Indices:
    """The pair (low, high) with high (high - 1) / 2 + low = number, low < high: (..., 2)."""
    high: Indices = ((1 + np.sqrt(1 + 8 * number.astype(np.float64))) / 2).astype(np.int64)
    # The root is rounded: the right pair is at most one step away.
    high -= high * (high - 1) // 2 > number
    high += high * (high + 1) // 2 <= number
    return np.stack([number - high * (high - 1) // 2, high], axis=-1)


def divided_classes(labels: Labels, pictures: Indices, *, seed: int) -> Identification:
    """Half of the classes are probes, the pictures of the others are strangers in random order.

    Raises ConfigError where no probe class has two pictures, or where there is no stranger.
    """
    generator = np.random.default_rng((_CLASS_STREAM, seed))
    classes = generator.permutation(np.unique(labels[pictures]))
    strange = np.isin(labels[pictures], classes[: len(classes) // 2])
    strangers, probes = generator.permutation(pictures[strange]), pictures[~strange]
    if not len(strangers) or np.bincount(labels[probes]).max(initial=0) < 2:
        rule = "rank-1 needs a class of two pictures and another class of strangers"
        raise ConfigError(Problem("task.distractors", rule, f"{len(classes)} classes", "Leave it empty."))
    return Identification(probes, labels[probes], strangers)
