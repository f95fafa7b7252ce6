"""The retrieval task: the pictures that evaluate a trial, and their preprocessing."""

import math

import numpy as np
import pytest
import torch
from helpers import published_formats as fixtures
from helpers.trials import config_of

from trainables.context import TrialContext
from trainables.data import build_dataset
from trainables.errors import ConfigError
from trainables.metrics import retrieval_metrics
from trainables.metrics.clustering import clustering_metrics
from trainables.tasks import build_learner, floors, task_of
from trainables.tasks.evaluation import embedding_statistics
from trainables.tasks.floors import _PIXELS, _UNTRAINED, measure_floors
from trainables.tasks.retrieval import RetrievalLearner, _query_and_gallery
from trainables.tasks.splits import match_classes
from trainables.training import train

CROP = {"augment.name": "crop_flip", "augment.crop": 16, "augment.resize": 18}
ITEMS = [(i, ["train"] * 4) for i in range(1, 13)]
ITEMS += [(20 + i, ["query", "gallery", "gallery"][: 2 + i % 2]) for i in range(8)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    root = tmp_path_factory.mktemp("inshop")
    fixtures.inshop(root, items=ITEMS)
    data = {"data.name": "inshop", "data.root": str(root), "data.strict": False, "data.shorter_side": 20}
    sizes = {"batch.batch_size": 6, "batch.instances_per_class": 2, "model.embedding_dim": 4}
    return {**data, **sizes, "training.steps": 2, "training.eval_every": 1, **CROP}, root / "cache"


def learner_of(settings, cache, **more):
    return build_learner(config_of(settings, **more), TrialContext(cache, torch.device("cpu")), cache_dir=cache)


def test_queries_are_searched_in_the_gallery_only(shop):
    learner = learner_of(*shop)
    pictures = learner.pictures
    assert isinstance(learner, RetrievalLearner)
    query, gallery = (pictures.extras[part] for part in ("query", "gallery"))
    features, labels = learner.embed(np.arange(len(pictures)))
    searched = (features[gallery], labels[gallery])
    expected = retrieval_metrics(features[query], labels[query], gallery=searched, ks=(1, 2, 4, 8))
    found = learner.test(learner.validate()).figures
    assert found["test/queries"] == len(query) == 8
    for name, value in expected.items():
        assert found[f"test/{name}"] == pytest.approx(value), name
    everyone, whose = learner.embed(learner.split.test)
    assert retrieval_metrics(everyone, whose)["queries"] > 8  # leave-one-out would use the gallery as queries too


def test_validation_leaves_one_out_on_training_classes(shop):
    learner = learner_of(*shop)
    assert not np.isin(learner.split.validation, learner.pictures.extras["query"]).any()
    assert learner.validate().figures["val/queries"] == len(learner.split.validation) == 12


def test_selecting_on_test_validates_by_query_and_gallery(shop):
    learner = learner_of(*shop, **{"data.split": "paper_test_selection"})
    validated = learner.conclude(learner.validate())
    tested = {name.replace("test/", "val/"): value for name, value in learner.test(validated).figures.items()}
    assert validated.figures == tested


def test_clusters_are_measured_at_the_scored_evaluation_with_their_backend(shop):
    learner = learner_of(*shop)
    validated = learner.validate()
    assert not {"val/nmi", "val/f1"} & set(validated.figures)
    concluded = learner.conclude(validated)
    embedded = learner.embed(learner.split.validation)
    expected = clustering_metrics(*embedded, backend="auto", seed=learner.config.seed_of("split"))
    assert (concluded.figures["val/nmi"], concluded.figures["val/f1"]) == (expected.nmi, expected.f1)
    assert concluded.evidence.clustering == expected.backend
    assert {"test/nmi", "test/f1"} <= set(learner.test(validated).figures)
    without = learner_of(*shop, **{"evaluation.clustering": False})
    assert without.conclude(without.validate()).figures.keys() == validated.figures.keys()
    assert not any(name.endswith(("nmi", "f1")) for name in without.test(without.validate()).figures)
    assert not without.task.final_metrics()
    assert without.config.digest() == learner.config.digest()


def test_folds_cover_the_training_classes_once(shop):
    held_out = []
    for fold in range(4):
        learner = learner_of(*shop, **{"data.folds": 4, "data.fold": fold})
        held_out += learner.split.validation.tolist()
    expected = np.flatnonzero(~np.isin(learner.pictures.labels, learner.pictures.test_classes))
    assert sorted(held_out) == expected.tolist()


def test_test_is_also_scored_among_as_many_classes_as_validation(shop):
    learner = learner_of(*shop, **{"evaluation.matched_classes": True})
    figures = learner.test(learner.validate()).figures
    plain = {name: value for name, value in figures.items() if not name.startswith("test/matched_")}
    assert {name.replace("matched_", "") for name in figures if name not in plain} == set(plain)
    unasked = learner_of(*shop)
    assert not any("matched" in name for name in unasked.test(unasked.validate()).figures)
    assert plain["test/queries"] == 8
    assert figures["test/matched_queries"] == 3  # one query an item, three validation classes
    some = match_classes(learner.pictures.labels, learner.split.test, learner.split.validation, seed=0)
    embeddings, labels = learner.embed(some)
    asked, searched = _query_and_gallery(learner.pictures, some)
    expected = retrieval_metrics(embeddings[asked], labels[asked], gallery=(embeddings[searched], labels[searched]))
    assert figures["test/matched_recall_at_1"] == pytest.approx(expected["recall_at_1"])


def test_the_best_evaluation_cannot_be_selected_by_a_recall_that_is_not_measured(shop):
    with pytest.raises(ConfigError, match=r"evaluation\.ks.*: best_validation selects by val/recall_at_1.*Add 1"):
        config_of(shop[0], evaluation__ks=[10], evaluation__epoch="best_validation")


def test_notes_count_classes_and_label_selection_on_test(shop):
    learner = learner_of(*shop)
    (note,) = learner.task.notes(learner.pictures)
    assert "9 (36 pictures) for training, 3 (12 pictures) for validation, 8 (20 pictures) for test" in note
    learner = learner_of(*shop, **{"data.split": "paper_test_selection"})
    assert "IS the test half" in learner.task.notes(learner.pictures)[0]


def test_pictures_of_different_sizes_train_and_need_an_augmentation(shop, tmp_path):
    settings, cache = shop
    context = TrialContext(tmp_path, torch.device("cpu"))
    outcome = train(config_of(settings), context, cache_dir=cache)
    assert 0 <= outcome.metrics["val/recall_at_1"] <= 100
    plain = config_of(settings, augment__name="none")
    pictures = build_dataset("inshop", root=settings["data.root"], cache_dir=cache, **plain.data.knobs()).prepare()
    (problem,) = task_of(plain).data_problems(pictures)
    assert problem.place == "augment.name"
    small = config_of(settings, augment__crop=12)
    assert "16 pixels" in task_of(small).data_problems(pictures)[0].rule


def test_embedding_statistics_equal_loops():
    vectors = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norms = [float(row @ row) ** 0.5 for row in vectors]
    cosines = [float(vectors[i] @ vectors[j]) / norms[i] / norms[j] for i in range(9) for j in range(9) if i != j]
    mean = sum(norms) / 9
    variance = sum((norm - mean) ** 2 for norm in norms) / 9
    expected = {"mean_cosine": sum(cosines) / 72, "norm_mean": mean, "norm_variance": variance}
    assert embedding_statistics(vectors) == pytest.approx(expected)
    for large in (torch.inf, torch.nan, 1e200):  # the square of the last overflows
        vectors[3, 1] = large
        assert all(math.isnan(value) for value in embedding_statistics(vectors).values())


SMALL = {"data.name": "digits", "data.validation_fraction": 0.4, "batch.batch_size": 6}
SMALL |= {"training.steps": 2, "training.eval_every": 1}


def test_pixels_are_compared_by_their_centred_cosine(cache_dir, tmp_path):
    found = measure_floors(config_of(SMALL), [0], cache_dir=cache_dir)
    learner = build_learner(config_of(SMALL), TrialContext(tmp_path, torch.device("cpu")), cache_dir=cache_dir)
    part = learner.split.validation
    pixels = np.asarray(learner.pictures.images)[part].reshape(len(part), -1).astype(np.float32)
    centred = torch.from_numpy(pixels - pixels.mean(axis=1, keepdims=True))
    own = retrieval_metrics(centred, torch.from_numpy(learner.pictures.labels[part]), ks=(1,))
    assert found[_PIXELS]["val/recall_at_1"] == pytest.approx(own["recall_at_1"], abs=0.2)
    assert found[_PIXELS]["val/recall_at_1"] > 90


def test_the_untrained_floor_uses_the_initial_network(cache_dir, tmp_path):
    still = config_of(SMALL, **{"optim.lr": 1e-12, "optim.weight_decay": 0.0, "model.freeze_bn": True, "seed": 3})
    rows = []
    train(still, TrialContext(tmp_path, torch.device("cpu"), sink=rows.append), cache_dir=cache_dir)
    (trained, *_) = [row["val/recall_at_1"] for row in rows if "val/recall_at_1" in row]
    floor = measure_floors(still, [3], cache_dir=cache_dir)[_UNTRAINED]
    assert floor["val/recall_at_1"] == pytest.approx(trained, abs=1)


def test_floors_are_means_over_seeds_and_do_not_touch_the_random_state(cache_dir):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    each = [measure_floors(config_of(SMALL), [seed], cache_dir=cache_dir) for seed in (0, 1)]
    both = measure_floors(config_of(SMALL), [0, 1], cache_dir=cache_dir)
    for name in (_PIXELS, _UNTRAINED):
        mean = np.mean([floor[name]["val/recall_at_1"] for floor in each])
        assert both[name]["val/recall_at_1"] == pytest.approx(mean)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_too_many_pictures_and_other_tasks_have_no_floors(cache_dir, monkeypatch):
    faces = config_of(SMALL, **{"task.name": "face_recognition", "batch.sampler": "random", "loss.name": "arcface"})
    assert measure_floors(faces, [0], cache_dir=cache_dir) == {}
    monkeypatch.setattr(floors, "_MAX_PIXELS", 10)
    assert measure_floors(config_of(SMALL), [0], cache_dir=cache_dir) == {}
