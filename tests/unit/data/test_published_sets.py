"""CUB, Cars, SOP and In-Shop, from small copies in exactly the published formats."""

import tarfile
import zipfile

import numpy as np
import pytest
from helpers import published_formats as fixtures
from PIL import Image

from trainables.data.formats.cache import RaggedImages
from trainables.data.formats.picture_files import _keep_extras
from trainables.tasks.splits import class_disjoint_split


def _text(problems):
    return "\n".join(map(str, problems))


def test_cub_is_read_from_its_folder_or_its_parent(build, tmp_path):
    fixtures.cub(tmp_path / "data" / "CUB_200_2011")
    pictures = build("cub200", tmp_path / "data").prepare()
    assert pictures.digest == build("cub200", tmp_path / "data" / "CUB_200_2011").prepare().digest
    assert pictures.class_names[0] == "001.Bird_1"
    assert pictures.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert pictures.test_classes == (2, 3)
    assert isinstance(pictures.images, RaggedImages)
    assert pictures.images[0].shape == (16, 24, 3)  # 40 x 26, shorter side 16
    assert (pictures.images[0] == pictures.images[0][..., :1]).all()  # the grey picture
    assert any("12 images (published: 11788)" in note for note in pictures.notes)


def test_stored_pictures_are_the_resized_originals(build, tmp_path):
    root = fixtures.cub(tmp_path / "birds")
    pictures = build("cub200", root).prepare()
    with Image.open(root / "images/001.Bird_1/Bird_1_0001.jpg") as image:
        expected = image.convert("RGB").resize((24, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(pictures.images[1], np.asarray(expected))
    whole = build("cub200", root, shorter_side=None).prepare()
    assert whole.images[1].shape == (26, 40, 3)
    assert whole.digest != pictures.digest


def test_identity_60_counts_are_those_of_the_papers():
    published = {
        "cub200": {"train_images": 5864, "test_images": 5924, "train_classes": 100, "test_classes": 100},
        "cars196": {"train_images": 8054, "test_images": 8131, "train_classes": 98, "test_classes": 98},
        "sop": {"train_images": 59551, "test_images": 60502, "train_classes": 11318, "test_classes": 11316},
        "inshop": {
            "train_images": 25882,
            "query": 14218,
            "gallery": 12612,
            "train_classes": 3997,
            "test_classes": 3985,
        },
    }
    from trainables.data import DATASETS

    for name, figures in published.items():
        expected = DATASETS[name].expected
        assert {key: expected[key] for key in figures} == figures
        halves = expected["train_images"] + expected.get(
            "test_images", expected.get("query", 0) + expected.get("gallery", 0)
        )
        assert expected["images"] == halves
        assert expected["classes"] == expected["train_classes"] + expected["test_classes"]


@pytest.mark.parametrize("kind", ["original", "devkit", "by_class"])
def test_cars_three_layouts_one_split(build, tmp_path, kind):
    root = getattr(fixtures, f"cars_{kind}")(tmp_path / "cars")
    pictures = build("cars196", root).prepare()
    assert pictures.class_names == tuple(fixtures.CARS)
    assert pictures.test_classes == (2, 3)
    assert np.bincount(pictures.labels).tolist() == [2, 2, 2, 2]
    expected = [0, 0, 1, 1, 2, 2, 3, 3] if kind == "original" else [0, 1, 2, 3, 0, 1, 2, 3]
    assert pictures.labels.tolist() == expected


def test_sop_halves_come_from_the_two_lists(build, tmp_path):
    root = fixtures.sop(tmp_path / "Stanford_Online_Products")
    pictures = build("sop", tmp_path).prepare()
    assert pictures.class_names == ("1", "2", "3", "4", "5")
    assert pictures.test_classes == (3, 4)
    assert pictures.extras["super_labels"].tolist() == [1, 1, 0, 0, 1, 1, 0, 0, 1, 1]
    text = (root / "Ebay_test.txt").read_text().replace(" 4 1 ", " 3 1 ")
    (root / "Ebay_test.txt").write_text(text)
    assert "in both Ebay_train.txt and Ebay_test.txt, but 1 are (given: '3')" in _text(build("sop", root).check())


@pytest.mark.parametrize("lists", ["", "Eval"])
def test_inshop_matches_queries_against_the_gallery(build, tmp_path, lists):
    root = fixtures.inshop(tmp_path / "inshop", lists)
    pictures = build("inshop", root).prepare()
    query, gallery = pictures.extras["query"], pictures.extras["gallery"]
    assert not set(query) & set(gallery)
    assert pictures.test_classes == (2, 3)
    split = class_disjoint_split(pictures.labels, pictures.test_classes, seed=0, protocol="paper_test_selection")
    assert np.array_equal(np.sort(np.concatenate([query, gallery])), split.test)
    assert set(pictures.labels[query]) == set(pictures.labels[gallery])


def test_a_downloaded_archive_is_checked_unpacked_once_and_read(build, tmp_path):
    root = fixtures.cub(tmp_path / "CUB_200_2011")
    archive = tmp_path / "CUB_200_2011.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(root, "CUB_200_2011")
    from_folder, from_archive = build("cub200", root), build("cub200", archive)
    assert from_archive.prepare().digest == from_folder.prepare().digest
    assert len(list((tmp_path / "cache" / "unpacked").glob("CUB*"))) == 1
    assert build("cub200", archive).verify() == []  # not strict
    assert build("cub200", archive).checksums() == {"CUB_200_2011.tgz": "differs"}
    problems = build("cub200", archive, strict=True).verify()
    assert "the MD5 must be 97eceeb196236b17998738112f37df78" in _text(problems)


def test_a_zip_archive_works_too(build, tmp_path):
    root = fixtures.sop(tmp_path / "Stanford_Online_Products")
    with zipfile.ZipFile(tmp_path / "products.zip", "w") as archive:
        for path in sorted(root.rglob("*")):
            archive.write(path, path.relative_to(tmp_path))
    assert build("sop", tmp_path / "products.zip").prepare().digest == build("sop", root).prepare().digest


def test_left_out_pictures_are_renumbered_in_every_index():
    extras = {
        "query": np.array([0, 3]),
        "gallery": np.array([1, 2, 4]),
        "pairs": np.array([[0, 1], [2, 3], [3, 4]]),
        "same": np.array([True, False, True]),
        "super_labels": np.array([9, 8, 7, 6, 5]),
    }
    kept = _keep_extras(extras, np.array([0, 1, 3, 4]), 5)
    assert kept["query"].tolist() == [0, 2]
    assert kept["gallery"].tolist() == [1, 3]
    assert kept["pairs"].tolist() == [[0, 1], [2, 3]]
    assert kept["same"].tolist() == [True, True]
    assert kept["super_labels"].tolist() == [9, 8, 6, 5]
