"""The user's own pictures: every kind of file, every kind of mistake."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.published_formats import picture
from PIL import Image

from trainables.data import build_dataset
from trainables.data.formats.decoding import _to_rgb
from trainables.errors import ConfigError, DataError


@pytest.fixture
def root(tmp_path):
    for c, name in enumerate(["ant", "bee", "cow", "dog", "eel"]):
        for i in range(3):
            picture(tmp_path / "pictures" / name / f"{i}.png", 10 * c + i, (40, 30))
    return tmp_path / "pictures"


@pytest.fixture
def build(root, tmp_path):
    return lambda **knobs: build_dataset("image_folder", root=root, cache_dir=tmp_path / "cache", **knobs)


def test_classes_are_sorted_and_the_first_half_trains(build):
    pictures = build(size=16).prepare()
    assert pictures.class_names == ("ant", "bee", "cow", "dog", "eel")
    assert pictures.test_classes == (3, 4)
    assert pictures.images.shape == (15, 16, 16, 3)
    assert pictures.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3


def test_pixels_are_the_centre_of_the_resized_picture(build, root):
    pictures = build(size=30).prepare()
    with Image.open(root / "cow" / "1.png") as image:
        expected = np.asarray(image)[:, 5:35]  # 40 x 30: the shorter side fits already
    assert np.array_equal(pictures.images[7], expected)


def test_every_suffix_nested_folders_and_capital_letters_are_found(root, build):
    for i, suffix in enumerate([".JPG", ".jpeg", ".webp", ".bmp"]):
        picture(root / "ant" / "more" / f"x{suffix}", 99 + i)
    (root / "ant" / ".hidden.png").write_bytes(b"")
    (root / "ant" / "readme.txt").write_text("no picture")
    (root / "empty").mkdir()
    pictures = build(size=16).prepare()
    assert np.bincount(pictures.labels).tolist() == [7, 3, 3, 3, 3]
    assert any("readme.txt" in note for note in pictures.notes)
    assert any("empty" in note for note in pictures.notes)


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


def test_orientation_is_applied(root, build):
    drawn = Image.fromarray(np.arange(30 * 20 * 3, dtype=np.uint8).reshape(20, 30, 3))
    exif = drawn.getexif()
    exif[0x0112] = 6
    drawn.save(root / "ant" / "0.png", exif=exif)
    expected = np.asarray(drawn.transpose(Image.Transpose.ROTATE_270))[5:25]
    assert np.array_equal(build(size=20).prepare().images[0], expected)


def test_a_split_file_decides_and_is_part_of_the_identity(build, tmp_path):
    parts = {"ant": "test", "bee": "train", "cow": "train", "dog": "test", "eel": "train"}
    (tmp_path / "split.json").write_text(json.dumps(parts))
    (tmp_path / "split.txt").write_text("# comment\n" + "".join(f"{c}\t{p}\n" for c, p in parts.items()))
    by_json = build(size=16, split_file=str(tmp_path / "split.json"))
    by_text = build(size=16, split_file=str(tmp_path / "split.txt"))
    assert by_json.prepare().test_classes == by_text.prepare().test_classes == (0, 3)
    assert by_json.digest() == by_text.digest() != build(size=16).digest()


def test_everything_wrong_with_a_split_file_is_said(build, tmp_path):
    parts = {"ant": "test", "bee": "validate", "cow": "train", "dgo": "train"}
    (tmp_path / "split.json").write_text(json.dumps(parts))
    problems = build(split_file=str(tmp_path / "split.json")).check()
    text = "\n".join(map(str, problems))
    assert "'bee' must be 'train' or 'test'" in text
    assert "Did you mean 'dog'?" in text
    assert "missing: dog, eel" in text
    assert "readable" in str(build(split_file=str(tmp_path / "absent.json")).check()[0])


def test_a_missing_root_a_single_class_and_loose_pictures(tmp_path):
    def problems(root):
        return [str(p) for p in build_dataset("image_folder", root=root, cache_dir=tmp_path / "c").check()]

    assert "must exist" in problems(tmp_path / "absent")[0]
    (tmp_path / "none").mkdir()
    assert "no picture at all" in problems(tmp_path / "none")[0]
    picture(tmp_path / "one" / "ant" / "0.png", 0)
    assert "only 'ant'" in problems(tmp_path / "one")[0]
    picture(tmp_path / "loose" / "0.png", 0)
    assert "1 lie in the root itself" in problems(tmp_path / "loose")[0]
    with pytest.raises(ConfigError, match="needs root"):
        build_dataset("image_folder")
    with pytest.raises(DataError, match="must exist"):
        build_dataset("image_folder", root=tmp_path / "absent", cache_dir=tmp_path / "c").prepare()


def test_unreadable_pictures_are_all_named(build, root):
    (root / "ant" / "0.png").write_bytes(b"")
    (root / "bee" / "1.png").write_bytes(b"not a picture")
    picture(root / "cow" / "9.jpg", 0)
    whole = (root / "cow" / "9.jpg").read_bytes()
    (root / "cow" / "9.jpg").write_bytes(whole[: len(whole) // 2])
    places = {problem.place for problem in build(size=16).check()}
    assert places == {str(root / name) for name in ("ant/0.png", "bee/1.png", "cow/9.jpg")}
    pictures = build(size=16, skip_corrupt=True).prepare()
    assert np.bincount(pictures.labels).tolist() == [2, 2, 3, 3, 3]
    assert len(pictures.images) == 13
    assert any("3 pictures cannot be decoded" in note and "bee/1.png" in note for note in pictures.notes)


def test_more_than_ten_failures_are_counted(build, root):
    for i in range(14):
        (root / "ant" / f"bad{i:02}.png").write_bytes(b"x")
    problems = build().check()
    assert len(problems) == 11
    assert "4 more" in str(problems[-1])


def test_a_class_that_would_vanish_is_a_problem_even_when_skipping(build, root):
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


def test_a_second_look_reads_no_file(build, monkeypatch):
    build().check()
    first = build().digest()
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail(f"read {self}"))
    assert build().check() == []
    assert build().digest() == first


def test_single_picture_classes_are_noted(build, root):
    picture(root / "fox" / "0.png", 0)
    assert any("1 classes have a single picture" in note and "fox" in note for note in build(size=16).prepare().notes)


def test_an_interrupted_build_goes_on_where_it_stopped(build, monkeypatch):
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
