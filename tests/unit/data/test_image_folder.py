"""Folders of pictures: all file formats, and all mistakes."""

import errno
import json
import os
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
from helpers.published_formats import picture
from PIL import Image, features

from trainables.data import build_dataset
from trainables.data.formats import files
from trainables.data.formats.decoding import _to_rgb
from trainables.data.formats.files import find_pictures
from trainables.errors import ConfigError, DataError

PARTS = {"ant": "test", "bee": "train", "cow": "train", "dog": "test", "eel": "train"}


@pytest.fixture
def root(tmp_path):
    for c, name in enumerate(["ant", "bee", "cow", "dog", "eel"]):
        for i in range(3):
            picture(tmp_path / "pictures" / name / f"{i}.png", 10 * c + i, (40, 30))
    return tmp_path / "pictures"


@pytest.fixture
def build(root, tmp_path):
    here = {"root": root, "cache_dir": tmp_path / "cache"}
    return lambda **knobs: build_dataset("image_folder", **{**here, **knobs})


def test_classes_are_sorted_the_first_half_trains_and_pixels_are_the_centre(build, root):
    pictures = build(size=16).prepare()
    assert pictures.class_names == ("ant", "bee", "cow", "dog", "eel")
    assert pictures.test_classes == (3, 4)
    assert pictures.images.shape == (15, 16, 16, 3)
    assert pictures.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    pictures = build(size=30).prepare()
    with Image.open(root / "cow" / "1.png") as image:
        expected = np.asarray(image)[:, 5:35]  # 40 x 30: the shorter side fits already
    assert np.array_equal(pictures.images[7], expected)


def test_grey_16_bit_cmyk_palette_and_transparent_pictures_become_rgb():
    ramp = np.linspace(0, 255, 64).astype(np.uint8).reshape(8, 8)
    grey = np.repeat(ramp[..., None], 3, axis=2)
    assert np.array_equal(np.asarray(_to_rgb(Image.fromarray(ramp))), grey)
    assert np.array_equal(np.asarray(_to_rgb(Image.fromarray(ramp.astype(np.uint16) * 257))), grey)
    assert np.array_equal(np.asarray(_to_rgb(Image.fromarray(ramp.astype(np.int32) * 257))), grey)
    assert np.array_equal(np.asarray(_to_rgb(Image.fromarray(ramp).convert("P"))), grey)
    cmyk = Image.fromarray(grey).convert("CMYK")
    assert np.array_equal(np.asarray(_to_rgb(cmyk)), grey)
    clear = Image.fromarray(np.dstack([grey, np.zeros((8, 8), np.uint8)]))
    assert set(np.asarray(_to_rgb(clear)).ravel()) == {255}
    half = Image.fromarray(np.dstack([0 * grey, np.full((8, 8), 128, np.uint8)]))
    assert set(np.asarray(_to_rgb(half)).ravel()) <= {126, 127, 128}


def test_a_split_file_decides_is_part_of_the_identity_and_may_come_from_a_spreadsheet(build, tmp_path, root):
    (tmp_path / "split.json").write_text(json.dumps(PARTS))
    (tmp_path / "split.txt").write_text("# comment\n" + "".join(f"{c}\t{p}\n" for c, p in PARTS.items()))
    by_json = build(size=16, split_file=str(tmp_path / "split.json"))
    by_text = build(size=16, split_file=str(tmp_path / "split.txt"))
    assert by_json.prepare().test_classes == by_text.prepare().test_classes == (0, 3)
    assert by_json.digest() == by_text.digest() != build(size=16).digest()
    (root / "ant").rename(root / normalize("NFD", "ant, rosé"))  # as macOS writes it
    text = "\r\n".join(f"{name},{part}" for name, part in {"ant, rosé": "test", **PARTS}.items() if name != "ant")
    (tmp_path / "split.csv").write_text(text, encoding="utf-8-sig", newline="")
    assert build(split_file=str(tmp_path / "split.csv")).prepare().test_classes == (0, 3)
    words = {"train": "Val", "test": "Testing"}
    lines = ["class;split", *(f"{name};{words[part]}" for name, part in {**PARTS, "ant, rosé": "test"}.items())]
    (tmp_path / "split.csv").write_text("\n".join(line for line in lines if line != "ant;Testing"))
    assert build(split_file=str(tmp_path / "split.csv")).prepare().test_classes == (0, 3)


