"""Folders of pictures that are split into parts for training and testing."""

import numpy as np
import pytest
from helpers.published_formats import picture

from trainables.data import build_dataset


@pytest.fixture
def parts(tmp_path):
    for part, names in (("train", "cow dog eel"), ("Val", "cow emu"), ("test", "ant bee fox")):
        for name in names.split():
            picture(tmp_path / "parts" / part / name / f"{part}.png", len(name))
            picture(tmp_path / "parts" / part / name / "1.png", ord(name[0]))
    return tmp_path / "parts"


def test_folders_for_training_and_testing_split_the_classes(parts, tmp_path):
    data = build_dataset("image_folder", root=parts, cache_dir=tmp_path / "cache")
    assert data.check() == []
    pictures = data.prepare()
    assert pictures.class_names == ("ant", "bee", "cow", "dog", "eel", "emu", "fox")
    assert pictures.test_classes == (0, 1, 6)
    assert np.bincount(pictures.labels).tolist() == [2, 2, 4, 2, 2, 2, 2]  # the cow is in train and in Val
    assert "The folders split the classes: 4 for training and validation, 3 for testing" in data.passed_over()
    (tmp_path / "split.txt").write_text(
        "\n".join(f"{name} train" for name in pictures.class_names[:-2]) + "\nemu test\nfox test"
    )
    split = build_dataset(
        "image_folder", root=parts, cache_dir=tmp_path / "cache", split_file=str(tmp_path / "split.txt")
    )
    assert split.listed().test_classes == (5, 6)
    assert split.digest() != data.digest()


def test_parts_with_the_same_classes_are_refused(parts, tmp_path):
    (parts / "test" / "ant").rename(parts / "test" / "dog")
    (problem,) = build_dataset("image_folder", root=parts, cache_dir=tmp_path / "c").check()
    assert problem.rule == "classes for testing must not be trained on, but these lie in both parts"
    assert "dog" in problem.value
    assert problem.remedy == f"Give {parts / 'train'}: the second half of its classes is then for testing."


def test_parts_of_other_names_are_refused(parts, tmp_path):
    (parts / "test").rename(parts / "gallery")
    (problem,) = build_dataset("image_folder", root=parts, cache_dir=tmp_path / "c").check()
    assert problem.rule == "holds the parts of a split, where the folders of the classes are expected"
    assert problem.remedy.startswith("Name the parts train and test, or")


def test_classes_may_bear_the_names_of_parts(tmp_path):
    for part in ("train", "test"):
        picture(tmp_path / "classes" / part / "0.png", 0)
        picture(tmp_path / "classes" / part / "deep" / "1.png", 1)
    data = build_dataset("image_folder", root=tmp_path / "classes", cache_dir=tmp_path / "c")
    assert data.check() == []
    assert data.listed().class_names == ("test", "train")
