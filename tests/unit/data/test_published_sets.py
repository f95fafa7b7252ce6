"""CUB, Cars, SOP and In-Shop, from small copies in exactly the published formats."""

import itertools
import pickle
import struct
import tarfile
import zipfile
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import published_formats as fixtures
from PIL import Image

from trainables.data import DATASETS, build_dataset
from trainables.data.formats.cache import RaggedImages
from trainables.data.formats.picture_files import renumber_extras
from trainables.data.formats.record_io import RecordFile
from trainables.errors import ConfigError, DataError
from trainables.tasks.face_benchmarks import _decode_pair, _divide_classes, _draw_pairs, _read_pairs
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


def test_a_copy_unpacked_into_a_folder_of_its_own_name_is_found(build, tmp_path):
    fixtures.sop(tmp_path / "Stanford_Online_Products" / "Stanford_Online_Products")
    assert build("sop", tmp_path).check() == []
    assert "Stanford_Online_Products" not in str(build("sop", tmp_path).listing.names)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_turned_pictures_of_every_kind_are_stored_upright(build, tmp_path, kind, orientation):
    root = fixtures.cub(tmp_path / "birds")
    exif = Image.Exif()
    exif[0x0112] = orientation
    fixtures.draw(1, (40, 26)).save(root / "images/001.Bird_1/Bird_1_0000.jpg", kind, exif=exif)
    data = build("cub200", root, shorter_side=None)
    assert data.verify() == []
    assert data.prepare().images[0].shape == ((40, 26, 3) if orientation > 4 else (26, 40, 3))


