"""Splits and alterations: classes disjoint or shared, fewer pictures, wrong labels, and refused settings."""

import numpy as np
import pytest
from helpers.together import drawn
from helpers.trials import TASKS, config_of, learner_of, run

from trainables.data.alterations import relabel, thin_out
from trainables.errors import ConfigError
from trainables.resolve import Layer, resolve
from trainables.tasks import task_of
from trainables.tasks.splits import class_disjoint_split, match_classes, shared_class_split


def _labels(counts):
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))


@drawn(60)
def test_identity_60_parts_are_disjoint_in_classes_and_cover_everything(random):
    seed, fraction = int(random.integers(6)), random.uniform(0.05, 0.5)
    counts = [max(2, n) if i % 2 else n for i, n in enumerate(random.integers(1, 6, random.integers(12, 41)).tolist())]
    labels = _labels(counts)
    test_classes = range(len(counts) // 2, len(counts))
    split = class_disjoint_split(labels, test_classes, seed=seed, validation_fraction=fraction)
    parts = [split.train, split.validation, split.test]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    classes = [set(labels[part].tolist()) for part in parts]
    assert sum(map(len, classes)) == len(set.union(*classes))
    assert classes[2] == set(test_classes)
    assert sum(n >= 2 for n in np.bincount(labels[split.validation])) >= 2
    assert all(np.all(np.diff(part) > 0) for part in parts)


def test_the_seed_moves_validation_and_never_test():
    labels = _labels([4] * 40)
    splits = [class_disjoint_split(labels, range(20, 40), seed=seed) for seed in (0, 0, 1)]
    assert np.array_equal(splits[0].validation, splits[1].validation)
    assert not np.array_equal(splits[0].validation, splits[2].validation)
    assert np.array_equal(splits[0].test, splits[2].test)
    assert len(set(labels[splits[0].validation])) == 5


def test_folds_are_a_partition_of_the_training_classes():
    labels = _labels([3] * 30)
    folds = [class_disjoint_split(labels, range(15, 30), seed=3, folds=4, fold=f) for f in range(4)]
    held_out = [set(labels[split.validation].tolist()) for split in folds]
    assert set.union(*held_out) == set(range(15))
    assert sorted(map(len, held_out)) == [3, 4, 4, 4]
    assert all(len(set(labels[s.train]) & set(labels[s.validation])) == 0 for s in folds)


def test_selecting_on_test_is_explicit_and_labelled():
    labels = _labels([3] * 10)
    split = class_disjoint_split(labels, range(5, 10), seed=0, protocol="paper_test_selection")
    assert split.protocol == "paper_test_selection"
    assert np.array_equal(split.validation, split.test)
    assert set(labels[split.train]) == set(range(5))
    assert class_disjoint_split(labels, range(5, 10), seed=0).protocol == "class_disjoint"


def test_problems_of_classes_and_of_arguments_are_refused_together():
    labels = np.array([0, 0, 1, 1, 2, 3, 4, 4])
    with pytest.raises(ConfigError) as error:
        class_disjoint_split(labels, [2, 3], seed=0)
    text = str(error.value)
    assert "training needs at least 2 classes" in text
    assert "test half needs at least 2 classes of 2 or more pictures" in text
    assert "Add pictures: a query needs another picture" in text
    assert "fraction" not in text  # two classes are held out by the smallest
    labels = _labels([3] * 10)
    with pytest.raises(ConfigError) as error:
        class_disjoint_split(labels, [9], seed=0, validation_fraction=1.5, folds=3, fold=3, protocol="test")
    assert len(error.value.problems) == 3


@pytest.mark.parametrize(
    ("sizes", "remedies"),
    [
        ([3] * 6, ["four or more training classes"]),
        ([3] * 2, ["four or more training classes"] * 2 + ["two or more test classes"]),
        ([1] * 10, ["Add pictures: a query needs another"] * 2),
    ],
    ids=["few classes", "two classes", "one picture each"],
)
def test_each_part_that_is_too_small_has_its_own_remedy(sizes, remedies):
    with pytest.raises(ConfigError) as error:
        class_disjoint_split(_labels(sizes), range((len(sizes) + 1) // 2, len(sizes)), seed=0)
    assert len(error.value.problems) == len(remedies)
    assert all(said in problem.remedy for said, problem in zip(remedies, error.value.problems, strict=True))


def test_a_smaller_fraction_and_fewer_folds_are_suggested_if_they_help():
    with pytest.raises(ConfigError, match="or a smaller validation fraction"):
        class_disjoint_split(_labels([3] * 6), [0, 1], seed=0, validation_fraction=0.9)
    with pytest.raises(ConfigError, match="into fewer folds"):
        class_disjoint_split(_labels([3] * 12), range(6, 12), seed=0, folds=6)


def test_as_many_classes_are_drawn_as_the_other_part_has():
    labels = np.repeat(np.arange(20), 3)
    split = class_disjoint_split(labels, range(10, 20), seed=1)
    some = match_classes(labels, split.test, split.validation, seed=1)
    assert len(np.unique(labels[some])) == len(np.unique(labels[split.validation]))
    assert np.isin(some, split.test).all()
    assert (np.bincount(labels[some])[np.unique(labels[some])] == 3).all()  # whole classes
    assert some.tolist() == match_classes(labels, split.test, split.validation, seed=1).tolist()
    drawn = {tuple(match_classes(labels, split.test, split.validation, seed=s)) for s in range(8)}
    assert len(drawn) > 1
    assert match_classes(labels, split.validation, split.test, seed=1).tolist() == split.validation.tolist()


def test_classes_of_one_picture_are_matched_apart():
    labels = np.arange(20).repeat([3] * 10 + [1] * 7 + [3] * 3)
    for seed in range(20):
        some = match_classes(labels, np.flatnonzero(labels > 9), np.flatnonzero(labels < 3), seed=seed)
        assert np.unique(labels[some]).tolist() == [17, 18, 19]


SHARED = np.random.default_rng(0).permutation(np.repeat(np.arange(7), [4, 9, 20, 40, 3, 8, 100]))


def shared_parts(**arguments):
    split = shared_class_split(SHARED, **{"seed": 0, **arguments})
    return split.train, split.validation, split.test


def test_the_parts_of_shared_classes_are_a_partition_in_which_every_class_has_its_share():
    split = shared_parts()
    assert np.array_equal(np.sort(np.concatenate(split)), np.arange(len(SHARED)))
    for part in split:
        assert np.array_equal(np.unique(SHARED[part]), np.arange(7))
        assert np.array_equal(part, np.sort(part))
    train, validation, test = shared_parts(validation_fraction=0.2, test_fraction=0.3)
    for c, n in zip(*np.unique(SHARED, return_counts=True), strict=True):
        wanted = min(max(np.rint(0.3 * n), 1), n - 1)
        assert (SHARED[test] == c).sum() == wanted
        rest = n - wanted
        assert (SHARED[validation] == c).sum() == min(max(np.rint(0.2 * rest), 1), rest - 1)
        assert (SHARED[train] == c).sum() >= 1


def test_shared_classes_the_seed_moves_validation_but_never_test():
    one, other, again = shared_parts(), shared_parts(seed=1), shared_parts()
    assert np.array_equal(one[2], other[2])
    assert not np.array_equal(one[1], other[1])
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))


def test_official_or_selected_test_pictures_are_kept_whole():
    official = np.arange(150, len(SHARED))
    train, validation, test = shared_parts(official_test=official)
    assert np.array_equal(test, official)
    assert not set(official) & (set(train) | set(validation))
    train, validation, test = shared_parts(protocol="paper_test_selection")
    assert np.array_equal(validation, test)
    assert len(train) + len(test) == len(SHARED)


def test_too_few_pictures_and_a_fraction_outside_its_domain_are_refused():
    with pytest.raises(ConfigError, match="common classes"):
        shared_class_split(np.arange(10), seed=0)
    with pytest.raises(ConfigError, match="strictly between 0 and 1"):
        shared_class_split(SHARED, seed=0, validation_fraction=1.0)
    assert 8 in shared_class_split(np.array([0, 0, 0, 0, 1, 1, 1, 1, 2]), seed=0).train  # a class of one picture trains


LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(12), 20))
TRAIN = np.flatnonzero(LABELS < 9)


