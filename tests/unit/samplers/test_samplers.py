"""Samplers: pure functions of the step, balanced, complete, and divided over ranks without loss."""

import numpy as np
import pytest
from helpers.together import drawn

from trainables.errors import ConfigError
from trainables.samplers import SAMPLERS, build_sampler, local_part, sampler_problems, whole_batch
from trainables.samplers.m_per_class import _without_replacement
from trainables.samplers.random import RandomBatches
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request


def _labels(counts):
    return np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))


@drawn(60)
def test_m_per_class_is_balanced(random):
    counts, m = random.integers(1, 8, random.integers(4, 21)).tolist(), int(random.integers(1, 6))
    step, seed = random.integers(0, [10**9, 2**31]).tolist()
    labels = _labels(counts)
    batch = build_sampler("m_per_class", labels, 4 * m, instances_per_class=m, seed=seed).batch(step)
    drawn = labels[batch]
    assert np.array_equal(np.unique(drawn, return_counts=True)[1], [m] * 4)
    assert np.array_equal(drawn, np.repeat(drawn[::m], m))
    for label in np.unique(drawn):
        if counts[label] >= m:
            assert len(set(batch[drawn == label])) == m


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_batch_depends_on_seed_and_step_alone(name):
    labels = _labels([5] * 12)
    one, two = (build_sampler(name, labels, 12, instances_per_class=3, seed=4) for _ in range(2))
    forwards = [one.batch(step) for step in range(20)]
    backwards = [two.batch(step) for step in reversed(range(20))][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(forwards, backwards, strict=True))
    assert len({tuple(batch) for batch in forwards}) == 20
    other = build_sampler(name, labels, 12, instances_per_class=3, seed=5)
    assert not np.array_equal(other.batch(0), one.batch(0))


@drawn(40)
def test_random_covers_an_epoch_without_repeats(random):
    n, size, seed, epoch = random.integers([1, 1, 0, 0], [61, 61, 101, 51]).tolist()
    size = min(size, n)
    sampler = build_sampler("random", np.zeros(n), size, seed=seed)
    steps = sampler.steps_per_epoch
    seen = np.concatenate([sampler.batch(epoch * steps + step) for step in range(steps)])
    assert steps == n // size
    assert len(set(seen)) == len(seen) == steps * size
    assert set(seen) <= set(range(n))


@pytest.mark.parametrize("world", range(1, 10))
@pytest.mark.parametrize("size", [0, 1, 8, 50])
def test_ranks_partition_the_batch_in_order(size, world):
    batch = np.random.default_rng(0).permutation(size)
    parts = [local_part(batch, rank, world) for rank in range(world)]
    assert np.array_equal(np.concatenate(parts), batch)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_every_class_and_every_picture_come_equally_often():
    counts = [3, 5, 8, 4, 10, 6]
    labels = _labels(counts)
    sampler = build_sampler("m_per_class", labels, 6, instances_per_class=2, seed=0)
    drawn = np.concatenate([sampler.batch(step) for step in range(6000)])
    classes = np.bincount(labels[drawn]) / len(drawn)
    assert np.allclose(classes, 1 / 6, atol=0.006)  # 4.6 standard deviations of 18,000 draws at most
    pictures = np.bincount(drawn) / len(drawn)
    expected = 1 / 6 / np.array(counts)[labels]
    assert np.allclose(pictures, expected, rtol=0.15)


def test_draws_without_replacement_are_uniform_and_take_a_whole_class_if_it_is_just_large_enough():
    draw = np.random.default_rng(0)
    rows = _without_replacement(draw, np.full(40_000, 4), 2)
    counts = np.bincount(rows[:, 0] * 4 + rows[:, 1], minlength=16).reshape(4, 4)
    assert (np.diag(counts) == 0).all()
    off = counts[~np.eye(4, dtype=bool)]
    assert np.abs(off - 40_000 / 12).max() < 5 * np.sqrt(40_000 / 12)
    rows = _without_replacement(np.random.default_rng(0), np.full(50, 5), 5)
    assert all(sorted(row) == [0, 1, 2, 3, 4] for row in rows.tolist())


