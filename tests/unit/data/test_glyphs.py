"""The glyph data set: deterministic, with distinct classes, and a clear error without fonts."""

import numpy as np
import pytest

from trainables.data import build_dataset, glyphs
from trainables.data.glyphs import _installed_faces
from trainables.errors import DataError


@pytest.fixture(scope="module")
def pictures(cache_dir):
    return build_dataset("glyphs", cache_dir=cache_dir).prepare()


def test_every_class_has_as_many_pictures_as_faces_and_none_is_blank_or_full(pictures):
    assert pictures.images.shape == (len(pictures.class_names) * 20, 24, 24, 1)
    assert pictures.images.dtype == np.uint8
    assert set(np.bincount(pictures.labels)) == {20}
    assert 500 < len(pictures.class_names) < 700
    ink = pictures.images.reshape(len(pictures), -1).mean(axis=1)
    assert ink.min() > 0.2
    assert ink.max() < 200


def test_characters_of_one_drawing_are_one_class(pictures):
    characters = {name[-1] for name in pictures.class_names}
    assert {"A", "B", "o", "5", "Ж", "é", "&"} <= characters
    for kept, twin in ["AА", "AΑ", "oо", "pр", "BВ", "cс"]:  # Latin, then its Cyrillic or Greek twin
        assert kept in characters
        assert twin not in characters


@pytest.mark.slow
def test_different_classes_never_share_most_of_their_pictures(pictures):
    flat = pictures.images.reshape(len(pictures), -1)
    _, groups = np.unique(flat, axis=0, return_inverse=True)
    shared = {}
    for label, group in zip(pictures.labels.tolist(), groups.ravel().tolist(), strict=True):
        shared.setdefault(group, set()).add(label)
    clashes = {}
    for labels in shared.values():
        for a in labels:
            for b in labels - {a}:
                clashes[a, b] = clashes.get((a, b), 0) + 1
    assert max(clashes.values(), default=0) < 0.34 * 20


@pytest.mark.slow
def test_rendering_twice_gives_the_same_bytes(pictures, tmp_path):
    small = {"size": 16, "faces": 25}
    first = build_dataset("glyphs", cache_dir=tmp_path / "a", **small).prepare()
    second = build_dataset("glyphs", cache_dir=tmp_path / "b", **small).prepare()
    assert first.digest == second.digest != pictures.digest
    assert np.array_equal(first.images, second.images)
    assert first.class_names == second.class_names
    assert first.test_classes == second.test_classes


def test_half_of_the_classes_test_in_each_script_and_stay_so_when_others_are_added(pictures):
    names = np.array(pictures.class_names)
    test = set(pictures.test_classes)
    assert len(test) == len(names) // 2
    for half in (test, set(range(len(names))) - test):
        points = [int(names[c][2:6], 16) for c in half]
        assert sum(p < 0x250 for p in points) > 20
        assert sum(0x400 <= p < 0x530 for p in points) > 20
    data = build_dataset("glyphs")
    names = [f"U+{i:04X}" for i in range(40)]
    order = {names[c] for c in data.test_classes(names)}
    shuffled = names[::-1]
    assert {shuffled[c] for c in data.test_classes(shuffled)} == order


def test_missing_fonts_name_the_package_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(glyphs, "_installed_faces", lambda: _installed_faces()[:3])
    data = build_dataset("glyphs", cache_dir=tmp_path)
    with pytest.raises(DataError, match=r"3 families.*pip install 'tune-dml\[demo\]'.*faces=3"):
        data.prepare()
    assert not list(tmp_path.glob("glyphs-*"))