def test_all_problems_of_a_split_file_are_reported(build, tmp_path):
    parts = {"ant": "test", "bee": "validate", "cow": "train", "dgo": "train"}
    (tmp_path / "split.json").write_text(json.dumps(parts))
    text = "\n".join(map(str, build(split_file=str(tmp_path / "split.json")).check()))
    assert "every class must be 'train' or 'test', but 1 are not (given: 'bee: validate')" in text
    assert "Did you mean 'dog'?" in text
    assert "missing: dog, eel" in text
    (tmp_path / "split.json").write_text(json.dumps(dict.fromkeys(PARTS, "train")))
    (problem,) = build(split_file=str(tmp_path / "split.json")).check()
    assert (problem.rule, problem.value) == ("must name classes for training and classes for testing", "only train")
    assert "readable" in str(build(split_file=str(tmp_path / "absent.json")).check()[0])


def test_a_split_file_that_moved_with_the_pictures_is_found(build, root, tmp_path):
    gone = str(tmp_path / "before" / "split.json")
    assert "Restore it, or put a copy into the folder of the pictures." in str(build(split_file=gone).check()[0])
    (root / "split.json").write_text(json.dumps(PARTS))
    assert build(split_file=gone).prepare().test_classes == (0, 3)


def test_folders_of_folders_are_named(tmp_path):
    def found(groups):
        for name in [f"group{number}/{species}" for number in range(groups) for species in "ab"]:
            picture(tmp_path / "grouped" / name / "0.png", 0)
        return build_dataset("image_folder", root=tmp_path / "grouped", cache_dir=tmp_path / "cache", size=16)

    (problem,) = found(2).check()
    assert problem.rule == "holds 2 folders of folders, where the folders of the classes are expected"
    assert problem.remedy.startswith("If the inner folders are the classes, put them into one folder.")
    assert "Every class folder has folders in it, such as group0/a; these are not separate classes" in (
        found(4).prepare().notes
    )


def test_a_missing_root_a_single_class_and_loose_pictures(tmp_path):
    def problems(root):
        return [str(p) for p in build_dataset("image_folder", root=root, cache_dir=tmp_path / "c").check()]

    assert "must exist" in problems(tmp_path / "absent")[0]
    (tmp_path / "none").mkdir()
    assert "no picture at all" in problems(tmp_path / "none")[0]
    picture(tmp_path / "one" / "ant" / "0.png", 0)
    assert "only 'ant'" in problems(tmp_path / "one")[0]
    for name in ("bee", "cow"):
        picture(tmp_path / "one" / "ant" / name / "0.png", 0)
    assert f"give {tmp_path / 'one' / 'ant'}. Expected" in problems(tmp_path / "one")[0]
    picture(tmp_path / "loose" / "0.png", 0)
    assert "1 lie in the root itself" in problems(tmp_path / "loose")[0]
    with pytest.raises(ConfigError, match="needs root"):
        build_dataset("image_folder")
    with pytest.raises(DataError, match="must exist"):
        build_dataset("image_folder", root=tmp_path / "absent", cache_dir=tmp_path / "c").prepare()


def test_more_than_ten_failures_are_counted_and_no_class_vanishes(build, root):
    for i in range(14):
        (root / "ant" / f"bad{i:02}.png").write_bytes(b"x")
    problems = build().check()
    assert len(problems) == 11
    assert "4 more" in str(problems[-1])
    for i in range(3):
        (root / "dog" / f"{i}.png").write_bytes(b"x")
    assert "no picture that decodes" in str(build(skip_corrupt=True).check()[0])


def test_the_digest_follows_content_and_not_dates(build, root):
    before = build().digest()
    os.utime(root / "ant" / "0.png", (1, 1))
    assert build().digest() == before
    picture(root / "ant" / "0.png", 77)
    changed = build().digest()
    assert changed != before
    (root / "ant" / "0.png").rename(root / "ant" / "z.png")
    assert build().digest() not in (before, changed)
    assert build(size=32).digest() != build(size=33).digest()


