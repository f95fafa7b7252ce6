"""What face recognition is examined on: benchmarks with lists of pairs, or held-out classes of the training set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainables.data import DATASETS, build_dataset
from trainables.data.base import DataSet, Indices, Labels, Pictures
from trainables.data.distractors import Distractors
from trainables.errors import ConfigError, Problem
from trainables.methods import knob_names
from trainables.tasks.pairs import Pairs, divided_classes, drawn_pairs, listed_pairs

NOBODY: Indices = np.zeros(0, dtype=np.int64)

STRANGERS = Distractors.name  # the data set whose pictures show nobody that is probed
_ORDER_STREAM = 0xFA_CE03  # of the strangers of benchmarks: folders would come person by person


@dataclass(frozen=True)
class Exam:
    """Pairs to verify, and probes to find again among strangers."""

    name: str
    """Of the benchmark; empty for pairs drawn from held-out classes."""
    pictures: Pictures
    pairs: Pairs
    probes: Indices
    probe_labels: Labels


@dataclass(frozen=True)
class ExamHalf:
    """The exams of validation, or of test, with the gallery of strangers they share."""

    exams: tuple[Exam, ...]
    gallery: Pictures
    strangers: Indices
    """Numbers of gallery pictures in the order in which they join; empty where rank-1 is not measured."""


def held_out_half(pictures: Pictures, part: Indices, *, pairs: int, sizes: Sequence[int], seed: int) -> ExamHalf:
    """Pairs from the classes of `part`; for rank-1 half of these classes are strangers.

    Raises ConfigError when there are too few pairs or strangers.
    """
    drawn = drawn_pairs(pictures.labels, part, pairs, seed=seed)
    if not sizes:
        return ExamHalf((Exam("", pictures, drawn, NOBODY, NOBODY),), pictures, NOBODY)
    divided = divided_classes(pictures.labels, part, seed=seed)
    _require(len(divided.strangers), sizes)
    exam = Exam("", pictures, drawn, divided.probes, divided.labels)
    return ExamHalf((exam,), pictures, divided.strangers[: max(sizes)])


def benchmark_half(sets: Sequence[Pictures], gallery: Pictures | None, sizes: Sequence[int]) -> ExamHalf:
    """Pairs as the benchmarks list them; the pictures of a pair of one person are probes of each other.

    Raises ConfigError when there are too few strangers, DataError where a data set lists no pairs.
    """
    exams = []
    for pictures in sets:
        pairs = listed_pairs(pictures)
        couples = pairs.couples[pairs.same] if sizes else pairs.couples[:0]
        persons = np.repeat(np.arange(len(couples)), 2)
        exams.append(Exam(pictures.name, pictures, pairs, couples.reshape(-1), persons))
    if gallery is None or not sizes:
        return ExamHalf(tuple(exams), sets[0], NOBODY)
    _require(len(gallery), sizes)
    order = np.random.default_rng(_ORDER_STREAM).permutation(len(gallery))
    return ExamHalf(tuple(exams), gallery, order[: max(sizes)])


def benchmark(name: str, root: Path, cache_dir: Path | None, *, strict: bool) -> DataSet:
    """The data set called `name` in the folder of its name below `root`, or in `root` itself; strangers never there."""
    folder = root / name if (root / name).exists() or name == STRANGERS else root
    knobs = {"strict": strict} if "strict" in knob_names(DATASETS[name]) else {}
    dataset = build_dataset(name, root=folder, cache_dir=cache_dir, **knobs)
    dataset.strict_setting = "task.strict"
    return dataset


def _require(available: int, sizes: Sequence[int]) -> None:
    if max(sizes) > available:
        rule = f"there are {available} strangers"
        raise ConfigError(Problem("task.distractors", rule, list(sizes), f"Use {available} or fewer."))
