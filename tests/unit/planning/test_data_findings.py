"""Copies of data that train without complaint and cannot reach a published result."""

import shutil

import numpy as np
import pytest
from helpers.published_formats import cub

from tune_dml.planning.checks.data_findings import _label_shift, data_findings


@pytest.fixture
def copy(tmp_path):
    return cub(tmp_path / "cub", classes=6, each=3)


def found(root, cache_dir, strict=False):
    return data_findings({"data.name": "cub200", "data.root": str(root), "data.strict": strict}, cache_dir)


def test_files_of_macos_copies_and_counts(copy, tmp_path):
    pictures = sorted((copy / "images").rglob("*.jpg"))
    (pictures[0].parent / "._one.jpg").write_bytes(b"x")
    shutil.copy(pictures[-1], pictures[-2])  # both test
    shutil.copy(pictures[-4], pictures[0])  # of the other half, and so under another label
    text = "\n".join(found(copy, tmp_path / "cache"))
    assert "1 file begins with `._`" in text
    assert "1 of 9 test pictures are copies" in text
    assert "1 picture of the test half also trains" in text
    assert "1 picture with copies under other labels" in text
    assert "18 images; 11788 are published" in text


def test_a_sound_copy_has_no_finding(cache_dir):
    assert data_findings({"data.name": "digits"}, cache_dir) == ()


def test_labels_that_are_shifted_by_one(copy, tmp_path):
    file = copy / "image_class_labels.txt"
    rows = [line.split() for line in file.read_text().splitlines()]
    file.write_text("".join(f"{number} {min(int(label) + 1, 6)}\n" for number, label in rows))
    assert any("labels are shifted by +1: 15 of 18" in one for one in found(copy, tmp_path / "cache"))


def test_twice_half_and_another_release(copy, tmp_path, monkeypatch):
    from trainables.data.cub200 import Cub200

    monkeypatch.setattr(Cub200, "expected", {"images": 18, "test_images": 18, "train_images": 3})
    text = "\n".join(found(copy, tmp_path / "cache"))
    assert "9 test images, half of the published 18" in text
    monkeypatch.setattr(Cub200, "counts", lambda self: {"images": 6033})
    assert any("CUB-200 of 2010" in one for one in found(copy, tmp_path / "cache"))


def test_folders_that_are_no_classes_say_nothing():
    labels = np.array([0, 1, 1])
    assert _label_shift(["a", "b", "b"], labels, ["a", "b"]) == []
    assert _label_shift(["x", "y", "y"], labels, ["a", "b"]) == []
    assert _label_shift(["b", "b", "a"], labels, ["a", "b"]) == [
        "2 of 3 pictures are labelled as another class than that of their folder"
    ]
