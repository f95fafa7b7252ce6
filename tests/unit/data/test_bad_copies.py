"""Incomplete and damaged copies of data sets: each is named with its place and remedy."""

import errno
import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from helpers import published_formats as fixtures
from PIL import Image

from trainables.data import build_dataset
from trainables.data.formats import cache
from trainables.errors import DataError


def _text(problems):
    return "\n".join(map(str, problems))


def test_a_half_extracted_archive_names_whole_folders_and_single_pictures(build, tmp_path):
    root = fixtures.cub(tmp_path / "birds", classes=4, each=3)
    for picture in (root / "images/004.Bird_4").iterdir():
        picture.unlink()
    (root / "images/002.Bird_2/Bird_2_0001.jpg").unlink()
    (problem,) = build("cub200", root).check()
    assert problem.rule == "4 listed pictures are missing, in 2 of 4 folders"
    assert "all of images/004.Bird_4;" in str(problem.value)
    assert "1 of the 3 in images/002.Bird_2: images/002.Bird_2/Bird_2_0001.jpg" in str(problem.value)
    assert "Extract the whole archive again" in problem.remedy


def test_a_wrong_root_is_reported_with_its_contents_and_archives(build, tmp_path):
    (tmp_path / "birds" / "images").mkdir(parents=True)
    (problem,) = build("cub200", tmp_path / "birds").check()
    assert problem.value == "a folder with images/"
    (tmp_path / "birds" / "CUB_200_2011.tgz").write_bytes(b"")
    (problem,) = build("cub200", tmp_path / "birds").check()
    assert str(tmp_path / "birds" / "CUB_200_2011.tgz") in problem.remedy
    (tmp_path / "car_ims.tgz").write_bytes(b"")
    (problem,) = build("cars196", tmp_path / "car_ims.tgz").check()
    assert "cars_annos.mat" in problem.remedy


def test_a_root_inside_the_data_set_names_the_folder_above(build, tmp_path):
    root = fixtures.cub(tmp_path / "CUB_200_2011", classes=4, each=3)
    for inside in (root / "images", root / "images" / "002.Bird_2"):
        (problem,) = build("cub200", inside).check()
        assert problem.remedy == f"Pass the folder above, {root}."
    root.rename(tmp_path / "birds")
    (problem,) = build("cub200", tmp_path).check()
    assert problem.remedy == f"Pass the folder below, {tmp_path / 'birds'}."
    fixtures.inshop(tmp_path / "clothes" / "In-shop Clothes Retrieval Benchmark", "Eval")
    (problem,) = build("inshop", tmp_path / "clothes").check()
    assert problem.remedy.endswith("/clothes/In-shop Clothes Retrieval Benchmark.")


def test_lists_and_pictures_apart_name_the_folder_that_holds_both(build, tmp_path):
    cars, clothes = tmp_path / "cars", tmp_path / "clothes"
    for name in ("devkit/cars_train_annos.mat", "cars_annos.mat", "car_ims/000001.jpg"):
        (cars / name).parent.mkdir(parents=True, exist_ok=True)
        (cars / name).touch()
    for folder in ("Eval", "img"):
        (clothes / folder).mkdir(parents=True)
    (clothes / "Eval" / "list_eval_partition.txt").write_text("0\nimage_name item_id evaluation_status\n")
    inside = [("cars196", cars / name) for name in ("devkit", "car_ims", "cars_annos.mat")]
    for name, root in [*inside, ("inshop", clothes / "Eval"), ("inshop", clothes / "img")]:
        (problem,) = build(name, root).check()
        assert problem.remedy == f"Pass the folder above, {root.parent}."


