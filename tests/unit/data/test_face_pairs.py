"""Pairs to verify: counts, kinds, no repeats, uniform, seeded; probes and strangers of different classes."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from trainables.errors import ConfigError, DataError
from trainables.tasks.face_benchmarks import _decode_pair, _divide_classes, _draw_pairs, _read_pairs

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(8), [1, 2, 3, 5, 8, 13, 2, 6]))
HELD_OUT = np.flatnonzero(LABELS >= 3)


def test_pair_numbers_are_decoded_exactly_also_where_the_root_is_rounded():
    every = [(low, high) for high in range(1, 60) for low in range(high)]
    assert _decode_pair(np.arange(len(every))).tolist() == [list(couple) for couple in every]
    for high in (10**5 + 3, 94906267, 2**31 - 1):
        first = high * (high - 1) // 2
        assert _decode_pair(np.array([first - 1, first, first + high - 1])).tolist() == [
            [high - 2, high - 1],
            [0, high],
            [high - 1, high],
        ]


@pytest.mark.parametrize("count", [2, 40, 200])
def test_pairs_alternate_between_the_kinds_and_none_repeats(count):
    pairs = _draw_pairs(LABELS, HELD_OUT, count, seed=0)
    assert pairs.same.tolist() == [True, False] * (count // 2)
    assert np.isin(pairs.indices, HELD_OUT).all()
    left, right = LABELS[pairs.indices].T
    assert ((left == right) == pairs.same).all()
    assert (pairs.indices[:, 0] != pairs.indices[:, 1]).all()
    assert len({frozenset(couple) for couple in pairs.indices.tolist()}) == count


def test_all_pairs_of_a_kind_can_be_drawn_and_not_one_more():
    couples = list(itertools.combinations(HELD_OUT, 2))
    within = sum(LABELS[a] == LABELS[b] for a, b in couples)
    pairs = _draw_pairs(LABELS, HELD_OUT, 2 * within, seed=0)
    assert pairs.same.sum() == within
    with pytest.raises(ConfigError, match="pairs of one class"):
        _draw_pairs(LABELS, HELD_OUT, 2 * within + 2, seed=0)
    mostly_one = np.array([0] * 30 + [1])
    scarce = _draw_pairs(mostly_one, np.arange(31), 60, seed=0)  # all 30 pairs of two classes are needed
    assert (~scarce.same).sum() == 30
    with pytest.raises(ConfigError, match="pairs of two classes"):
        _draw_pairs(mostly_one, np.arange(31), 62, seed=0)


def test_every_pair_of_a_kind_is_equally_likely():
    labels = np.array([0, 0, 0, 1, 1, 2])
    seen = {True: {}, False: {}}
    for seed in range(2000):
        pairs = _draw_pairs(labels, np.arange(6), 2, seed=seed)
        for couple, same in zip(pairs.indices.tolist(), pairs.same.tolist(), strict=True):
            key = frozenset(couple)
            seen[same][key] = seen[same].get(key, 0) + 1
    assert len(seen[True]) == 4
    assert len(seen[False]) == 11
    for kind in seen.values():  # five standard deviations of a binomial count
        p = 1 / len(kind)
        assert max(abs(n - 2000 * p) for n in kind.values()) < 5 * np.sqrt(2000 * p * (1 - p))


def test_the_seed_decides():
    one, again, other = (_draw_pairs(LABELS, HELD_OUT, 40, seed=seed).indices for seed in (1, 1, 2))
    assert (one == again).all()
    assert (one != other).any()


def test_probes_and_strangers_share_no_class_and_are_all_pictures():
    probes, distractors = _divide_classes(LABELS, HELD_OUT, seed=0)
    assert np.array_equal(np.sort(np.concatenate([probes, distractors])), HELD_OUT)
    assert not set(LABELS[probes]) & set(LABELS[distractors])
    assert len(np.unique(LABELS[distractors])) == 2
    with pytest.raises(ConfigError, match="two pictures"):
        _divide_classes(np.arange(6), np.arange(6), seed=0)


def test_a_data_set_without_a_list_of_pairs_is_refused():
    with pytest.raises(DataError, match="list pairs"):
        _read_pairs(SimpleNamespace(extras={}, name="digits"))
    listed = _read_pairs(SimpleNamespace(extras={"pairs": [[0, 1]], "same": [1]}, name="lfw"))
    assert listed.same.dtype == bool
