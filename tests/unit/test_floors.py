"""What retrieval reaches without training, by pixels and by the untrained network."""

import numpy as np
import pytest
import torch

from trainables.context import FolderContext
from trainables.metrics import retrieval_metrics
from trainables.resolve import Layer, resolve
from trainables.tasks import build_learner, floors
from trainables.tasks.floors import _PIXELS, _UNTRAINED, measure_floors
from trainables.training import train

SETTINGS = {"data.name": "digits", "data.validation_fraction": 0.4, "batch.batch_size": 6, "training.steps": 2}


def config(**more):
    return resolve(Layer("test", {**SETTINGS, "training.eval_every": 1, **more})).config


def test_pixels_are_compared_by_their_centred_cosine(cache_dir, tmp_path):
    found = measure_floors(config(), [0], cache_dir=cache_dir)
    learner = build_learner(config(), FolderContext(tmp_path, torch.device("cpu")), cache_dir=cache_dir)
    part = learner.split.validation
    pixels = np.asarray(learner.pictures.images)[part].reshape(len(part), -1).astype(np.float32)
    centred = torch.from_numpy(pixels - pixels.mean(axis=1, keepdims=True))
    own = retrieval_metrics(centred, torch.from_numpy(learner.pictures.labels[part]), ks=(1,))
    assert found[_PIXELS]["val/recall_at_1"] == pytest.approx(own["recall_at_1"], abs=0.2)
    assert found[_PIXELS]["val/recall_at_1"] > 90


def test_the_untrained_network_is_the_one_that_training_begins_with(cache_dir, tmp_path):
    still = config(**{"optim.lr": 1e-12, "optim.weight_decay": 0.0, "model.freeze_bn": True, "seed": 3})
    rows = []
    train(still, FolderContext(tmp_path, torch.device("cpu"), sink=rows.append), cache_dir=cache_dir)
    (trained, *_) = [row["val/recall_at_1"] for row in rows if "val/recall_at_1" in row]
    assert measure_floors(still, [3], cache_dir=cache_dir)[_UNTRAINED]["val/recall_at_1"] == pytest.approx(
        trained, abs=1
    )


def test_floors_are_means_over_seeds_and_do_not_touch_the_random_state(cache_dir):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    each = [measure_floors(config(), [seed], cache_dir=cache_dir) for seed in (0, 1)]
    both = measure_floors(config(), [0, 1], cache_dir=cache_dir)
    for name in (_PIXELS, _UNTRAINED):
        mean = np.mean([floor[name]["val/recall_at_1"] for floor in each])
        assert both[name]["val/recall_at_1"] == pytest.approx(mean)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_too_many_pictures_and_other_tasks_have_no_floors(cache_dir, monkeypatch):
    faces = config(**{"task.name": "face_recognition", "batch.sampler": "random", "loss.name": "arcface"})
    assert measure_floors(faces, [0], cache_dir=cache_dir) == {}
    monkeypatch.setattr(floors, "_MOST_PIXELS", 10)
    assert measure_floors(config(), [0], cache_dir=cache_dir) == {}