def test_verify_decodes_records_folders_distractors_and_verification_files(tmp_path):
    def problems(name, root, **knobs):
        return build_dataset(name, root=root, cache_dir=tmp_path / "cache", **knobs).verify()

    root = fixtures.webface(tmp_path / "faces")
    whole = (root / "train.rec").read_bytes()
    start = whole.index(fixtures.jpeg(3))
    (root / "train.rec").write_bytes(whole[:start] + b"\0" * 40 + whole[start + 40 :])
    assert [p.place for p in problems("webface", root)] == [f"{root}/train.rec[3]"]
    assert problems("webface", root, skip_corrupt=True) == []
    for name in ("webface", "distractors"):
        folder = tmp_path / name
        for i in range(4):
            fixtures.picture(folder / str(i % 2) / f"{i}.jpg", i)
        (folder / "1" / "3.jpg").write_bytes(b"x")
        assert [p.place for p in problems(name, folder)] == [str(folder / "1" / "3.jpg")]
    encoded = fixtures.face_bin(tmp_path / "agedb_30.bin", pairs=10)
    encoded[5] = encoded[5][:200]
    (tmp_path / "agedb_30.bin").write_bytes(pickle.dumps((encoded, [True] * 10)))
    (problem,) = problems("agedb30", tmp_path, strict=False)
    assert problem.place == f"{tmp_path}/agedb_30.bin[5]"
    assert problem.remedy == "Download the file again."  # there is nothing to leave out of a list of pairs
    with pytest.raises(DataError, match=r"agedb_30\.bin\[5\]"):
        build_dataset("agedb30", root=tmp_path, cache_dir=tmp_path / "cache", strict=False).prepare()


def test_verify_counts_pictures_and_reports_its_progress(build, tmp_path):
    told, data = [], build("cub200", fixtures.cub(tmp_path / "birds"))
    assert data.verify(lambda done, total: told.append((done, total))) == []
    assert told[-1] == (12, 12)
    halves = {"train_images": 6, "train_classes": 2, "test_images": 6, "test_classes": 2}
    assert data.counts() == {"images": 12, "classes": 4, **halves}


def test_published_lists_are_identified_by_their_digest(build, tmp_path):
    root = fixtures.cars_original(tmp_path / "cars")
    assert build("cars196", root).checksums() == {"cars_annos.mat": "differs"}
    assert "must be b407c6086d669747186bd1d764ff9dbc" in _text(build("cars196", root, strict=True).verify())
    faces = fixtures.lfw(tmp_path / "lfw")
    assert build("lfw", faces).checksums() == {"pairs.txt": "differs"}


def test_cars_of_mirrors_with_doubled_folders_and_torchvisions_folder_are_read(build, tmp_path):
    root = fixtures.cars_devkit(tmp_path / "stanford_cars")
    digest_of_pixels = build("cars196", tmp_path).prepare().images.pixels.sum()
    for part in ("cars_train", "cars_test"):
        (root / part).rename(root / "moved")
        (root / part).mkdir()
        (root / "moved").rename(root / part / part)
    assert build("cars196", root).prepare().images.pixels.sum() == digest_of_pixels


def test_inshop_pictures_are_found_beside_the_lists_or_in_img(build, tmp_path):
    root = fixtures.inshop(tmp_path / "shop", lists="Eval")
    (root / "Img").mkdir()
    (root / "img").rename(root / "Img" / "img")
    assert build("inshop", root).check() == []
    (root / "Img" / "img").rename(root / "img_highres")
    assert "data.pictures=img_highres" in _text(build("inshop", root).check())
    assert build("inshop", root, pictures="img_highres").check() == []


@pytest.mark.parametrize(("lists", "pictures"), [("eval", "IMG"), ("Anno", "Img/img/img"), ("", "img/img")])
def test_inshop_folders_of_any_case_and_doubled_ones_are_read(build, tmp_path, lists, pictures):
    root = fixtures.inshop(tmp_path / "clothes", lists)
    (root / "img").rename(tmp_path / "pictures")
    (root / pictures).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / "pictures").rename(root / pictures)
    data = build("inshop", root)
    assert data.check() == []
    assert data.listing.names[0] == f"{pictures}/WOMEN/Dresses/id_00000001/00_1_front.jpg"


def test_webface_is_found_below_its_root_and_parts_of_it_are_named(tmp_path):
    def checked(root):
        return build_dataset("webface", root=root, cache_dir=tmp_path / "cache").check()

    root = fixtures.webface(tmp_path / "zoo" / "faces_webface_112x112")
    assert checked(tmp_path / "zoo") == []
    assert checked(root / "train.rec") == []
    (root / "train.rec").unlink()
    assert "missing: train.rec" in _text(checked(root))


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r\n\r\n"])
def test_pairs_files_are_found_with_any_line_ends(build, tmp_path, ending):
    folder = fixtures.lfw(tmp_path / "data")
    lines = (folder / "pairs.txt").read_text().splitlines()
    (folder / "pairs.txt").write_bytes(("\ufeff" + ending.join(lines) + ending).encode())
    whole = build("lfw", folder)
    assert whole.check() == []
    assert len(whole.listing.extras["pairs"]) == 8
    beside = build("lfw", folder / "lfw_funneled")
    assert beside.check() == []
    assert np.array_equal(beside.listing.extras["pairs"], whole.listing.extras["pairs"])
    (folder / "pairs.txt").unlink()
    assert "must hold pairs.txt, or lie beside it" in _text(build("lfw", folder).check())


