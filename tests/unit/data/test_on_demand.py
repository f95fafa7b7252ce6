"""On a disk too small for the cache, pictures are decoded at each use, to the same pixels and with a note."""

import json
import pickle

import numpy as np
import pytest
import torch
from helpers import published_formats as fixtures

from trainables.data import build_dataset
from trainables.data.augment import build_augmentation
from trainables.data.base import open_pictures
from trainables.data.formats import cache
from trainables.errors import DataError
from trainables.models.views import Views


@pytest.fixture
def small_disk(monkeypatch):
    def shrink():
        monkeypatch.setattr(cache, "_SPARE", 1 << 60)

    return shrink


def _folders(folder):
    for c in range(3):
        for i in range(3):
            fixtures.picture(folder / str(c) / f"{i}.png", 3 * c + i)
    return folder


SETS = {
    "cub200": (fixtures.cub, {"strict": False, "shorter_side": 16}),
    "lfw": (fixtures.lfw, {"strict": False, "shorter_side": 16}),
    "webface": (fixtures.webface, {"size": 32}),
    "image_folder": (_folders, {"size": 16}),
    "distractors": (_folders, {"size": 16}),
}


@pytest.mark.parametrize("name", SETS)
def test_pixels_labels_and_identity_are_those_of_the_cache(name, tmp_path, small_disk):
    make, knobs = SETS[name]
    root = make(tmp_path / "data")
    stored = build_dataset(name, root=root, cache_dir=tmp_path / "a", **knobs).prepare()
    small_disk()
    found = build_dataset(name, root=root, cache_dir=tmp_path / "b", **knobs).prepare()
    found = pickle.loads(pickle.dumps(found))  # noqa: S301 - our own bytes
    assert found.digest == stored.digest
    assert found.labels.tolist() == stored.labels.tolist()
    assert found.test_classes == stored.test_classes
    assert found.image_size == stored.image_size
    assert found.in_channels == stored.in_channels
    assert len(found.images) == len(stored.images)
    for i in range(len(stored)):
        assert np.array_equal(found.images[i], stored.images[i])
    assert {key: value.tolist() for key, value in found.extras.items()} == {
        key: value.tolist() for key, value in stored.extras.items()
    }
    assert found.notes[:-1] == stored.notes
    assert "decodes the pictures at each use" in found.notes[-1]
    assert "TUNE_DML_CACHE" in found.notes[-1]
    assert not list((tmp_path / "b").glob(f"{name}-*"))


@pytest.mark.parametrize("name", ["cub200", "image_folder"])
def test_training_and_evaluation_see_the_same_views(name, tmp_path, small_disk):
    make, knobs = SETS[name]
    root = make(tmp_path / "data")
    sources = [build_dataset(name, root=root, cache_dir=tmp_path / "a", **knobs).prepare().images]
    small_disk()
    sources.append(build_dataset(name, root=root, cache_dir=tmp_path / "b", **knobs).prepare().images)
    augmentation = build_augmentation("crop_flip", crop=12, resize=14)
    indices = np.array([5, 0, 7])
    stored, found = (Views(images, augmentation, seed=3) for images in sources)
    assert torch.equal(stored.train(indices, step=4), found.train(indices, step=4))
    assert torch.equal(stored.evaluation(indices), found.evaluation(indices))
    if name == "image_folder":
        plain = [Views(images, None, seed=3).train(indices, step=0) for images in sources]
        assert torch.equal(*plain)


def test_broken_pictures_are_left_out_or_named(tmp_path, small_disk):
    root = fixtures.cub(tmp_path / "birds")
    broken = root / "images/001.Bird_1/Bird_1_0001.jpg"
    broken.write_bytes(b"x")
    knobs = {"root": root, "cache_dir": tmp_path / "c", "strict": False, "shorter_side": 16}
    small_disk()
    with pytest.raises(DataError, match=str(broken)):
        build_dataset("cub200", **knobs).prepare()
    found = build_dataset("cub200", **knobs, skip_corrupt=True).prepare()
    assert (len(found), len(found.images)) == (11, 11)
    assert found.images[1].shape == (16, 24, 3)


@pytest.fixture
def birds(tmp_path):
    return build_dataset("cub200", root=fixtures.cub(tmp_path / "birds"), cache_dir=tmp_path / "c", strict=False)


def test_preparing_ahead_does_not_fall_back_and_the_cache_is_built_once_there_is_space(birds, small_disk, monkeypatch):
    small_disk()
    with pytest.raises(cache.DiskFull, match="Free some space"):
        birds.prepare(fall_back=False)
    assert birds.prepare().directory is None
    monkeypatch.setattr(cache, "_SPARE", 0)
    assert birds.prepare().directory is not None


@pytest.mark.parametrize("end", ["cut", "overwritten"])
@pytest.mark.parametrize("file", ["labels.npy", "shapes.npy", "pixels.bin"])
def test_a_cache_with_a_damaged_file_is_not_used(birds, file, end):
    """Even a file of the same size: trials would silently train on other pictures."""
    pictures = birds.prepare()
    whole = (pictures.directory / file).read_bytes()
    changed = bytes(255 - byte for byte in whole[-9:])
    (pictures.directory / file).write_bytes(whole[:-9] + (changed if end == "overwritten" else b""))
    assert not birds.is_prepared()
    birds.prepare()
    assert (pictures.directory / file).read_bytes() == whole
    assert birds.is_prepared()


def test_a_cache_of_other_data_is_not_used(birds):
    directory = birds.prepare().directory
    body = json.loads((directory / "about.json").read_text())
    (directory / "about.json").write_text(json.dumps({**body, "digest": "0" * 64}))
    assert not birds.is_prepared()
    assert birds.prepare().digest == birds.digest()
    assert open_pictures(directory).digest == birds.digest()
