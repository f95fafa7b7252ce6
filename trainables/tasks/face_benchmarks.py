"""Make benchmarks of face recognition: a data set's listed pairs, or pairs drawn from held-out training classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainables.data import DATASETS, build_dataset
from trainables.data.base import DataSet, Indices, Labels, Pictures
from trainables.data.distractors import Distractors
from trainables.errors import ConfigError, DataError, Problem, raise_if_any
from trainables.methods import knob_names

NO_PICTURES: Indices = np.zeros(0, dtype=np.int64)
DISTRACTORS = Distractors.name  # the data set whose pictures show none of the probed persons

Flags = NDArray[np.bool_]
_PAIR_STREAM = 0xFA_CE01
_CLASS_STREAM = 0xFA_CE02
_ORDER_STREAM = 0xFA_CE03  # shuffles the distractors, which folders list person by person


@dataclass(frozen=True)
class FaceBenchmark:
    """Pairs to verify, and probes to identify among distractors."""

    name: str  # name of the data set; empty for pairs drawn from held-out classes
    pictures: Pictures
    pairs: Indices  # (P, 2): indices of the two pictures of each pair, in the order of the folds
    same: Flags  # (P,): whether both pictures of a pair show one class
    probes: Indices
    probe_labels: Labels


@dataclass(frozen=True)
class BenchmarkHalf:
    """The benchmarks of validation, or of test, with their common gallery of distractors."""

    benchmarks: tuple[FaceBenchmark, ...]
    gallery: Pictures
    distractors: Indices
    """Indices of gallery pictures in the order in which they enter it; empty if rank-1 is not measured."""


def held_out_half(pictures: Pictures, part: Indices, *, pairs: int, sizes: Sequence[int], seed: int) -> BenchmarkHalf:
    """Return pairs drawn from the classes of `part`; for rank-1, half of these classes are distractors.

    Raises ConfigError for too few pairs, classes or distractors.
    """
    drawn = _draw_pairs(pictures.labels, part, pairs, seed=seed)
    if not sizes:
        return BenchmarkHalf((FaceBenchmark("", pictures, *drawn, NO_PICTURES, NO_PICTURES),), pictures, NO_PICTURES)
    probes, distractors = _divide_classes(pictures.labels, part, seed=seed)
    require_distractors(len(distractors), sizes)
    held_out = FaceBenchmark("", pictures, *drawn, probes, pictures.labels[probes])
    return BenchmarkHalf((held_out,), pictures, distractors[: max(sizes)])


def benchmark_half(sets: Sequence[Pictures], gallery: Pictures | None, sizes: Sequence[int]) -> BenchmarkHalf:
    """Return the pairs that the benchmarks list; the two pictures of one person are probes of each other.

    Raises ConfigError for too few distractors, DataError for a data set that lists no pairs.
    """
    benchmarks = []
    for pictures in sets:
        pairs, same = _read_pairs(pictures)
        couples = pairs[same] if sizes else pairs[:0]
        persons = np.repeat(np.arange(len(couples)), 2)
        benchmarks.append(FaceBenchmark(pictures.name, pictures, pairs, same, couples.reshape(-1), persons))
    if gallery is None or not sizes:
        return BenchmarkHalf(tuple(benchmarks), sets[0], NO_PICTURES)
    require_distractors(len(gallery), sizes)
    order = np.random.default_rng(_ORDER_STREAM).permutation(len(gallery))
    return BenchmarkHalf(tuple(benchmarks), gallery, order[: max(sizes)])


def benchmark_dataset(name: str, root: Path, cache_dir: Path | None, *, strict: bool) -> DataSet:
    """Open the data set called `name` in the folder of its name below `root`, or in `root` (except distractors)."""
    folder = root / name if (root / name).exists() or name == DISTRACTORS else root
    knobs = {"strict": strict} if "strict" in knob_names(DATASETS[name]) else {}
    dataset = build_dataset(name, root=folder, cache_dir=cache_dir, **knobs)
    dataset.strict_setting = "task.strict"
    return dataset


def require_distractors(available: int, sizes: Sequence[int]) -> None:
    """Raise ConfigError if a size of the gallery exceeds the number of distractors."""
    if max(sizes) > available:
        rule = f"there are {available} distractors"
        raise ConfigError(Problem("task.distractors", rule, list(sizes), f"Use {available} or fewer."))


def _read_pairs(pictures: Pictures) -> tuple[Indices, Flags]:
    """Return the pairs (P, 2) that a data set lists and whether each shows one class. Raises DataError without any."""
    try:
        return np.asarray(pictures.extras["pairs"]), np.asarray(pictures.extras["same"], dtype=bool)
    except KeyError:
        raise no_pairs_error(pictures.name) from None


def no_pairs_error(name: str) -> DataError:
    """Return the error of a verification set without pairs."""
    rule = "a verification set must list pairs of pictures"
    return DataError(Problem("task", rule, name, "Use lfw, lfw_bin, agedb30, cfp_fp, cfp_ff, calfw or cplfw."))


def _draw_pairs(labels: Labels, pictures: Indices, count: int, *, seed: int) -> tuple[Indices, Flags]:
    """Draw `count` (even) different pairs of `pictures`, alternately of one class and of two, each kind uniformly.

    `labels` (N,) are those of the whole data set. Raises ConfigError for fewer pairs of either kind.
    """
    pictures = pictures[np.argsort(labels[pictures], kind="stable")]
    sizes = np.unique(labels[pictures], return_counts=True)[1]
    n, per_kind = len(pictures), count // 2
    within = sizes * (sizes - 1) // 2
    raise_if_any(
        Problem("task.pairs", f"there are only {available} pairs of {kind}", count, f"Try {2 * available}.")
        for kind, available in (("one class", within.sum()), ("two classes", n * (n - 1) // 2 - within.sum()))
        if available < per_kind
    )
    generator = np.random.default_rng((_PAIR_STREAM, seed))
    couples = np.empty((per_kind, 2, 2), dtype=np.int64)
    couples[:, 0] = _draw_positives(generator, sizes, within, per_kind)
    couples[:, 1] = _draw_negatives(generator, np.repeat(np.arange(len(sizes)), sizes), per_kind)
    return pictures[couples.reshape(-1, 2)], np.tile([True, False], per_kind)


def _draw_positives(generator: np.random.Generator, sizes: Indices, within: Indices, per_kind: int) -> Indices:
    """Return positions (wanted, 2) among pictures sorted by class, from pair numbers drawn without replacement."""
    number = generator.choice(int(within.sum()), per_kind, replace=False)
    ends = within.cumsum()
    owner = np.searchsorted(ends, number, side="right")
    first: Indices = sizes.cumsum()[owner] - sizes[owner]
    local: Indices = np.asarray(number - (ends[owner] - within[owner]), dtype=np.int64)
    return _decode_pair(local) + first[:, None]


def _draw_negatives(generator: np.random.Generator, owner: Indices, per_kind: int) -> Indices:
    """Return positions (wanted, 2): pairs of any two pictures in random order, without those of one class."""
    total = len(owner) * (len(owner) - 1) // 2
    size = 2 * per_kind
    while True:
        couples = _decode_pair(generator.choice(total, min(size, total), replace=False))
        different = couples[owner[couples[:, 0]] != owner[couples[:, 1]]]
        if len(different) >= per_kind:
            return np.asarray(different[:per_kind])
        size *= 2  # few pairs differ; the caller has checked that all of them suffice


def _decode_pair(number: Indices) -> Indices:
    """Return the pair (low, high) with high (high - 1) / 2 + low = number, low < high: (..., 2)."""
    high: Indices = ((1 + np.sqrt(1 + 8 * number.astype(np.float64))) / 2).astype(np.int64)
    # Rounding of the root: the right pair is at most one step away.
    high -= high * (high - 1) // 2 > number
    high += high * (high + 1) // 2 <= number
    return np.stack([number - high * (high - 1) // 2, high], axis=-1)


def _divide_classes(labels: Labels, pictures: Indices, *, seed: int) -> tuple[Indices, Indices]:
    """Return probes and distractors: the pictures of a random half of the classes, and the others in random order.

    Raises ConfigError if no probe class has two pictures, or if there is no distractor.
    """
    generator = np.random.default_rng((_CLASS_STREAM, seed))
    classes = generator.permutation(np.unique(labels[pictures]))
    is_distractor = np.isin(labels[pictures], classes[: len(classes) // 2])
    distractors, probes = generator.permutation(pictures[is_distractor]), pictures[~is_distractor]
    if not len(distractors) or np.bincount(labels[probes]).max(initial=0) < 2:
        rule = "rank-1 needs a class of two pictures and another class of distractors"
        raise ConfigError(Problem("task.distractors", rule, f"{len(classes)} classes", "Leave it empty."))
    return probes, distractors