PUBLISHED = {
    "cub200": {"train_images": 5864, "test_images": 5924, "train_classes": 100, "test_classes": 100},
    "cars196": {"train_images": 8054, "test_images": 8131, "train_classes": 98, "test_classes": 98},
    "sop": {"train_images": 59551, "test_images": 60502, "train_classes": 11318, "test_classes": 11316},
    "inshop": {"train_images": 25882, "query": 14218, "gallery": 12612, "train_classes": 3997, "test_classes": 3985},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_identity_60_counts_are_those_of_the_papers(name):
    expected = DATASETS[name].expected
    assert {key: expected[key] for key in PUBLISHED[name]} == PUBLISHED[name]
    assert expected["images"] == expected["train_images"] + expected["test_images"]
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


def test_lists_of_spreadsheets_begin_with_a_mark_and_have_blanks(build, tmp_path):
    root = fixtures.cars_by_class(tmp_path / "cars")
    plain = build("cars196", root).prepare()
    for path in root.glob("*.csv"):
        path.write_bytes(("\ufeff" + path.read_text().replace("\n", " \r\n")).encode())
    marked = build("cars196", root).prepare()
    assert marked.class_names == plain.class_names
    assert marked.labels.tolist() == plain.labels.tolist()


def test_sop_halves_come_from_the_two_lists(build, tmp_path):
    fixtures.sop(tmp_path / "Stanford_Online_Products")
    pictures = build("sop", tmp_path).prepare()
    assert pictures.class_names == ("1", "2", "3", "4", "5")
    assert pictures.test_classes == (3, 4)
    assert pictures.extras["super_labels"].tolist() == [1, 1, 0, 0, 1, 1, 0, 0, 1, 1]


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
    kept = renumber_extras(extras, np.array([0, 1, 3, 4]), 5)
    assert kept["query"].tolist() == [0, 2]
    assert kept["gallery"].tolist() == [1, 3]
    assert kept["pairs"].tolist() == [[0, 1], [2, 3]]
    assert kept["same"].tolist() == [True, True]
    assert kept["super_labels"].tolist() == [9, 8, 6, 5]


@pytest.fixture
def build_strictly(tmp_path):
    return lambda name, root, **knobs: build_dataset(name, root=root, cache_dir=tmp_path / "cache", **knobs)


def test_cifar10_planes_become_pixels(build_strictly, tmp_path):
    root = fixtures.cifar10(tmp_path / "cifar-10-batches-py")
    pictures = build_strictly("cifar10", tmp_path, strict=False).prepare()
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


def test_a_part_of_cifar_is_refused_before_and_after_it_is_decoded(build_strictly, tmp_path):
    fixtures.cifar10(tmp_path / "cifar-10-batches-py")
    cold = _text(build_strictly("cifar10", tmp_path).check())
    assert "cifar10 has 60000 images, but got 24" in cold
    build_strictly("cifar10", tmp_path, strict=False).prepare()
    assert _text(build_strictly("cifar10", tmp_path).check()) == cold
    assert build_strictly("cifar10", tmp_path, strict=False).check() == []


def test_cifar100_has_fine_and_super_labels(build_strictly, tmp_path):
    root = fixtures.cifar100(tmp_path / "cifar-100-python")
    pictures = build_strictly("cifar100", root, strict=False).prepare()
    assert len(pictures.class_names) == 100
    assert len(pictures.extras["super_labels"]) == len(pictures) == 17
    assert pictures.extras["official_test"].tolist() == [12, 13, 14, 15, 16]


@pytest.mark.parametrize("below", ["lfw_funneled", "lfw", "."])
def test_lfw_pairs_name_people_and_picture_numbers(build_strictly, tmp_path, below):
    root = fixtures.lfw(tmp_path / "faces", below)
    pictures = build_strictly("lfw", root, strict=False, shorter_side=20).prepare()
    assert pictures.class_names == ("Ann_Bee", "Cy_Dee", "Eve")
    pairs, same = pictures.extras["pairs"], pictures.extras["same"]
    assert pairs.shape == (8, 2)
    assert np.array_equal(pictures.labels[pairs[:, 0]] == pictures.labels[pairs[:, 1]], same)
    assert pairs[0].tolist() == [0, 1]
    assert pictures.extras["fold"].tolist() == [0] * 4 + [1] * 4


def test_a_verification_file_is_pairs_in_ten_folds(build_strictly, tmp_path):
    encoded = fixtures.face_bin(tmp_path / "agedb_30.bin", pairs=20)
    pictures = build_strictly("agedb30", tmp_path, strict=False).prepare()
    assert pictures.images.shape == (40, 112, 112, 3)
    assert np.array_equal(pictures.images[7], np.asarray(Image.open(BytesIO(encoded[7]))))
    assert pictures.extras["pairs"][3].tolist() == [6, 7]
    assert pictures.extras["same"].tolist() == [True, False] * 10
    assert pictures.extras["fold"].tolist() == [f for f in range(10) for _ in range(2)]
    assert build_strictly("agedb30", tmp_path / "agedb_30.bin", strict=False).digest() == pictures.digest


def test_webface_reads_records_and_skips_header_and_identities(build_strictly, tmp_path):
    root = fixtures.webface(tmp_path / "faces")
    pictures = build_strictly("webface", root).prepare()
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
    file = RecordFile(tmp_path / "a.rec", tmp_path / "a.idx")
    record = file.read(1)
    assert record.labels == (file.label(1),) == (3.0,)
    assert record.payload == payload
    for read in (file.read, file.label):
        with pytest.raises(DataError, match="the index must contain the key"):
            read(2)


def test_webface_reads_plain_folders_too(build_strictly, tmp_path):
    for person in ("0000045", "0000099"):
        for i in range(2):
            fixtures.picture(tmp_path / "faces" / person / f"{i:03d}.jpg", i, (112, 112))
    pictures = build_strictly("webface", tmp_path / "faces", size=32).prepare()
    assert pictures.class_names == ("0000045", "0000099")
    assert pictures.images.shape == (4, 32, 32, 3)
    assert not pictures.notes
    (tmp_path / "faces" / "0000045").rename(tmp_path / "above")
    (tmp_path / "above").rename(tmp_path / "faces" / "0000099" / "0000045")
    fixtures.picture(tmp_path / "faces" / "lfw" / "0.jpg", 5)
    (note,) = build_strictly("webface", tmp_path / "faces").prepare().notes
    assert "no separate people: 2 pictures lie in some, as 0000099/0000045/000.jpg" in note


@pytest.mark.parametrize("name", ["webface", "lfw", "distractors"])
def test_linked_folders_of_people_are_read_and_what_is_not_read_is_noted(build_strictly, tmp_path, name):
    root, strict = fixtures.lfw(tmp_path / "faces", "."), {"strict": False} if name == "lfw" else {}
    whole = build_strictly(name, root, **strict)
    assert whole.check() == []
    (root / "Cy_Dee").rename(tmp_path / "Cy_Dee")
    (root / "Cy_Dee").symlink_to(tmp_path / "Cy_Dee")
    (root / "up").symlink_to(tmp_path)
    (root / "Eve" / "more").symlink_to(tmp_path / "Cy_Dee")
    (root / "Eve" / "Eve_0002.heic").touch()
    linked = build_strictly(name, root, **strict)
    assert linked.check() == []
    assert linked.digest() == whole.digest()
    links, files = (
        ("Eve/more, up", "Eve_0002.heic, pairs.txt") if name == "distractors" else ("Eve/more", "Eve_0002.heic")
    )
    if name != "lfw":  # its pairs name every picture
        assert [note.rpartition(": ")[2] for note in linked.passed_over()] == [links, files]


LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(8), [1, 2, 3, 5, 8, 13, 2, 6]))
HELD_OUT = np.flatnonzero(LABELS >= 3)