def test_broken_rules_name_the_nearest_valid_values():
    text = "\n".join(map(str, sampler_problems("m_per_class", 64, 5, num_classes=8)))
    assert "multiple of batch.instances_per_class=5" in text
    assert "Try 60 or 65." in text
    assert "12 classes of 5 need as many training classes, and there are 8" in text
    assert "Set batch.batch_size to 40 or less, or batch.instances_per_class to 8." in text
    assert "batch.instances_per_class to 10." in str(sampler_problems("m_per_class", 120, 3, num_classes=14)[0])
    assert "Try 5." in str(sampler_problems("m_per_class", 3, 5)[0])
    assert sampler_problems("m_per_class", 64, 4, num_classes=16) == []
    assert "exceed the 30" in str(sampler_problems("random", 31, 1, num_images=30)[0])
    assert sampler_problems("random", 30, 7, num_images=30) == []
    assert "Did you mean 'm_per_class'?" in str(sampler_problems("m_per_clas", 1, 1)[0])
    assert len(sampler_problems("m_per_class", 0, 0)) == 2
    with pytest.raises(ConfigError, match="4 classes of 2 need"):
        build_sampler("m_per_class", _labels([3] * 3), 8, instances_per_class=2)
    with pytest.raises(ConfigError, match="unknown sampler"):
        build_sampler("shuffled", np.zeros(4), 2)


@pytest.mark.parametrize("drawn", [[0, 1], [0, 1, 2, 12], [-1, 0, 1, 2], [0.0, 1.0, 2.0, 3.0], [[0, 1], [2, 3]], []])
def test_an_invalid_batch_is_named_and_not_trained_on(drawn):
    sampler = build_sampler("random", np.arange(12), 4)
    sampler.batch = lambda step: drawn
    with pytest.raises(ConfigError, match=r"sampler random: batch\(7\) must be 4 numbers of the 12 training pictures"):
        whole_batch(sampler, 7)


def test_a_sampler_without_steps_is_refused(monkeypatch):
    class Endless(RandomBatches):
        steps_per_epoch = 0

    monkeypatch.setitem(SAMPLERS.data, "endless", Endless)
    with pytest.raises(ConfigError, match="sampler endless: steps_per_epoch must be at least 1, but got 0"):
        build_sampler("endless", [0, 1], 2)
    monkeypatch.setattr(Endless, "steps_per_epoch", 2.5)
    with pytest.raises(ConfigError, match=r"sampler endless: steps_per_epoch must be whole, but got 2\.5"):
        build_sampler("endless", [0, 1], 2)
    monkeypatch.setattr(Endless, "problems", lambda *_, **__: None)
    with pytest.raises(ConfigError, match=r"sampler endless: problems\(\) must return a list, but got 'NoneType'"):
        sampler_problems("endless", 2, 1)


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        ([0.0, 1.0, 2.0, 3.0], r"float64 of shape \(4,\), 0\.0 to 3\.0"),
        ([[0], [1, 2]], "'list'"),
        (None, "'NoneType'"),
    ],
)
def test_wrong_batches_are_reported_before_the_first_trial(monkeypatch, cache_dir, drawn, said):
    drawing = type("Drawing", (RandomBatches,), {"batch": lambda self, step: drawn, "__module__": __name__})
    monkeypatch.setitem(SAMPLERS.data, "drawing", drawing)
    settings = {"batch.sampler": "drawing", "batch.batch_size": 4, "training.steps": 2, "training.eval_every": 1}
    request = Request("sec_rho", dataset="digits", seeds=1, settings=settings, name="w")
    with pytest.raises(ConfigError, match=rf"batch\(0\) must be 4 numbers of the \d+ training pictures.*{said}"):
        prepare(request, cache_dir=cache_dir)


class GlobalDraws(RandomBatches):
    """Draw from numpy's global generator."""

    name = "global"

    def batch(self, step):
        return np.random.permutation(len(self.labels))[: self.batch_size]


class OwnGenerator(RandomBatches):
    """Draw from a generator that each batch moves on."""

    name = "own"

    def batch(self, step):
        self.drawn = vars(self).setdefault("drawn", np.random.default_rng(self.seed))
        return self.drawn.permutation(len(self.labels))[: self.batch_size]


@pytest.mark.parametrize("sampler", [GlobalDraws, OwnGenerator])
def test_a_sampler_that_does_not_repeat_its_batches_is_refused_before_the_first_trial(monkeypatch, cache_dir, sampler):
    monkeypatch.setitem(SAMPLERS.data, sampler.name, sampler)
    quick = {"batch.sampler": sampler.name, "training.steps": 2, "training.eval_every": 1}
    request = Request("sec_rho", dataset="digits", seeds=1, settings=quick, name="w")
    with pytest.raises(ConfigError, match=rf"sampler {sampler.name}: batch\(0\) must be the same at each call"):
        prepare(request, cache_dir=cache_dir)