def kept(seed=0, pictures_per_class=None, long_tail=None):
    return thin_out(LABELS, TRAIN, pictures_per_class=pictures_per_class, long_tail=long_tail, seed=seed)


def test_without_options_labels_are_unchanged():
    assert kept() is TRAIN
    labels = LABELS[TRAIN]
    assert relabel(labels, noise=0.0, seed=0) is labels


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
    some, more = (relabel(labels, noise=noise, seed=2) for noise in (0.1, 0.3))
    wrong, further = some != labels, more != labels
    assert (wrong.sum(), further.sum()) == (200, 600)
    assert (further | ~wrong).all()
    assert np.array_equal(some[wrong], more[wrong])
    taken_for = (more - labels)[further] % 5
    assert np.bincount(taken_for, minlength=5)[1:].min() > 100  # 150 expected, 13 standard deviation
    assert not np.array_equal(more, relabel(labels, noise=0.3, seed=3))


@pytest.mark.parametrize("name", TASKS)
def test_label_noise_leaves_validation_and_test_unchanged(tmp_path, name):
    plain = learner_of(config_of(TASKS[name]), tmp_path)
    fewer = learner_of(config_of(TASKS[name], data__pictures_per_class=20, data__long_tail=2.0), tmp_path)
    assert set(fewer.split.train) < set(plain.split.train)
    for part in ("validation", "test"):
        assert np.array_equal(getattr(plain.split, part), getattr(fewer.split, part))


def test_a_noisy_trial_with_a_tail_trains_on_noisy_labels_and_is_evaluated_on_true_ones(tmp_path):
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
    altered = {"data__label_noise": 0.2, "data__long_tail": 3.0, "training__steps": 2, "training__eval_every": 2}
    outcome, _ = run(config_of(TASKS["retrieval"], **altered), tmp_path)
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
