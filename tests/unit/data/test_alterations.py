"""Fewer pictures, a long tail and wrong labels: what they are, that they nest, and that nothing else is touched."""

import numpy as np
import pytest
from helpers.trials import TASKS, config_of, learner_of, run

from trainables.data.alterations import relabelled, thinned
from trainables.errors import ConfigError
from trainables.resolve import Layer, resolve
from trainables.tasks import task_of

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(12), 20))
TRAIN = np.flatnonzero(LABELS < 9)


def kept(seed=0, pictures_per_class=None, long_tail=None):
    return thinned(LABELS, TRAIN, pictures_per_class=pictures_per_class, long_tail=long_tail, seed=seed)


def test_nothing_asked_is_the_same_array():
    assert kept() is TRAIN
    labels = LABELS[TRAIN]
    assert relabelled(labels, noise=0.0, seed=0) is labels


def test_pictures_per_class_keeps_so_many_of_each_class_and_less_is_part_of_more():
    five, ten = kept(pictures_per_class=5), kept(pictures_per_class=10)
    assert np.bincount(LABELS[five], minlength=9).tolist() == [5] * 9
    assert set(five) < set(ten) < set(TRAIN)
    assert (np.diff(five) > 0).all()
    assert np.array_equal(kept(pictures_per_class=100), TRAIN)
    assert not np.array_equal(five, kept(seed=1, pictures_per_class=5))


def test_a_long_tail_falls_exponentially_by_its_factor():
    counts = np.sort(np.bincount(LABELS[kept(long_tail=4)]))[::-1]
    assert counts.tolist() == [round(20 * 4 ** (-c / 8)) for c in range(9)]
    assert counts[0] == 4 * counts[-1]
    assert np.bincount(LABELS[kept(long_tail=100)]).min() == 2
    assert np.array_equal(kept(long_tail=1), TRAIN)
    assert set(kept(long_tail=10)) < set(kept(long_tail=4))
    assert np.bincount(LABELS[kept(long_tail=4, pictures_per_class=8)]).max() == 8
    assert np.bincount(LABELS[kept(long_tail=4)]).argmax() != np.bincount(LABELS[kept(long_tail=4, seed=3)]).argmax()


def test_noise_is_a_share_of_other_classes_drawn_evenly_and_nests():
    labels = np.repeat(np.arange(5), 400)
    some, more = (relabelled(labels, noise=noise, seed=2) for noise in (0.1, 0.3))
    wrong, further = some != labels, more != labels
    assert (wrong.sum(), further.sum()) == (200, 600)
    assert (further | ~wrong).all()
    assert np.array_equal(some[wrong], more[wrong])
    taken_for = (more - labels)[further] % 5
    assert np.bincount(taken_for, minlength=5)[1:].min() > 100  # 150 expected, 13 standard deviation
    assert not np.array_equal(more, relabelled(labels, noise=0.3, seed=3))


@pytest.mark.parametrize("name", TASKS)
def test_validation_and_test_are_as_they_were(tmp_path, name):
    plain = learner_of(config_of(TASKS[name]), tmp_path)
    fewer = learner_of(config_of(TASKS[name], data__pictures_per_class=20, data__long_tail=2.0), tmp_path)
    assert set(fewer.split.train) < set(plain.split.train)
    for part in ("validation", "test"):
        assert np.array_equal(getattr(plain.split, part), getattr(fewer.split, part))


def test_training_is_told_wrong_labels_and_judging_right_ones(tmp_path):
    plain = learner_of(config_of(TASKS["retrieval"]), tmp_path)
    noisy = learner_of(config_of(TASKS["retrieval"], data__label_noise=0.25), tmp_path)
    assert (plain.train_labels != noisy.train_labels).mean() == pytest.approx(0.25, abs=0.005)
    assert set(noisy.train_labels) <= set(plain.train_labels)
    _, labels = noisy.embed(noisy.split.validation)
    assert np.array_equal(labels.numpy(), plain.pictures.labels[noisy.split.validation])
    notes = noisy.task.notes(noisy.pictures)
    assert any("training labels are wrong on purpose" in note for note in notes)
    fewer = task_of(config_of(TASKS["retrieval"], data__pictures_per_class=12))
    assert any("12 pictures of each" in note for note in fewer.notes(noisy.pictures))


def test_a_noisy_trial_with_a_tail_trains(tmp_path):
    config = config_of(
        TASKS["retrieval"], data__label_noise=0.2, data__long_tail=3.0, training__steps=2, training__eval_every=2
    )
    outcome, _ = run(config, tmp_path)
    assert np.isfinite(outcome.metrics["val/recall_at_1"])


def test_defaults_keep_the_identity_and_bad_values_are_refused():
    plain = resolve(Layer("test", {})).config
    for name, off, on in (("label_noise", 0.0, 0.1), ("pictures_per_class", None, 5), ("long_tail", None, 10.0)):
        assert resolve(Layer("test", {f"data.{name}": off})).config.digest() == plain.digest()
        assert resolve(Layer("test", {f"data.{name}": on})).config.digest() != plain.digest()
    for name, bad in (("label_noise", 1.0), ("label_noise", -0.1), ("pictures_per_class", 1), ("long_tail", 0.5)):
        with pytest.raises(ConfigError, match=rf"data\.{name}"):
            resolve(Layer("test", {f"data.{name}": bad}))
    with pytest.raises(ConfigError, match="sees no labels"):
        config_of(TASKS["contrastive"], data__label_noise=0.1)
