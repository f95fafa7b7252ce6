"""Verification and identification against loops."""

import math

import numpy as np
import pytest
import torch
from helpers.together import drawn

from trainables.errors import ConfigError
from trainables.metrics.faces import rank_1_with_distractors, verification_metrics


def pairs(count: int, noise: float, seed: int = 0, dim: int = 6):
    rng = np.random.default_rng(seed)
    first = rng.standard_normal((count, dim))
    same = rng.random(count) < 0.5
    second = np.where(same[:, None], first, rng.standard_normal((count, dim)))
    return first, second + noise * rng.standard_normal((count, dim)), same


def naive_verification(first, second, same, folds, far):
    """Accuracy, its deviation, TAR, FAR: one fold, one threshold, one pair at a time."""
    distances = []
    for a, b in zip(first, second, strict=True):
        ends = zip(a / np.sqrt(a @ a), b / np.sqrt(b @ b), strict=True)
        distances.append(float(sum((x - y) ** 2 for x, y in ends)))
    n, distances = len(distances), np.array(distances)
    sizes = [n // folds + (i < n % folds) for i in range(folds)]
    accuracies, tars, fars, start = [], [], [], 0
    for size in sizes:
        test = range(start, start + size)
        train = [i for i in range(n) if i not in test]
        start += size

        def accuracy(threshold, members):
            return np.sum((distances[members] < threshold) == same[members]) / len(members)

        candidates = [j / 100 for j in range(400)]
        best = max(candidates, key=lambda t: accuracy(t, train))  # the first of the best
        accuracies.append(accuracy(best, test))
        negatives = [distances[i] for i in train if not same[i]]
        allowed = [t for t in negatives if sum(d < t for d in negatives) <= far * len(negatives) + 1e-9]
        for kind, rates in ((True, tars), (False, fars)):
            members = [i for i in test if same[i] == kind]
            if members:
                rates.append(sum(distances[i] < max(allowed) for i in members) / len(members))
    mean = sum(accuracies) / folds
    std = math.sqrt(sum((a - mean) ** 2 for a in accuracies) / folds)
    return [100 * x for x in (mean, std, sum(tars) / len(tars), sum(fars) / len(fars))]


@pytest.mark.parametrize(("count", "folds", "noise"), [(40, 10, 0.5), (47, 10, 1.0), (30, 2, 0.0), (23, 5, 2.0)])
@pytest.mark.parametrize("far", [0.0, 1e-3, 0.1, 0.29])
def test_verification_equals_loops(count, folds, noise, far):
    first, second, same = pairs(count, noise)
    got = verification_metrics(first, second, same, folds=folds, far=far)
    values = [got.accuracy, got.accuracy_std, got.tar_at_far, got.far]
    assert values == pytest.approx(naive_verification(first, second, same, folds, far), abs=1e-9)
    assert len(got.thresholds) == folds


def test_a_false_accept_rate_of_almost_1_is_that_of_all_different_pairs_but_one():
    almost, most = (verification_metrics(*pairs(40, 1.0), folds=2, far=far) for far in (1 - 1e-12, 0.99))
    assert almost == most


def test_a_distance_equal_to_the_threshold_is_not_accepted_and_a_collapsed_embedding_is_a_coin_flip():
    axis, other = np.eye(2)[[0] * 20], np.eye(2)[[1] * 20]
    same = np.arange(20) % 2 == 0
    got = verification_metrics(axis, np.where(same[:, None], other, -axis), same)  # squared distances 2 and 4
    assert got.accuracy == 100
    assert set(got.thresholds) == {2.01}
    got = verification_metrics(torch.ones(40, 3), torch.ones(40, 3) * 2, torch.arange(40) % 2)
    assert (got.accuracy, got.tar_at_far, got.far) == (50, 0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"second": np.ones((20, 3))}, r"second: must have the shape of first \(20, 4\)"),
        ({"same": np.arange(20)}, "same: must be booleans, or 0 and 1, but got 2"),
        ({"same": np.ones(19, dtype=bool)}, "same: there must be one label per"),
        ({"same": np.ones(20, dtype=bool)}, "there must be different pairs outside every fold"),
        ({"same": np.arange(20) < 2}, "there must be same pairs outside every fold"),
        ({"folds": 1}, "folds: must be between 2 and the 20 pairs"),
        ({"folds": 21}, "folds: must be between 2 and the 20 pairs"),
        ({"far": 1.0}, "far: must be at least 0 and below 1"),
        ({"first": np.full((20, 4), np.nan)}, "first: must be finite"),
    ],
)
def test_verification_names_bad_input(change, message):
    arguments = {"first": np.ones((20, 4)), "second": np.ones((20, 4)), "same": np.arange(20) % 2 == 0} | change
    with pytest.raises(ConfigError, match=message):
        verification_metrics(**arguments)


