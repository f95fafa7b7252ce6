"""Wrong lists, archives and pickles are named with their place and a remedy."""

import io
import os
import pickle
import shutil
import struct
import tarfile
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers import published_formats as fixtures
from scipy.io import savemat

from trainables.data import build_dataset
from trainables.data.formats.archives import unpack
from trainables.data.formats.safe_pickle import load_pickle
from trainables.errors import DataError


def gone(file):
    return lambda root: (root / file).unlink()


def replaced(file, old, new, count=-1):
    def damage(root):
        text = (root / file).read_text()
        assert old in text
        (root / file).write_text(text.replace(old, new, count))

    return damage


def content(file, value):
    """Write a file with this text, these bytes, or the pickle of this object."""
    raw = value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else pickle.dumps(value)
    return lambda root: (root / file).write_bytes(raw)


def first_half(file):
    return lambda root: (root / file).write_bytes((root / file).read_bytes()[: (root / file).stat().st_size // 2])


def appended(file, line):
    return lambda root: (root / file).write_text((root / file).read_text() + line)


def emptied(*files):
    return lambda root: [(root / file).write_text("") for file in files]


def pairs(name, count):
    def make(folder):
        fixtures.face_bin(folder / name, pairs=count)
        return folder

    return make


def empty(folder):
    folder.mkdir()
    return folder


def beside_other_pictures(folder):
    """Return an archive in a folder of pictures that are not its own."""
    fixtures.image_folder(folder)
    (folder / "faces_webface_112x112.zip").write_bytes(b"PK")
    return folder / "faces_webface_112x112.zip"


def without_names(root):
    savemat(root / "devkit" / "cars_meta.mat", {"x": 1})


def archived(root):
    shutil.rmtree(root / "lfw_funneled")
    (root / "lfw.tgz").touch()


def grouped(folder):
    for name in ("train/ann", "train/bee", "val/ann"):
        fixtures.picture(folder / name / "0.jpg", 0)
    return folder


def labelled(value):
    """Give the first picture of train.rec this label."""

    def damage(root):
        records, head = (root / "train.rec").read_bytes(), "<IfQQ"
        old, new = (struct.pack(head, 0, float(label), 1, 0) for label in (0, value))
        assert records.count(old) == 1
        (root / "train.rec").write_bytes(records.replace(old, new))

    return damage


def nothing(root):
    """Leave the copy as it is."""


BATCH = {"data": np.zeros((2, 3072), np.uint8), "labels": [1, 10]}
HALVES = {"data": np.full((2, 3072), 0.5), "labels": [1, 2]}
FEW = {"data": np.zeros((2, 3072), np.uint8), "fine_labels": [1, 2], "coarse_labels": [3]}
SHORT = {"data": np.zeros((2, 30), np.uint8), "labels": [1, 2]}
OUTSIDE = replaced("images.txt", "001.Bird_1/Bird_1_0000.jpg", "../../outside.jpg")
BLANK_LINE = replaced("pairs.txt", "2\t2\nAnn_Bee\t1\t2", "2\t2\n\nAnn_Bee 1 2")
NOT_LENIENT = {"image_folder", "webface", "distractors"}
LATIN_1 = content("names.csv", "\n".join(["Citroën C3", *fixtures.CARS[1:]]).encode("latin-1"))
INSHOP_LIST, HEAD = "list_eval_partition.txt", "image_id class_id super_class_id path\n"
NO_GALLERY = replaced(INSHOP_LIST, "gallery", "query")
COPIED = replaced("images.txt", "001.Bird_1/Bird_1_0001.jpg", "004.Bird_4/Bird_4_0001.jpg")
ELEVEN, PROBES, BOTH_HALVES = (
    replaced(INSHOP_LIST, *change)
    for change in (("10\n", "11\n", 1), ("query", "probe"), ("id_00000009    gallery", "id_00000001    gallery"))
)
COPIES = {
    **{name: getattr(fixtures, name) for name in ("sop", "inshop", "lfw", "cifar10", "cifar100", "webface")},
    **{"cub200": fixtures.cub, "cars196": fixtures.cars_by_class, "devkit": fixtures.cars_devkit},
}
MISSING = [
    *(("cub200", "image_class_labels.txt"), ("cub200", "classes.txt"), ("sop", "Ebay_test.txt")),
    *(("cars196", "anno_test.csv"), ("cars196", "names.csv"), ("devkit", "devkit/cars_meta.mat")),
    *(("inshop", INSHOP_LIST), ("lfw", "pairs.txt"), ("cifar10", "data_batch_3")),
    *(("webface", "train.rec"), ("webface", "train.idx")),
]
WRONG = {
    "cub200": [
        (gone("images/002.Bird_2/Bird_2_0001.jpg"), "1 listed pictures ... Bird_2_0001.jpg"),
        (content("image_class_labels.txt", "1 1\n2\n"), "image_class_labels.txt:2"),
        (content("image_class_labels.txt", "1 1\n"), "11 of 12 pictures of images.txt have no class"),
        (appended("classes.txt", "one 001.Bird_1\n"), "must be numbered, but got 'one'"),
        (OUTSIDE, "1 listed pictures are missing"),
        (appended("image_class_labels.txt", "1 4\n"), "image_class_labels.txt ... got '1, 2 times'"),
        (COPIED, "a picture may be listed once, but 1 are repeated"),
        (emptied("images.txt", "image_class_labels.txt"), "the lists name no picture"),
    ],
    "sop": [
        (replaced("Ebay_test.txt", " 4 1 ", " four 1 ", 1), "Ebay_test.txt ... four"),
        (replaced("Ebay_test.txt", " 4 1 ", " 3 1 "), "Ebay_train.txt and Ebay_test.txt, but 1 are ... '3'"),
        (replaced("Ebay_test.txt", HEAD, ""), "Ebay_test.txt:1: must be the head line"),
        (replaced("Ebay_test.txt", "/4_1.JPG", "/1_0.JPG"), "once, but 1 are repeated ... 1_0.JPG"),
    ],
    "cars196": [
        (replaced("anno_test.csv", ",4\n", ",7\n"), "anno_test.csv ... 1 of 4 do not ... [7]"),
        (replaced("anno_test.csv", ",4\n", ",²\n"), "anno_test.csv:4 ... class number"),
        (LATIN_1, "names.csv: the list must be there and readable ... 'utf-8'"),
    ],
    "devkit": [(without_names, "cars_meta.mat: must hold class_names, but got ['x']. Get it")],
    "inshop": [
        (PROBES, "must be train, query or gallery"),
        (ELEVEN, "declares 11 pictures, but got 10"),
        (BOTH_HALVES, "in both train and query or gallery"),
        (replaced(INSHOP_LIST, "10\n", "", 1), "txt:2: must be the head line ... image_name"),
        (NO_GALLERY, "no query has a gallery picture of its item ... 5 queries, 0 in the gallery"),
    ],
    "lfw": [
        (appended("pairs.txt", "Ann_Bee\t1\t2\n"), "line 1 declares 8 pairs, but got 9"),
        (replaced("pairs.txt", "Cy_Dee\t1\t2", "Cy_Dee\t1\t7"), "1 pictures of pairs ... Cy_Dee_0007 ... Extract"),
        (archived, "the folders of the people ... Pass the archive itself"),
        (content("pairs.txt", "2\t2\nAnn_Bee\tone\t2\n"), "pairs.txt:2"),
        (BLANK_LINE, "pairs.txt:3: must have 3 or 4 columns, separated by tabs"),
    ],
    "cifar10": [
        (content("data_batch_3", BATCH), "one label below 10 for each picture"),
        (content("data_batch_3", SHORT), "must hold 'data' (N, 3072)"),
        (content("data_batch_3", HALVES), "'data' must be uint8 ... float64 and int64"),
        (content("batches.meta", ["ant"]), "must hold the list 'label_names', but got 'list'"),
    ],
    "cifar100": [(content("test", FEW), "one of 'coarse_labels' for each picture ... (2, 1)")],
    "webface": [
        (first_half("train.rec"), "to no record"),
        (replaced("train.idx", "3\t", "x\t", 1), "train.idx:4"),
        (content("property", "4,112,112\n"), "declares 4 people, but got 3"),
        (content("property", b"\xff"), "property: must be `classes,height,width`"),
        (content("train.idx", b"\xff\t0\n"), "train.idx:1: must be `key<TAB>byte offset`"),
        *((labelled(label), f"whole numbers, but 1 of 7 are not ... [{label}]") for label in (0.5, "nan")),
    ],
}
WRONG_ROOTS = [
    ("cub200", empty, nothing, "must hold images.txt"),
    ("cub200", lambda folder: folder, nothing, "must exist"),
    ("cars196", partial(fixtures.cars_devkit, labelled=False), nothing, "cars_test_annos_withlabels.mat"),
    *(
        (
            "cars196",
            partial(fixtures.cars_original, numbers=[1, 1, wrong]),
            nothing,
            f"1 .. 4, but 1 of 8 ... [{wrong!r}]",
        )
        for wrong in (0, 1.5, float("nan"), "Audi")
    ),
    ("cars196", empty, nothing, "must hold cars_annos.mat ... an empty folder"),
    ("cars196", empty, content("cars_annos.mat", "not a MATLAB file at all"), "readable MATLAB file"),
    ("sop", lambda folder: fixtures.sop(folder) / "Ebay_train.txt", nothing, "a folder or an archive. Unpack it, or"),
    ("cfp_fp", empty, nothing, "must exist"),
    ("lfw_bin", empty, content("lfw.bin", ([b"x"] * 20, ["False"] * 10)), "must be True or False, but 10 of 10 are"),
    ("lfw_bin", empty, content("lfw.bin", ([b"x"] * 20, 1)), "must be a pair ... ['list', 'int']"),
    ("lfw_bin", empty, content("lfw.bin", ([b"x"] * 5, [True] * 10)), "two pictures for each"),
    ("lfw_bin", empty, content("lfw.bin", (["x", 5] * 10, [True] * 10)), "must be encoded bytes"),
    ("lfw_bin", empty, content("lfw.bin", ([b"x"] * 20, [True] * 10)), "lfw.bin[0] ... must decode"),
    ("webface", grouped, nothing, "holds folders of folders ... train, val ... or put them"),
    ("webface", empty, nothing, "train.rec, train.idx, property, or a folder of pictures"),
    ("webface", beside_other_pictures, nothing, "webface_112x112.zip: must be a folder. Unpack it"),
    ("webface", lambda root: grouped(root / "faces").parent, nothing, "holds folders of folders ... /copy/faces."),
    ("distractors", empty, nothing, "must hold pictures"),
]
WRONG_COPIES = [(name, COPIES[name], *case) for name, cases in WRONG.items() for case in cases]


def built(name, root):
    strict = {} if name in NOT_LENIENT else {"strict": False}
    name = "cars196" if name == "devkit" else name
    return build_dataset(name, root=root, cache_dir=root.parent / "cache", **strict)


@pytest.mark.parametrize(("name", "file"), MISSING)
def test_a_missing_list_is_named_with_a_remedy(name, file, tmp_path):
    root = COPIES[name](tmp_path / "copy")
    gone(file)(root)
    (problem,) = built(name, root).check()
    assert Path(file).name in f"{problem.place} {problem.rule}"
    assert problem.remedy


@pytest.mark.parametrize(("name", "make", "damage", "words"), WRONG_COPIES + WRONG_ROOTS)
def test_problems_of_a_copy_are_named(name, make, damage, words, tmp_path):
    root = make(tmp_path / "copy")
    damage(root)
    data = built(name, root)
    text = "\n".join(map(str, data.check() or data.verify()))
    assert all(word in text for word in words.split(" ... ")), text


@pytest.mark.parametrize(
    ("name", "make", "count", "words"),
    [
        ("cub200", fixtures.cub, 6, "cub200 has 11788 images, but got 12"),
        ("cifar10", fixtures.cifar10, 1, "cifar10 has 60000 images, but got 24"),
        ("cfp_fp", pairs("cfp_fp.bin", 10), 1, "cfp_fp has 7000 pairs, but got 10"),
    ],
)
def test_all_wrong_counts_are_reported_when_strict(name, make, count, words, tmp_path):
    problems = build_dataset(name, root=make(tmp_path / "copy"), cache_dir=tmp_path / "cache").verify()
    assert len(problems) >= count
    assert words in "\n".join(map(str, problems))


def _tar(path, entries, mode="w"):
    with tarfile.open(path, mode) as tar:
        for info, data in entries:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("name", ["../evil.txt", "/evil.txt", "a/../../evil.txt", "..\\evil.txt", "C:/evil.txt"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_escaping_paths_are_refused_before_anything_is_written(tmp_path, name, kind):
    archive, folder = tmp_path / f"a.{kind}", tmp_path / "out"
    folder.mkdir()
    if kind == "tar":
        _tar(archive, [(tarfile.TarInfo("good.txt"), b"1"), (tarfile.TarInfo(name), b"2")])
    else:
        with zipfile.ZipFile(archive, "w") as target:
            target.writestr("good.txt", "1")
            target.writestr(zipfile.ZipInfo(name), "2")
    with pytest.raises(DataError, match="plain file or folder inside"):
        unpack(archive, folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["zip", tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    if kind == "zip":
        entry = zipfile.ZipInfo("link")
        entry.external_attr = 0o120777 << 16
        with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
            archive.writestr(entry, "/etc/passwd")
    else:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc/passwd"
        _tar(tmp_path / "archive", [(info, b"")])
    with pytest.raises(DataError, match="plain file or folder"):
        unpack(tmp_path / "archive", tmp_path)


def test_a_truncated_archive_is_a_data_error(tmp_path):
    _tar(tmp_path / "a.tgz", [(tarfile.TarInfo("c.bin"), os.urandom(100_000))], "w:gz")
    data = (tmp_path / "a.tgz").read_bytes()
    (tmp_path / "a.tgz").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="readable archive"):
        unpack(tmp_path / "a.tgz", tmp_path)


@pytest.mark.parametrize(
    ("position", "value", "message"), [(8, 1, "with the password from its authors"), (10, 9, "readable archive")]
)
def test_a_zip_archive_that_cannot_be_unpacked_is_a_data_error(tmp_path, position, value, message):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("c.txt", "text")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[data.find(b"PK\1\2") + position] = data[data.find(b"PK\3\4") + position - 2] = value
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(DataError, match=message):
        unpack(tmp_path / "a.zip", tmp_path)


def test_an_archive_larger_than_the_disk_is_refused(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", b"\0" * (8 << 20))
    free = shutil.disk_usage(tmp_path)._replace(free=65 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(DataError, match="MiB free"):
        unpack(tmp_path / "a.zip", tmp_path)


class _Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/evil",)


@pytest.mark.parametrize(
    "content",
    [
        *(pickle.dumps({"data": _Evil()}, protocol=protocol) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
        *(
            b"c" + name + b"\n."
            for name in (b"builtins\neval", b"numpy\nload", b"numpy.lib.npyio\nload", b"os\nsystem")
        ),
    ],
)
def test_a_pickle_that_names_more_than_array_makers_is_refused(tmp_path, content):
    path = tmp_path / "batch"
    path.write_bytes(content)
    with pytest.raises(DataError, match="is not allowed"):
        load_pickle(path)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_numbers_text_bytes_and_arrays_are_read(tmp_path, protocol):
    value = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "x": [b"ab", True, 1.5, np.float32(2), "é"]}
    (tmp_path / "batch").write_bytes(pickle.dumps(value, protocol=protocol))
    read = load_pickle(tmp_path / "batch")
    assert np.array_equal(read["data"], value["data"])
    assert read["x"] == value["x"]


def test_a_truncated_pickle_is_a_data_error(tmp_path):
    data = pickle.dumps(list(range(1000)))
    (tmp_path / "batch").write_bytes(data[:100])
    with pytest.raises(DataError, match="plain numbers"):
        load_pickle(tmp_path / "batch")
