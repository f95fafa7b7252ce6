"""CIFAR batches, face verification files, RecordIO training sets and distractors."""

import pickle
import struct
from io import BytesIO

import numpy as np
import pytest
from helpers import published_formats as fixtures
from PIL import Image

from trainables.data import build_dataset
from trainables.data.formats.record_io import RecordFile
from trainables.tasks.splits import class_disjoint_split


@pytest.fixture
def build(tmp_path):
    return lambda name, root, **knobs: build_dataset(name, root=root, cache_dir=tmp_path / "cache", **knobs)


def _text(problems):
    return "\n".join(map(str, problems))


def test_cifar10_planes_become_pixels(build, tmp_path):
    root = fixtures.cifar10(tmp_path / "cifar-10-batches-py")
    pictures = build("cifar10", tmp_path, strict=False).prepare()
    batch = pickle.loads((root / "data_batch_2").read_bytes())  # noqa: S301 - our own fixture
    assert pictures.images.shape == (24, 32, 32, 3)
    picture = batch["data"][1]
    for plane in range(3):
        expected = picture[1024 * plane : 1024 * (plane + 1)].reshape(32, 32)
        assert np.array_equal(pictures.images[5, :, :, plane], expected)
    assert pictures.labels[4:8].tolist() == batch["labels"]
    assert pictures.extras["official_test"].tolist() == [20, 21, 22, 23]
    assert pictures.test_classes == (5, 6, 7, 8, 9)
    assert pictures.class_names[3] == "kind3"


def test_a_part_of_cifar_is_refused_before_and_after_it_is_decoded(build, tmp_path):
    fixtures.cifar10(tmp_path / "cifar-10-batches-py")
    cold = _text(build("cifar10", tmp_path).check())
    assert "cifar10 has 60000 images, but got 24" in cold
    build("cifar10", tmp_path, strict=False).prepare()
    assert _text(build("cifar10", tmp_path).check()) == cold
    assert build("cifar10", tmp_path, strict=False).check() == []


def test_cifar100_has_fine_and_super_labels(build, tmp_path):
    root = fixtures.cifar100(tmp_path / "cifar-100-python")
    pictures = build("cifar100", root, strict=False).prepare()
    assert len(pictures.class_names) == 100
    assert len(pictures.extras["super_labels"]) == len(pictures) == 17
    assert pictures.extras["official_test"].tolist() == [12, 13, 14, 15, 16]


@pytest.mark.parametrize("below", ["lfw_funneled", "lfw", "."])
def test_lfw_pairs_name_people_and_picture_numbers(build, tmp_path, below):
    root = fixtures.lfw(tmp_path / "faces", below)
    pictures = build("lfw", root, strict=False, shorter_side=20).prepare()
    assert pictures.class_names == ("Ann_Bee", "Cy_Dee", "Eve")
    pairs, same = pictures.extras["pairs"], pictures.extras["same"]
    assert pairs.shape == (8, 2)
    assert np.array_equal(pictures.labels[pairs[:, 0]] == pictures.labels[pairs[:, 1]], same)
    assert pairs[0].tolist() == [0, 1]
    assert pictures.extras["fold"].tolist() == [0] * 4 + [1] * 4


def test_a_verification_file_is_pairs_in_ten_folds(build, tmp_path):
    encoded = fixtures.face_bin(tmp_path / "agedb_30.bin", pairs=20)
    pictures = build("agedb30", tmp_path, strict=False).prepare()
    assert pictures.images.shape == (40, 112, 112, 3)
    assert np.array_equal(pictures.images[7], np.asarray(Image.open(BytesIO(encoded[7]))))
    assert pictures.extras["pairs"][3].tolist() == [6, 7]
    assert pictures.extras["same"].tolist() == [True, False] * 10
    assert pictures.extras["fold"].tolist() == [f for f in range(10) for _ in range(2)]
    assert build("agedb30", tmp_path / "agedb_30.bin", strict=False).digest() == pictures.digest


def test_webface_reads_records_and_skips_header_and_identities(build, tmp_path):
    root = fixtures.webface(tmp_path / "faces")
    pictures = build("webface", root).prepare()
    assert pictures.labels.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert np.array_equal(pictures.images[4], np.asarray(Image.open(BytesIO(fixtures.jpeg(5)))))
    assert pictures.test_classes == ()


def test_a_training_only_set_has_an_empty_test_half():
    split = class_disjoint_split(np.repeat(np.arange(8), 3), (), seed=0)
    assert len(split.test) == 0
    assert len(split.validation) == 6


def test_a_record_that_contains_the_magic_number_is_joined(tmp_path):
    payload = b"abcd" + struct.pack("<I", fixtures.MAGIC) + b"efghij"
    data = fixtures.record(3.0, payload, 1, split_at=4)
    (tmp_path / "a.rec").write_bytes(data)
    (tmp_path / "a.idx").write_text("1\t0\n")
    record = RecordFile(tmp_path / "a.rec", tmp_path / "a.idx").read(1)
    assert record.labels == (3.0,)
    assert record.payload == payload


def test_webface_reads_plain_folders_too(build, tmp_path):
    for person in ("0000045", "0000099"):
        for i in range(2):
            fixtures.picture(tmp_path / "faces" / person / f"{i:03d}.jpg", i, (112, 112))
    pictures = build("webface", tmp_path / "faces", size=32).prepare()
    assert pictures.class_names == ("0000045", "0000099")
    assert pictures.images.shape == (4, 32, 32, 3)


def test_distractors_are_any_pictures(build, tmp_path):
    for i in range(3):
        fixtures.picture(tmp_path / "many" / str(i) / "deep" / "x.jpg", i)
    pictures = build("distractors", tmp_path / "many", size=16).prepare()
    assert pictures.images.shape == (3, 16, 16, 3)
    assert set(pictures.labels) == {0}
    (tmp_path / "none").mkdir()
    assert "must hold pictures" in _text(build("distractors", tmp_path / "none").check())
