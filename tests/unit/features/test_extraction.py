"""The pass that stores features: equal to the network, for any number of workers, after a kill too."""

import json

import numpy as np
import pytest
import torch

from trainables import generators
from trainables.data.formats import feature_store
from trainables.errors import ConfigError
from trainables.models import extraction
from trainables.models.extraction import FeaturePass, write_features
from trainables.models.views import Views
from trainables.resolve import Layer, resolve

AUGMENTED = {"augment.name": "crop_flip", "augment.crop": 16, "augment.resize": 16}


@pytest.fixture
def order(cache_dir, tmp_path):
    def make(folder="f", views=1, **more):
        config = resolve(Layer("test", {"data.name": "digits", "model.backbone": "small_conv", **more})).config
        return FeaturePass(config, tmp_path / folder, views, cache_dir)

    return make


def test_features_are_those_of_the_network_view_by_view(order):
    digest = write_features(order(views=2, **AUGMENTED), workers=1)
    chosen = order(views=2, **AUGMENTED)
    rows = np.load(chosen.folder / feature_store.FEATURES)
    pictures = chosen.task.dataset(chosen.cache_dir).prepare()
    generators.seed_all(0)
    network = chosen.task.build_network(pictures).eval()
    views = Views(pictures.images, chosen.task.augmentation(), seed=0)
    some = np.arange(300, 310)
    with torch.no_grad():
        first = network.features(views.evaluation(some))
        second = network.features(views.train(some, step=0, first=300, view=1))
    assert np.abs(rows[600:620:2] - first.numpy()).max() < 5e-3
    assert np.abs(rows[601:621:2] - second.numpy()).max() < 5e-3
    assert (digest.rows, digest.views) == (2 * 1797, 2)
    assert digest.origin["data"] == pictures.digest
    assert feature_store.store_problems(chosen.folder, whole=True) == []
    table = feature_store.read_table(chosen.folder)
    assert set(table.classes[table.splits == "test"]) == {"5", "6", "7", "8", "9"}


def test_a_killed_pass_goes_on_with_the_chunks_that_are_missing(order, monkeypatch):
    whole = write_features(order("whole"), workers=1)
    written, write = [], extraction._write_chunk

    def until_killed(settings, place, start):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(start)
        return write(settings, place, start)

    monkeypatch.setattr(extraction, "_write_chunk", until_killed)
    with pytest.raises(KeyboardInterrupt):
        write_features(order("killed"), workers=1)
    with pytest.raises(ConfigError, match="has no digest"):
        feature_store.StoreDigest.read(order("killed").folder)
    with pytest.raises(ConfigError, match="holds other features: settings, weights differ"):
        write_features(order("killed", **{"model.width": 8}), workers=1)
    monkeypatch.setattr(extraction, "_write_chunk", lambda *given: written.append(given[2]) or write(*given))
    assert write_features(order("killed"), workers=1) == whole
    assert sorted(written) == list(range(0, 1797, extraction._CHUNK))  # each chunk once
    assert write_features(order("killed"), workers=1) == whole  # finished: nothing to do


def test_a_pass_killed_before_its_first_chunk_starts_again(order, monkeypatch):
    whole = write_features(order("whole"), workers=1)

    def killed(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(extraction.disk, "reserve", killed)
        with pytest.raises(KeyboardInterrupt):
            write_features(order("killed"), workers=1)
    assert write_features(order("killed"), workers=1) == whole


def test_a_damaged_folder_is_not_taken_for_finished(order):
    write_features(order(), workers=1)
    with (order().folder / feature_store.FEATURES).open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ConfigError, match="Delete the folder and make it again"):
        write_features(order(), workers=1)


@pytest.mark.slow
def test_any_number_of_workers_writes_the_same_bytes(order):
    assert write_features(order("one"), workers=1).files == write_features(order("two"), workers=2).files


def test_what_cannot_be_stored_is_refused(order, tmp_path):
    with pytest.raises(ConfigError, match="several views need an augmentation"):
        write_features(order(views=2))
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="the folder must be empty"):
        write_features(order())


def test_the_command_stores_features_and_says_how_to_train_on_them(command_line, cache_dir, tmp_path):
    words = ("features", "digits", "--cache-dir", cache_dir, "-o", tmp_path / "f", "--workers", "1")
    code, _, err = command_line(*words)
    assert code == 1
    assert "--backbone: a data set needs the backbone" in err
    code, out, _ = command_line(*words, "--backbone", "small_conv", "--json")
    assert code == 0
    assert json.loads(out)["rows"] == 1797
    code, out, _ = command_line("datasets", "verify", "features", "--root", tmp_path / "f", "--json")
    assert code == 0
    assert json.loads(out)["counts"]["test_images"] == 896
    assert "must be a data set, or a file" in command_line("features", "nothing", "-o", tmp_path / "g")[2]
    (tmp_path / "x.npy").write_bytes(b"")
    code, _, err = command_line("features", tmp_path / "x.npy", "--set", "data.size=9", "-o", tmp_path / "g")
    assert code == 1
    assert "--set: does not apply to published features" in err
