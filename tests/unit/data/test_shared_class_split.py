"""Picture-level splits: classes are shared, pictures are not, the test half does not depend on the seed."""

import numpy as np
import pytest

from trainables.errors import ConfigError
from trainables.tasks.splits import shared_class_split

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(7), [4, 9, 20, 40, 3, 8, 100]))


def parts(**arguments):
    split = shared_class_split(LABELS, **{"seed": 0, **arguments})
    return split.train, split.validation, split.test


def test_the_parts_are_a_partition_and_every_class_is_in_each():
    split = parts()
    assert np.array_equal(np.sort(np.concatenate(split)), np.arange(len(LABELS)))
    for part in split:
        assert np.array_equal(np.unique(LABELS[part]), np.arange(7))
        assert np.array_equal(part, np.sort(part))


def test_each_class_gives_its_share():
    train, validation, test = parts(validation_fraction=0.2, test_fraction=0.3)
    for c, n in zip(*np.unique(LABELS, return_counts=True), strict=True):
        wanted = min(max(np.rint(0.3 * n), 1), n - 1)
        assert (LABELS[test] == c).sum() == wanted
        rest = n - wanted
        assert (LABELS[validation] == c).sum() == min(max(np.rint(0.2 * rest), 1), rest - 1)
        assert (LABELS[train] == c).sum() >= 1


def test_the_seed_moves_validation_but_never_test():
    one, other, again = parts(), parts(seed=1), parts()
    assert np.array_equal(one[2], other[2])
    assert not np.array_equal(one[1], other[1])
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))


def test_the_official_test_pictures_are_kept_whole():
    official = np.arange(150, len(LABELS))
    train, validation, test = parts(official_test=official)
    assert np.array_equal(test, official)
    assert not set(official) & (set(train) | set(validation))


def test_paper_test_selection_validates_on_test_and_trains_on_the_rest():
    train, validation, test = parts(protocol="paper_test_selection")
    assert np.array_equal(validation, test)
    assert len(train) + len(test) == len(LABELS)


def test_a_class_of_one_picture_trains():
    split = shared_class_split(np.array([0, 0, 0, 0, 1, 1, 1, 1, 2]), seed=0)
    assert 8 in split.train


def test_too_few_pictures_and_a_fraction_outside_its_domain_are_refused():
    with pytest.raises(ConfigError, match="common classes"):
        shared_class_split(np.arange(10), seed=0)
    with pytest.raises(ConfigError, match="strictly between 0 and 1"):
        shared_class_split(LABELS, seed=0, validation_fraction=1.0)
