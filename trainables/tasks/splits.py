"""Split data: search and early stopping see only validation classes (or pictures), never the test half."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from trainables.config import TrialConfig
from trainables.data.alterations import thin_out
from trainables.data.base import Indices, Labels
from trainables.errors import ConfigError, Problem, raise_if_any

Protocol = Literal["class_disjoint", "shared_classes", "paper_test_selection"]

_STREAM = 0x5EED_5917  # separates this generator from the samplers' for equal seeds
_MATCH_STREAM = 0x5EED_3A7C
_TEST_STREAM = 0x5EED_7E57  # draws the test pictures, the same for every seed, if a data set names none


@dataclass(frozen=True)
class Split:
    """Indices of the pictures of each part, ascending."""

    train: Indices
    validation: Indices
    test: Indices
    protocol: Protocol = "class_disjoint"
    """`paper_test_selection`: validation IS the test half, as in the papers; results must have this label."""


def class_disjoint_split(
    labels: Labels,
    test_classes: Iterable[int],
    *,
    seed: int,
    validation_fraction: float = 0.25,
    folds: int | None = None,
    fold: int = 0,
    protocol: Protocol = "class_disjoint",
) -> Split:
    """Split the non-test classes at random into training and validation classes.

    Args:
        labels: class of every picture, (N,).
        test_classes: classes of the test half for every seed; empty for a set that only trains.
        seed: seed of the split.
        validation_fraction: share of the other classes that validates, at least two classes.
        folds: number of parts to deal the shuffled classes into; replaces `validation_fraction`.
        fold: part that validates, from 0.
        protocol: "paper_test_selection" trains on all non-test classes and validates on test.

    Raises:
        ConfigError: training or validation has fewer than two classes, or validation or test has fewer than two classes
            of two pictures (a query needs another picture of its class).
    """
    labels = np.asarray(labels)
    held_out = np.unique(np.fromiter(test_classes, dtype=np.int64))
    counts = np.bincount(labels) if len(labels) else np.zeros(0, dtype=np.int64)
    present = np.flatnonzero(counts)
    classes = np.setdiff1d(present, held_out)
    raise_if_any(_argument_problems(validation_fraction, folds, fold, protocol))
    if protocol == "paper_test_selection":
        validation_classes, train_classes = held_out, classes
    else:
        order = np.random.default_rng((_STREAM, seed)).permutation(classes)
        validation_classes = _choose_validation(order, counts, validation_fraction, folds, fold)
        train_classes = np.setdiff1d(classes, validation_classes)
    _require_classes(train_classes, validation_classes, held_out, counts)
    train, validation, test = (
        np.flatnonzero(np.isin(labels, part)) for part in (train_classes, validation_classes, held_out)
    )
    return Split(train, validation, test, protocol)


def with_fewer_pictures(split: Split, labels: Labels, config: TrialConfig) -> Split:
    """Thin the training pictures by `data.pictures_per_class` and `data.long_tail`. `labels` (N,) are all labels."""
    data = config.data
    train = thin_out(
        labels,
        split.train,
        pictures_per_class=data.pictures_per_class,
        long_tail=data.long_tail,
        seed=config.seed_of("split"),
    )
    return replace(split, train=train)


def match_classes(labels: Labels, part: Indices, like: Indices, *, seed: int) -> Indices:
    """Return the pictures of `part` (ascending) in as many random classes as `like` has, at most all of `part`.

    A search among fewer classes is easier, so halves compare only at equal numbers of classes. Classes of one picture
    are matched with classes of one, because their query finds nothing. `labels` (N,) are all labels.
    """
    order = np.random.default_rng((_MATCH_STREAM, seed)).permutation(np.unique(labels[part]))
    kinds = zip(_classes_by_size(labels[part]), _classes_by_size(labels[like]), strict=True)
    chosen = [order[np.isin(order, classes)][: len(matched)] for classes, matched in kinds]
    return part[np.isin(labels[part], np.concatenate(chosen))]


def _classes_by_size(labels: Labels) -> tuple[Labels, Labels]:
    """Return the classes of two or more pictures, and those of one."""
    classes, counts = np.unique(labels, return_counts=True)
    return classes[counts > 1], classes[counts == 1]


def shared_class_split(
    labels: Labels,
    official_test: Iterable[int] | None = None,
    *,
    seed: int,
    validation_fraction: float = 0.25,
    test_fraction: float = 0.25,
    protocol: Protocol = "shared_classes",
) -> Split:
    """Split every class into training, validation and test pictures, for linear evaluation; `labels` are (N,).

    The data set's `official_test` pictures test, or a `test_fraction` of every class, the same for every seed. Of the
    others the seed draws a `validation_fraction` of each class, at least one and never all. `paper_test_selection`
    trains on all non-test pictures and validates on test. Raises ConfigError if fewer than two classes have pictures
    for all parts.
    """
    labels = np.asarray(labels)
    if not 0 < validation_fraction < 1:
        rule = "must lie strictly between 0 and 1"
        raise ConfigError(Problem("data.validation_fraction", rule, validation_fraction, "Try 0.25."))
    everything = np.arange(len(labels))
    if official_test is None:
        test = _share_of_each_class(labels, everything, test_fraction, (_TEST_STREAM,))
    else:
        test = np.unique(np.fromiter(official_test, dtype=np.int64))
    others = np.setdiff1d(everything, test)
    if protocol == "paper_test_selection":
        validation, train = test, others
    else:
        validation = _share_of_each_class(labels, others, validation_fraction, (_STREAM, seed))
        train = np.setdiff1d(others, validation)
    training_classes = np.unique(labels[train])
    for name, part in (("validation", validation), ("test", test)):
        shared = np.intersect1d(training_classes, labels[part])
        if len(shared) < 2:
            rule = f"training and {name} need pictures of at least 2 common classes"
            raise ConfigError(Problem(name, rule, len(shared), "Use a data set with more pictures a class."))
    return Split(train, validation, test, protocol)


def _share_of_each_class(labels: Labels, pictures: Indices, fraction: float, stream: tuple[int, ...]) -> Indices:
    """Draw a share of each class's `pictures`, ascending: at least one and never all of a class of two or more."""
    shuffled = np.random.default_rng(stream).permutation(pictures)
    shuffled = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, start, number, counts = np.unique(labels[shuffled], return_index=True, return_inverse=True, return_counts=True)
    quota = np.minimum(np.maximum(np.rint(fraction * counts), 1), counts - 1)
    return np.sort(shuffled[np.arange(len(shuffled)) - start[number] < quota[number]])