def naive_rank_1(probes, labels, strangers) -> float:
    unit = [p / math.sqrt(p @ p) for p in probes]
    others = [s / math.sqrt(s @ s) for s in strangers]
    hits = trials = 0
    for i, probe in enumerate(unit):
        for j, mate in enumerate(unit):
            if i != j and labels[i] == labels[j]:
                trials += 1
                hits += all(probe @ mate > probe @ other + 1e-12 for other in others)
    return 100 * hits / trials


@drawn(40)
def test_rank_1_equals_loops(rng):
    count, persons, distractors = rng.integers([2, 1, 1], [26, 6, 31]).tolist()
    labels = rng.integers(0, persons, count)
    labels[:2] = 0
    probes = rng.integers(0, 3, (count, 3)) + np.array([1.0, 0, 0])  # ties and duplicates
    strangers = rng.integers(0, 3, (distractors, 3)) + np.array([1.0, 0, 0])
    sizes = sorted({1, distractors // 2 + 1, distractors}, reverse=True)
    got = rank_1_with_distractors(probes, labels, strangers, sizes)
    assert list(got) == sizes
    for size in sizes:
        assert got[size] == pytest.approx(naive_rank_1(probes, labels, strangers[:size]))


def test_rank_1_in_blocks_falls_with_the_number_of_distractors(monkeypatch):
    from trainables.metrics import faces, search

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(30) % 7
    probes = torch.randn(7, 16, generator=generator)[labels] + torch.randn(30, 16, generator=generator)
    strangers = torch.randn(500, 16, generator=generator)
    sizes = (1, 10, 100, 500)
    whole = rank_1_with_distractors(probes, labels, strangers, sizes)
    for module, name in ((faces, "_PROBES"), (faces, "_DISTRACTORS"), (search, "ENTRIES")):
        monkeypatch.setattr(module, name, 7)
    assert rank_1_with_distractors(probes, labels, strangers, sizes) == whole
    assert sorted(whole.values(), reverse=True) == list(whole.values())
    assert whole[1] > whole[500]
    assert rank_1_with_distractors(probes, labels, strangers) == {500: whole[500]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"distractors": np.ones((3, 2))}, "distractors: must have the probes' dimension 4, but got 2"),
        ({"distractors": np.full((3, 4), np.inf)}, "distractors: must be finite"),
        ({"sizes": (1, 4)}, "sizes: must be between 1 and the 3 distractors, but got 4"),
        ({"labels": np.arange(5)}, "at least one person must have two pictures"),
    ],
)
def test_rank_1_names_bad_input(change, message):
    arguments = {"embeddings": np.ones((5, 4)), "labels": np.zeros(5, dtype=int), "distractors": np.ones((3, 4))}
    with pytest.raises(ConfigError, match=message):
        rank_1_with_distractors(**(arguments | change))


def test_pairs_of_a_collapsed_embedding_tie():
    rng = np.random.default_rng(0)
    one = rng.normal(size=16)
    first, second = (one * rng.uniform(0.1, 10, (400, 1)) for _ in range(2))
    for dtype in (np.float32, np.float64):
        found = verification_metrics(first.astype(dtype), second.astype(dtype), np.arange(400) % 2, far=0.2)
        assert (found.tar_at_far, found.far) == (0, 0)