def test_links_to_themselves_are_named_and_passed_over_beside_the_classes(tmp_path):
    root = fixtures.image_folder(tmp_path / "mine")
    (root / "class0" / "self.png").symlink_to("self.png")
    (root / "self").symlink_to("self")
    data = build_dataset("image_folder", root=root, cache_dir=tmp_path / "cache", size=16)
    (problem,) = data.check()
    assert problem.place == str(root / "class0" / "self.png")
    assert "symbolic links" in str(problem.value)
    assert data.passed_over() == ["links that lead nowhere were passed over (1): self"]


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_too_small_for_the_decoded_pictures_is_reported(tmp_path, monkeypatch):
    cache.create_images(tmp_path, (3, 16, 16, 1))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(cache.DiskFull, match="TUNE_DML_CACHE"):
        cache.select_images(tmp_path, np.arange(2))
    with pytest.raises(cache.DiskFull, match=r"need 1\.0 MiB on its disk, and 64\.0 MiB must stay free.*TUNE_DML"):
        cache.create_images(tmp_path, (1, 1024, 1024, 1))


def test_a_disk_that_fills_while_writing_is_reported_and_cleaned(tmp_path, monkeypatch):
    def half(directory):
        (directory / "half").write_text("x")
        full()

    with pytest.raises(cache.DiskFull, match="the disk of the cache is full"):
        cache.build_once(tmp_path / "c" / "birds", half, complete=Path.is_dir)
    assert [path.name for path in (tmp_path / "c").iterdir()] == [".birds.lock"]
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"the cache directory must be writable.*No space left"):
        cache.write_text(tmp_path / "index.json", "{}")


def test_python_2_pickles_of_faces_are_read(build, tmp_path):
    """Strings of Python 2 are bytes: opcodes U (short) and T (long)."""
    encoded = [fixtures.jpeg(i) for i in range(20)]
    body = b"".join(b"T" + len(item).to_bytes(4, "little") + item for item in encoded)
    same = b"".join(b"\x88" if i % 2 else b"\x89" for i in range(10))
    (tmp_path / "lfw.bin").write_bytes(b"\x80\x02](" + body + b"e](" + same + b"e\x86.")
    data = build_dataset("lfw_bin", root=tmp_path, cache_dir=tmp_path / "cache", strict=False)
    assert data.verify() == []
    pictures = data.prepare()
    assert np.array_equal(pictures.images[3], np.asarray(Image.open(io.BytesIO(encoded[3]))))
    assert pictures.extras["same"].tolist() == [False, True] * 5


def test_corrupt_pictures_are_named_with_a_reason_or_skipped_with_a_note(build, tmp_path):
    root = fixtures.cub(tmp_path / "birds")
    empty, text, cut = (root / "images" / name for name in (f"001.Bird_1/Bird_1_000{i}.jpg" for i in (0, 1, 2)))
    empty.write_bytes(b"")
    text.write_bytes(b"not a picture")
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    assert build("cub200", root).check() == []  # cheap: only that files are there
    problems = build("cub200", root).verify()
    assert [p.place for p in problems] == [str(path) for path in (empty, text, cut)]
    assert [p.value for p in problems[:2]] == ["the file is empty", "no picture in a known format"]
    assert all("--skip-corrupt" in p.remedy and "data.skip_corrupt=true" in p.remedy for p in problems)
    with pytest.raises(DataError, match=str(empty)) as error:
        build("cub200", root).prepare()
    assert len(error.value.problems) == 3
    skipping = build("cub200", root, skip_corrupt=True)
    assert skipping.verify() == []
    assert len(skipping.unreadable) == 3
    pictures = skipping.prepare()
    assert pictures.labels.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert any("pictures that cannot be decoded were left out (3)" in note for note in pictures.notes)