def test_pair_numbers_are_decoded_exactly_also_where_the_root_is_rounded():
    every = [(low, high) for high in range(1, 60) for low in range(high)]
    assert _decode_pair(np.arange(len(every))).tolist() == [list(couple) for couple in every]
    for high in (10**5 + 3, 94906267, 2**31 - 1):
        first = high * (high - 1) // 2
        assert _decode_pair(np.array([first - 1, first, first + high - 1])).tolist() == [
            [high - 2, high - 1],
            [0, high],
            [high - 1, high],
        ]


@pytest.mark.parametrize("count", [2, 40, 200])
def test_pairs_alternate_between_the_kinds_and_none_repeats(count):
    pairs, same = _draw_pairs(LABELS, HELD_OUT, count, seed=0)
    assert np.array_equal(_draw_pairs(LABELS, HELD_OUT, count, seed=0)[0], pairs)
    assert same.tolist() == [True, False] * (count // 2)
    assert np.isin(pairs, HELD_OUT).all()
    left, right = LABELS[pairs].T
    assert ((left == right) == same).all()
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert len({frozenset(couple) for couple in pairs.tolist()}) == count


def test_all_pairs_of_a_kind_can_be_drawn_and_not_one_more():
    couples = list(itertools.combinations(HELD_OUT, 2))
    within = sum(LABELS[a] == LABELS[b] for a, b in couples)
    _, same = _draw_pairs(LABELS, HELD_OUT, 2 * within, seed=0)
    assert same.sum() == within
    with pytest.raises(ConfigError, match="pairs of one class"):
        _draw_pairs(LABELS, HELD_OUT, 2 * within + 2, seed=0)
    mostly_one = np.array([0] * 30 + [1])
    _, same = _draw_pairs(mostly_one, np.arange(31), 60, seed=0)  # all 30 pairs of two classes are needed
    assert (~same).sum() == 30
    with pytest.raises(ConfigError, match="pairs of two classes"):
        _draw_pairs(mostly_one, np.arange(31), 62, seed=0)


def test_every_pair_of_a_kind_is_equally_likely():
    labels = np.array([0, 0, 0, 1, 1, 2])
    seen = {True: {}, False: {}}
    for seed in range(2000):
        pairs, same = _draw_pairs(labels, np.arange(6), 2, seed=seed)
        for couple, is_same in zip(pairs.tolist(), same.tolist(), strict=True):
            key = frozenset(couple)
            seen[is_same][key] = seen[is_same].get(key, 0) + 1
    assert len(seen[True]) == 4
    assert len(seen[False]) == 11
    for kind in seen.values():  # five standard deviations of a binomial count
        p = 1 / len(kind)
        assert max(abs(n - 2000 * p) for n in kind.values()) < 5 * np.sqrt(2000 * p * (1 - p))


def test_probes_and_strangers_share_no_class_and_are_all_pictures():
    probes, distractors = _divide_classes(LABELS, HELD_OUT, seed=0)
    assert np.array_equal(np.sort(np.concatenate([probes, distractors])), HELD_OUT)
    assert not set(LABELS[probes]) & set(LABELS[distractors])
    assert len(np.unique(LABELS[distractors])) == 2
    with pytest.raises(ConfigError, match="two pictures"):
        _divide_classes(np.arange(6), np.arange(6), seed=0)


def test_a_data_set_without_a_list_of_pairs_is_refused():
    with pytest.raises(DataError, match="list pairs"):
        _read_pairs(SimpleNamespace(extras={}, name="digits"))
    _, same = _read_pairs(SimpleNamespace(extras={"pairs": [[0, 1]], "same": [1]}, name="lfw"))
    assert same.dtype == bool