def _argument_problems(fraction: float, folds: int | None, fold: int, protocol: str) -> list[Problem]:
    problems = []
    if protocol not in ("class_disjoint", "paper_test_selection"):  # shared_classes is another function
        rule = "must be 'class_disjoint' or 'paper_test_selection'"
        problems.append(Problem("validation.protocol", rule, protocol))
    if not 0 < fraction < 1:
        problems.append(Problem("validation.fraction", "must lie strictly between 0 and 1", fraction, "Try 0.25."))
    if folds is not None and folds < 2:
        problems.append(Problem("validation.folds", "must be at least 2", folds, "Try 4."))
    elif folds is not None and not 0 <= fold < folds:
        problems.append(Problem("validation.fold", f"must lie in 0 .. {folds - 1}", fold))
    return problems


def _choose_validation(order: Indices, counts: Indices, fraction: float, folds: int | None, fold: int) -> Indices:
    """Return the validation classes. Classes of two or more pictures are dealt first: every part gets its share."""
    usable, single = order[counts[order] >= 2], order[counts[order] == 1]
    if folds is not None:
        # Classes of one picture continue the deal, so that fold sizes differ by at most one.
        return np.sort(np.concatenate([usable, single])[fold::folds])
    count = max(2, round(fraction * len(usable)))
    return np.sort(np.concatenate([usable[:count], single[: round(fraction * len(single))]]))


def _require_classes(train: Indices, validation: Indices, test: Indices, counts: Indices) -> None:
    problems = []
    tested = f", and {len(test)} of the {len(counts.nonzero()[0])} classes are the test half" if len(test) else ""
    remedy = f"Use a data set with four or more training classes: two are held out for validation{tested}."
    if min(len(np.union1d(train, validation)), int((counts[test[test < len(counts)]] >= 2).sum())) >= 2:
        remedy += " Or set data.split=paper_test_selection, which validates on the test half."
    if len(validation) < 2 < len(train):
        remedy = "Deal the training classes into fewer folds."
    if len(validation) > 2:
        remedy = "Use a data set with more classes, or a smaller validation fraction."
    if len(train) < 2:
        problems.append(Problem("validation", "training needs at least 2 classes", len(train), remedy))
    for name, part in (("validation", validation), ("test", test)):
        if name == "test" and not len(part):  # this data set has no test classes; another one tests
            continue
        measurable = int((counts[part[part < len(counts)]] >= 2).sum())
        if measurable < 2:
            rule = f"the {name} half needs at least 2 classes of 2 or more pictures"
            lonely_remedy = "Add pictures: a query needs another picture of its class."
            class_remedy = "Use a data set with two or more test classes." if name == "test" else remedy
            problems.append(
                Problem(name, rule, measurable, lonely_remedy if len(part) > 1 or 1 in counts else class_remedy)
            )
    raise_if_any(problems)
