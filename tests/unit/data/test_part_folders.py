"""Folders of pictures in folders for training and testing."""

import shutil

import numpy as np
import pytest
from helpers import published_formats as fixtures
from helpers.published_formats import picture

from trainables.data import build_dataset


@pytest.fixture
def build(tmp_path):
    return lambda root, **knobs: build_dataset("image_folder", root=root, cache_dir=tmp_path / "cache", **knobs)


@pytest.fixture
def parts(tmp_path):
    for part, names in (("train", "cow dog eel"), ("Val", "cow emu"), ("test", "ant bee fox")):
        for name in names.split():
            picture(tmp_path / "parts" / part / name / f"{part}.png", len(name))
            picture(tmp_path / "parts" / part / name / "1.png", ord(name[0]))
    (tmp_path / "parts" / "__MACOSX" / "train" / "cow").mkdir(parents=True)
    (tmp_path / "parts" / "__MACOSX" / "train" / "cow" / "._1.png").touch()
    return tmp_path / "parts"


def test_folders_for_training_and_testing_split_the_classes(parts, build, tmp_path):
    data = build(root=parts)
    assert data.check() == []
    pictures = data.prepare()
    assert pictures.class_names == ("ant", "bee", "cow", "dog", "eel", "emu", "fox")
    assert pictures.test_classes == (0, 1, 6)
    assert np.bincount(pictures.labels).tolist() == [2, 2, 4, 2, 2, 2, 2]  # the cow is in train and in Val
    assert "The folders split the classes: 4 for training and validation, 3 for testing" in data.passed_over()
    lines = [f"{name} {'test' if name in ('emu', 'fox') else 'train'}" for name in pictures.class_names]
    (tmp_path / "split.txt").write_text("\n".join(lines))
    split = build(root=parts, split_file=str(tmp_path / "split.txt"))
    assert split.listed().test_classes == (5, 6)
    assert split.digest() != data.digest()


def test_a_single_class_beside_an_empty_folder_for_testing_is_named(build, tmp_path):
    (tmp_path / "cut" / "test" / "cow").mkdir(parents=True)
    picture(tmp_path / "cut" / "train" / "ant" / "0.png", 0)
    (problem,) = build(root=tmp_path / "cut").check()
    assert (problem.rule, problem.value) == ("at least 2 classes are needed", "only 'ant'")


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_without_any_picture_is_refused(build, tmp_path, part):
    for name in ("ant", "bee"):
        picture(tmp_path / "cut" / {"train": "test", "test": "train"}[part] / name / "0.png", 0)
    (tmp_path / "cut" / part / "cow").mkdir(parents=True)
    (problem,) = build(root=tmp_path / "cut").check()
    assert problem.rule == "the folders for training and for testing must both hold pictures"


def test_parts_with_the_same_classes_or_of_other_names_are_refused(parts, build):
    (parts / "test" / "ant").rename(parts / "test" / "dog")
    (problem,) = build(root=parts).check()
    assert problem.rule == "classes for testing must not be trained on, but these lie in both parts"
    assert "dog" in problem.value
    assert problem.remedy == f"Give {parts / 'train'}: the second half of its classes is then for testing."
    (parts / "test").rename(parts / "gallery")
    (problem,) = build(root=parts).check()
    assert problem.rule == "holds the parts of a split, where the folders of the classes are expected"
    assert problem.remedy.startswith("Name the parts train and test, or")


def test_a_part_without_folders_of_classes_is_refused(parts, build):
    shutil.rmtree(parts / "test")
    picture(parts / "test" / "0.png", 0)
    (problem,) = build(root=parts).check()
    assert (problem.rule, problem.value) == ("pictures of a part must lie in one folder a class", "test")
    assert problem.remedy == f"Give {parts / 'train'} alone, or sort the others into classes."


@pytest.mark.parametrize("names", [("train", "test"), ("images",)])
def test_a_table_beside_folders_of_pictures_without_classes_is_named(build, tmp_path, names):
    """Pictures for training and for testing passed for two classes."""
    for name in names:
        picture(tmp_path / "listed" / name / "0.png", 0)
    (tmp_path / "listed" / "train.csv").touch()
    (problem,) = build(root=tmp_path / "listed").check()
    assert problem.remedy.endswith(f"Or give the table {tmp_path / 'listed' / 'train.csv'}.")


@pytest.mark.parametrize("above", ["data/data", "data/train", "data"])
def test_classes_some_folders_below_the_root_are_found(build, tmp_path, above):
    for name in ("ant", "bee"):
        picture(tmp_path / "unpacked" / above / name / "0.png", 0)
    (tmp_path / "unpacked" / "__MACOSX").mkdir()
    (problem,) = build(root=tmp_path / "unpacked").check()
    assert problem.remedy.startswith(f"If the folders in it are the classes, give {tmp_path / 'unpacked' / above}. ")


def test_lists_of_a_published_set_name_its_data_set(build, tmp_path):
    root = fixtures.cub(tmp_path / "CUB 200")
    (problem,) = build(root=root).check()
    assert problem.remedy == f"It holds the lists of cub200: use --dataset cub200 --data-root '{root}'."
    products = fixtures.sop(tmp_path / "products")
    picture(products / "chair_final" / "0.png", 0)
    assert (
        "the folder holds the lists of sop: --dataset sop reads its own classes"
        in build(root=products).passed_over()[0]
    )


def test_classes_may_bear_the_names_of_parts(build, tmp_path):
    for part in ("train", "test"):
        picture(tmp_path / "classes" / part / "0.png", 0)
        picture(tmp_path / "classes" / part / "deep" / "1.png", 1)
    data = build(root=tmp_path / "classes")
    assert data.check() == []
    assert data.listed().class_names == ("test", "train")