def test_a_second_check_reads_no_file(build, monkeypatch):
    build().check()
    first = build().digest()
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail(f"read {self}"))
    assert build().check() == []
    assert build().digest() == first


def test_a_picture_in_several_classes_is_noted(build, root):
    """A copy and a link to a class's folder; two copies within one class are accepted."""
    copy = (root / "ant" / "0.png").read_bytes()
    (root / "bee" / "copy.png").write_bytes(copy)
    (root / "ant" / "copy.png").write_bytes(copy)
    (note,) = build(size=16).prepare().notes
    assert note == "pictures that lie in several classes: 1 (ant/0.png = ant/copy.png = bee/copy.png)"
    (root / "zoo").symlink_to(root / "cow")
    (note,) = build(size=16).prepare().notes
    assert note.startswith(
        "pictures that lie in several classes: 4, 3 of them in a training and a test class (ant/0.png = "
    )
    (root / "ant" / "0.png").write_bytes(b"")
    (root / "bee" / "empty.png").write_bytes(b"")
    assert "classes: 4" in build(size=16, skip_corrupt=True).prepare().notes[0]  # a skipped picture counts as no copy


def test_an_interrupted_build_continues(build, monkeypatch):
    from trainables.data.formats import decoding

    monkeypatch.setattr(decoding, "_CHUNK", 4)
    seen = []

    def stop(done, total):
        seen.append((done, total))
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(size=16).prepare(stop)
    resumed = []
    pictures = build(size=16).prepare(lambda done, total: resumed.append((done, total)))
    assert seen == [(4, 15), (8, 15)]
    assert resumed == [(12, 15), (15, 15)]
    assert all(pictures.images[i].any() for i in range(15))
    assert not (pictures.directory / "done.npy").exists()


def test_files_with_integer_pixels_are_read_and_float_pixels_refused(root, build):
    Image.fromarray(np.full((20, 20), 257 * 77, dtype=np.uint16)).save(root / "ant" / "a.tif")
    for name in ("b.TIFF", "c.gif", "d.ppm", "e.pgm", "h.JPG", "i.jpeg", "j.webp", "k.bmp", "l.jfif"):
        Image.new("L", (20, 20), 77).save(root / "ant" / name)
    if avif := features.check("avif"):
        Image.new("L", (20, 20), 77).save(root / "ant" / "m.avif", lossless=True)
    Image.new("L", (20, 20), 77).save(root / "ant" / "f.jpg", "PNG")  # with another suffix
    Image.new("CMYK", (20, 20), (0, 0, 0, 178)).save(root / "ant" / "g.jpg")
    pictures = build(size=16).prepare()
    assert np.unique(pictures.images[3 : 16 if avif else 15]).tolist() == [77]
    Image.fromarray(np.zeros((20, 20), dtype=np.float32)).save(root / "bee" / "real.tif")
    (problem,) = build(size=16).check()
    assert problem.place.endswith("real.tif")
    assert "whole numbers" in str(problem)


def test_notes_describe_the_folder_and_not_the_cache(root, build):
    assert build(size=16).prepare().notes == ()
    (root / "fox").mkdir()
    (root / "fox" / "0.psd").write_bytes(b"x")
    (root / "ant" / "more").symlink_to(root / "bee")
    (root / "loop").symlink_to("..")
    picture(root / "loose.png", 0)
    (root / "notes.txt").touch()
    assert set(build(size=16).prepare().notes) == {
        "folders without pictures were passed over (1): fox",
        "links to folders were not followed (1): ant/more",
        "links to a folder that holds them were not followed (1): loop",
        "files whose names are not those of pictures were passed over (1): 0.psd",
        "pictures in no class's folder were passed over (1): loose.png",
    }
    for name in ("fox/0.psd", "ant/more", "loop", "loose.png", "notes.txt"):
        (root / name).unlink()
    (root / "fox").rmdir()
    assert build(size=16).prepare().notes == ()


def test_listing_pictures_stats_only_links(root, monkeypatch):
    os.mkfifo(root / "ant" / "pipe.png")  # neither a picture nor a file
    (root / "ant" / "link.png").symlink_to(root / "bee" / "0.png")
    (root / "ant" / "folder.png").symlink_to(root / "bee")
    (root / "ant" / "deep").mkdir()
    picture(root / "ant" / "deep" / "0.JPG", 1, (20, 20))
    monkeypatch.setattr(Path, "stat", None)
    monkeypatch.setattr(os, "stat", None)
    pictures, others = find_pictures(root / "ant")
    names = [path.relative_to(root / "ant").as_posix() for path in pictures]
    assert names == ["0.png", "1.png", "2.png", "deep/0.JPG", "link.png"]
    assert others == [root / "ant" / "folder.png"]


def test_unreadable_files_are_named_or_skipped_until_readable(root, build):
    (root / "ant" / "0.png").rename(root.parent / "elsewhere.png")
    (root / "ant" / "0.png").symlink_to(root / "nowhere.png")
    (problem,) = build(size=16).check()
    assert problem.place == str(root / "ant" / "0.png")
    assert problem.value == "the file cannot be read: No such file or directory"
    assert len(build(size=16, skip_corrupt=True).prepare()) == 14
    (root.parent / "elsewhere.png").rename(root / "nowhere.png")
    assert len(build(size=16).prepare()) == 15


def test_folders_and_files_without_permission_are_named(root, build, monkeypatch):
    listed, read = os.scandir, Path.read_bytes

    def scandir(place):
        if str(place).endswith("bee"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
        return listed(place)

    def read_bytes(self):
        if self.name == "1.png":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return read(self)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        (problem,) = build(size=16).check()
        assert (problem.place, problem.rule) == (str(root / "bee"), "the folder must be readable")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", read_bytes)
        assert len(build(size=16).check()) == 5
        with pytest.raises(DataError, match="the file cannot be read: Permission denied"):
            build(size=16).digest()
    assert build(size=16).check() == []


def test_a_file_that_a_killed_check_could_not_read_is_read_again(build, monkeypatch):
    def read_bytes(self):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    def progress(done, total):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", read_bytes)
        patch.setattr(files, "_SAVE_EVERY", -1.0)  # saves after every file
        with pytest.raises(KeyboardInterrupt):
            build(size=16).verify(progress)
    assert build(size=16).check() == []


def test_names_that_are_not_valid_text_are_reported(root, build):
    os.rename(root / "cow", os.path.join(os.fsencode(root), b"c\xffw"))
    problems = build(size=16).check()
    assert len(problems) == 3
    assert r"c\udcffw/0.png" in problems[0].place
    assert problems[0].rule == "names must be UTF-8"
    str(problems[0]).encode()


@pytest.mark.parametrize("size", [16, 30])
@pytest.mark.parametrize("skip_corrupt", [False, True])
def test_listed_pictures_equal_decoded_pictures(build, root, size, skip_corrupt):
    if skip_corrupt:
        (root / "bee" / "1.png").write_bytes(b"")
    data = build(size=size, skip_corrupt=skip_corrupt)
    listed = data.listed()
    assert not data.is_prepared()
    pictures = data.prepare()
    assert listed.labels.tolist() == pictures.labels.tolist()
    assert (listed.class_names, listed.test_classes) == (pictures.class_names, pictures.test_classes)
    assert (listed.images.shape, listed.images.nbytes) == (pictures.images.shape, pictures.images.nbytes)
    assert (listed.notes, listed.digest) == (pictures.notes, pictures.digest)
    assert len(listed) == 15 - skip_corrupt


@pytest.mark.parametrize("name", ["split.txt", "split.json"])
def test_a_class_in_both_halves_is_refused(build, tmp_path, name):
    rows = [("ant", "train"), ("bee", "train"), ("cow", "test"), ("dog", "test"), ("eel", "test"), ("ant", "test")]
    text = "\n".join(map(" ".join, rows))
    if name.endswith("json"):
        text = "{" + ", ".join(f'"{name}": "{part}"' for name, part in rows) + "}"
    (tmp_path / name).write_text(text)
    (problem,) = build(split_file=str(tmp_path / name)).check()
    assert "class 'ant' is listed in two parts" in problem.value
