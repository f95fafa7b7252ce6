"""Published features of every format become the same folder; bad files are refused in a line, and nothing is unpickled."""

import json
import pickle
import struct
import zipfile
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from trainables.data import build_dataset
from trainables.data.formats import feature_files
from trainables.data.formats.feature_files import import_features
from trainables.data.formats.feature_store import FEATURES, read_table
from trainables.errors import DataError

ROWS = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
CLASSES = np.repeat(["a", "b", "c", "d"], 2)
NUMBERS = np.repeat(np.arange(4), 2)


def npz(folder, **arrays):
    """Write these arrays, beside the rows and classes."""
    np.savez(folder / "x.npz", **{"embeddings": ROWS, "labels": NUMBERS, **arrays})
    return folder / "x.npz"


def npy(folder, *, rows=ROWS):
    """Write rows, possibly pickled objects."""
    np.save(folder / "x.npy", rows, allow_pickle=True)
    return folder / "x.npy"


def in_torch(folder, **parts):
    torch.save(parts, folder / "x.pt")
    return folder / "x.pt"


def safetensors(header, content=b""):
    """Return the bytes of a file of safetensors."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


def about(kind, shape, start, end):
    return {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}


def content(name, data):
    """Return a function that writes a file of these bytes."""

    def write(folder):
        (folder / name).write_bytes(data)
        return folder / name

    return write


SIZE = ROWS.nbytes
PARTS = {"features": about("F32", ROWS.shape, 0, SIZE), "labels": about("I64", [8], SIZE, SIZE + NUMBERS.nbytes)}
SAFETENSORS = safetensors({"__metadata__": {}, **PARTS}, ROWS.tobytes() + NUMBERS.tobytes())
TORCH = {"feats": torch.from_numpy(ROWS), "labels": torch.from_numpy(NUMBERS)}


def _embedding_reader(folder):
    (folder / "img_emb").mkdir()
    (folder / "metadata").mkdir()
    for part in range(2):
        rows = slice(4 * part, 4 * part + 4)
        np.save(folder / "img_emb" / f"img_emb_{part}.npy", ROWS[rows].astype(np.float16))
        table = pa.table({"image_path": [f"{n}.jpg" for n in range(4)], "label": NUMBERS[rows]})
        parquet.write_table(table, folder / "metadata" / f"metadata_{part}.parquet")
    return folder


def _hdf5(folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.hdf5", "w") as file:
        file.create_dataset("features", data=ROWS, compression="gzip")
        file.create_dataset("labels", data=NUMBERS)
        file.create_dataset("index", data=[f"{n}.jpg" for n in range(8)], dtype=h5py.string_dtype("ascii"))
    return folder / "x.hdf5"


@pytest.mark.parametrize(
    "write", [npz, content("x.safetensors", SAFETENSORS), partial(in_torch, **TORCH), _embedding_reader, _hdf5]
)
def test_every_format_becomes_the_same_folder(write, tmp_path):
    (tmp_path / "source").mkdir()
    import_features(write(tmp_path / "source"), tmp_path / "f")
    assert np.array_equal(np.load(tmp_path / "f" / FEATURES), ROWS.astype(np.float16))
    table = read_table(tmp_path / "f")
    assert table.classes.tolist() == [str(n) for n in NUMBERS]
    assert table.splits.tolist() == ["train"] * 4 + ["test"] * 4


def test_labels_are_joined_by_id_and_may_set_the_split(tmp_path):
    torch.save({"features": torch.from_numpy(ROWS), "index": [f"{n}.jpg" for n in range(8)]}, tmp_path / "x.pt")
    lines = [f"{n}.jpg,{CLASSES[n]},{'test' if n < 4 else 'train'}" for n in reversed(range(8))]
    (tmp_path / "classes.csv").write_text("\n".join(["id,class,split", *lines]))
    import_features(tmp_path / "x.pt", tmp_path / "f", labels=tmp_path / "classes.csv")
    table = read_table(tmp_path / "f")
    assert table.classes.tolist() == CLASSES.tolist()
    assert table.splits.tolist() == ["test"] * 4 + ["train"] * 4
    (tmp_path / "classes.csv").write_text("\n".join(f"{n}.jpg,{CLASSES[n]}" for n in range(7)))
    with pytest.raises(DataError, match="1 are missing"):
        import_features(tmp_path / "x.pt", tmp_path / "g", labels=tmp_path / "classes.csv")


def test_words_for_the_halves_are_those_of_tables_of_pictures(tmp_path):
    splits = ["Train", "val", "validation", "training", "TEST", "testing", " test", "test"]
    lines = [f"{i},{'abcd'[i // 2]},{split}" for i, split in enumerate(splits)]
    np.save(tmp_path / "rows.npy", np.ones((8, 3), dtype=np.float32))
    (tmp_path / "classes.csv").write_text("\n".join(["id,class,split", *lines]))
    import_features(tmp_path / "rows.npy", tmp_path / "out", labels=tmp_path / "classes.csv")
    assert read_table(tmp_path / "out").splits.tolist() == ["train"] * 4 + ["test"] * 4


@pytest.mark.parametrize("header", ["ID,Class,Split", "id, class, split"])
def test_the_header_of_a_table_of_labels_may_have_capitals_and_blanks(header, tmp_path):
    np.savez(tmp_path / "x.npz", features=ROWS, index=np.arange(8))
    rows = [f"{n}, {CLASSES[n]}, {'test' if CLASSES[n] in 'ac' else 'train'}" for n in reversed(range(8))]
    (tmp_path / "classes.csv").write_text("\n".join([header, *rows]))
    import_features(tmp_path / "x.npz", tmp_path / "f", labels=tmp_path / "classes.csv")
    table = read_table(tmp_path / "f")
    assert table.classes.tolist() == CLASSES.tolist()
    assert set(table.classes[table.splits == "test"]) == {"a", "c"}


@pytest.mark.parametrize(
    "numbers", [np.arange(1, 21), np.arange(-3, 17), np.arange(1.0, 21.0), np.arange(1, 21)[:, None]]
)
def test_numbered_classes_are_halved_in_the_order_of_their_numbers(numbers, tmp_path):
    np.savez(tmp_path / "x.npz", features=np.tile(ROWS, (5, 1)), label=np.repeat(numbers, 2, axis=0))
    import_features(tmp_path / "x.npz", tmp_path / "f")
    table = read_table(tmp_path / "f")
    assert sorted(map(float, set(table.classes[table.splits == "test"]))) == numbers.ravel()[10:].tolist()


@pytest.mark.parametrize(
    ("source", "header", "ids"),
    [
        ({"index": np.array([f"{n}.jpg" for n in range(8)], dtype="S")}, "", [f"{n}.jpg" for n in range(8)]),
        ({"index": np.arange(8)}, "\ufeffid,class\n", range(8)),
        ({"class": NUMBERS}, "id,label\n", range(8)),
        ({}, "id,label\n", [f"{n:02d}.0" for n in range(8)]),
    ],
    ids=["ids of bytes", "a byte order mark, as of Excel", "classes replaced, rows by number", "padded numbers"],
)
def test_a_table_of_labels_is_joined_by_id(source, header, ids, tmp_path):
    np.savez(tmp_path / "x.npz", features=ROWS, **source)
    lines = [f"{name},{label}" for name, label in zip(ids, CLASSES, strict=True)]
    (tmp_path / "own.csv").write_text(header + "\n".join(reversed(lines)))
    import_features(tmp_path / "x.npz", tmp_path / "f", labels=tmp_path / "own.csv")
    assert read_table(tmp_path / "f").classes.tolist() == CLASSES.tolist()


def test_ids_from_1_number_the_rows_only_in_their_order(tmp_path):
    """A table of ids 1, 2, 3 ... in another order gave rows the classes of others."""
    np.savez(tmp_path / "x.npz", features=ROWS)
    lines = [f"{n + 1},{label}" for n, label in enumerate(CLASSES)]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    import_features(tmp_path / "x.npz", tmp_path / "f", labels=tmp_path / "own.csv")
    assert read_table(tmp_path / "f").classes.tolist() == CLASSES.tolist()
    (tmp_path / "own.csv").write_text("\n".join(reversed(lines)))
    with pytest.raises(DataError, match=r"own.csv, id: ids that number rows begin at 0.*Subtract 1, or leave"):
        import_features(tmp_path / "x.npz", tmp_path / "g", labels=tmp_path / "own.csv")


def test_a_repeated_number_in_another_order_is_refused(tmp_path):
    """Its table was taken in the order of the lines, so that rows got classes of others."""
    np.savez(tmp_path / "x.npz", features=ROWS)
    numbers = [*range(len(CLASSES))][::-1]
    numbers[0] = 0
    (tmp_path / "own.csv").write_text("\n".join(f"{n},{CLASSES[n]}" for n in numbers))
    with pytest.raises(
        DataError, match=r"id: ids that number rows must be listed once, but got '0'\. Correct the ids, or"
    ):
        import_features(tmp_path / "x.npz", tmp_path / "f", labels=tmp_path / "own.csv")


def test_bfloat16_of_safetensors_is_widened(tmp_path):
    words = (ROWS.view(np.uint32) >> 16).astype(np.uint16)
    header = {"features": about("BF16", [8, 4], 0, words.nbytes)}
    (tmp_path / "x.safetensors").write_bytes(safetensors(header, words.tobytes()))
    (tmp_path / "classes.csv").write_text("\n".join(f"{n},{CLASSES[n]}" for n in range(8)))
    import_features(tmp_path / "x.safetensors", tmp_path / "f", labels=tmp_path / "classes.csv")
    assert np.allclose(np.load(tmp_path / "f" / FEATURES), ROWS, rtol=0.01)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "is empty"),
        ("id,class\n0,a,b\n", "every line must have 2 cells, but got '0,a,b'"),
        ("\n".join(["id,class", *(f"{n},a" for n in range(8)), "0,b"]), "listed once, but 1 are"),
        ("\n".join(["picture,class", *(f"{n},a" for n in range(8))]), "Call the column of ids index"),
        ("\n".join(["id,class", *(f"{n},{'' if n == 3 else 'a'}" for n in range(8))]), "row 3 has none"),
    ],
)
def test_bad_tables_of_labels_are_refused_in_one_line(lines, message, tmp_path):
    np.savez(tmp_path / "x.npz", features=ROWS, index=np.arange(8))
    (tmp_path / "bad.csv").write_text(lines)
    with pytest.raises(DataError, match=message) as refused:
        import_features(tmp_path / "x.npz", tmp_path / "f", labels=tmp_path / "bad.csv")
    assert "\n" not in str(refused.value)


class _Trap:
    def __reduce__(self):
        return (open, ("unpickled", "w"))


def rows_and_table(folder, *, rows=ROWS, classes=NUMBERS):
    np.save(folder / "x.npy", rows)
    parquet.write_table(pa.table({"class": classes}), folder / "x.parquet")
    return folder


def parts(folder, *, ends, table_ends=(), name="x_{}.npy"):
    """Write rows in parts that end at these numbers, and their classes."""
    for i, (first, end) in enumerate(pairwise([0, *ends])):
        np.save(folder / name.format(i), ROWS[first:end])
    for i, (first, end) in enumerate(pairwise([0, *table_ends])):
        parquet.write_table(pa.table({"class": NUMBERS[first:end]}), folder / f"y_{i}.parquet")
    return folder


def _npz_with_text(folder):
    with zipfile.ZipFile(folder / "x.npz", "w") as archive:
        archive.writestr("readme.txt", "text")
    return folder / "x.npz"


def _expanding(folder):
    with (
        zipfile.ZipFile(folder / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("features.npy", "w") as file,
    ):
        for _ in range(17):
            file.write(bytes(2**26))
    return folder / "x.npz"


def _header_alone(shape):
    """Return the header of a .npy file."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


WITH_NAN = np.where(np.indices(ROWS.shape)[0] == 5, np.nan, ROWS)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (partial(npy, rows=np.array([_Trap()], dtype=object)), "x.npy"),
        (partial(npz, labels=np.array([_Trap()] * 8, dtype=object)), "x.npz"),
        (content("x.pt", pickle.dumps(_Trap())), "must hold only tensors"),
        (partial(in_torch, features=torch.from_numpy(ROWS), labels=_Trap()), "must hold only tensors"),
        (content("x.safetensors", SAFETENSORS[:-40]), "does not fit the file"),
        (partial(npz, embeddings=WITH_NAN), "row 5 has one that is not"),
        (partial(npz, embeddings=ROWS * 1e6), "finite float16"),
        (partial(npz, labels=NUMBERS[:-1]), "same number of rows, but got '8 and 7"),
        (npy, "each row needs a class"),
        (partial(npz, labels=np.array(list("abcdefgh"), dtype=object)), "label=label.astype(str)"),
        (partial(npz, labels=np.eye(8)), "labels: the classes must have one dimension, but got (8, 8)"),
        (content("x.npz", b"PK nothing"), "must be readable as features"),
        (content("x.pt", b"junk"), "must be readable as features"),
        (content("x.safetensors", (2).to_bytes(8, "little") + b"[]"), "must be readable as features"),
        (partial(npz, labels=np.where(NUMBERS == 1, np.nan, NUMBERS)), "row 2 has none"),
        (partial(rows_and_table, classes=[None, *"abcdefg"]), "row 0 has none"),
        (partial(rows_and_table, rows=ROWS.astype(complex)), "must be floats"),
        (
            partial(npz, embeddings=NUMBERS, features=(ROWS * 10).astype(np.int8), other=ROWS),
            "must have a float array (rows, dim",
        ),
        (partial(npz, embeddings=ROWS * 1e-9), "too small for float16"),
        (partial(npz, embeddings=np.where(np.isnan(WITH_NAN), 0, ROWS)), "the numbers of row 5 are all 0"),
        (partial(npz, labels=np.array("a")), "each row needs a class"),
        (_expanding, "expand to 1.1 GB"),
        (content("x.npy", _header_alone(f"({10**22}, 4)")), "must be readable as features"),
        (content("x.safetensors", safetensors({"features": about("F32", [2, 4], -32, 0)})), "does not fit the file"),
        (content("x.csv", b"1,2"), "must be a folder or one of"),
        (content("x.pt", b"hello"), "torch.save did not write it"),
        (content("x.safetensors", safetensors({"features": {"shape": [2, 4]}})), "KeyError: 'dtype'"),
        (
            partial(npz, labels=np.array(["caf\xe9".encode("latin-1")] * 8)),
            "text must be UTF-8, but that of row 0 is not",
        ),
        (partial(parts, ends=[3, 8], table_ends=[4, 8]), "x_0.npy and y_0.parquet must have the same number of rows"),
        (
            partial(parts, ends=[4, 8], table_ends=[4]),
            "but got '8 and 4 (class)'. Move away .npy files of other arrays",
        ),
        (_npz_with_text, "must have a float array (rows, dim"),
    ],
)
def test_bad_files_are_refused_in_one_line(write, message, tmp_path):
    (tmp_path / "source").mkdir()
    with pytest.raises(DataError) as refused:
        import_features(write(tmp_path / "source"), tmp_path / "f")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not any((tmp_path / "f").glob("*"))
    assert not list(tmp_path.rglob("unpickled"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": (4, 8), "external": [("passwords", 0, 128)]}, "features lies in another file"),
        ({"shape": (10**9, 8), "chunks": (1000, 8)}, "expand to 32.0 GB"),
    ],
    ids=["external", "expanding"],
)
def test_hdf5_links_to_other_files_and_oversized_data_are_refused(arguments, message, tmp_path):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "passwords").write_bytes(bytes(128))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("features", dtype="f4", **arguments)
    with pytest.raises(DataError, match=message):
        import_features(tmp_path / "x.h5", tmp_path / "f")


def test_after_a_full_disk_the_next_attempt_succeeds(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    for name in ("source", "disk"):
        (tmp_path / name).mkdir()
    (tmp_path / "f").symlink_to(tmp_path / "disk")
    source = npz(tmp_path / "source")
    with monkeypatch.context() as patched:
        patched.setattr(feature_files, "finish_store", full)
        with pytest.raises(OSError, match="No space left"):
            import_features(source, tmp_path / "f")
    assert import_features(source, tmp_path / "f").rows == len(ROWS)


def test_parts_are_read_in_the_order_of_their_numbers_and_hidden_files_are_left_out(tmp_path):
    """In the order of their letters part 10 would come before part 2, and rows would get classes of other rows."""
    rows, numbers = np.tile(ROWS, (2, 1)), np.repeat(np.arange(4), 4)
    source = tmp_path / "source"
    source.mkdir()
    for i in range(16):
        np.save(source / f"x_{i}.npy", rows[i : i + 1] + i)
    (source / "._x_0.npy").write_bytes(b"\0\5\x16\7")
    (tmp_path / "labels.csv").write_text("class\n" + "\n".join(f"c{n}" for n in numbers))
    import_features(source, tmp_path / "f", labels=tmp_path / "labels.csv")
    stored = build_dataset("features", root=tmp_path / "f", cache_dir=tmp_path).prepare()
    expected = (rows + np.arange(16)[:, None]).astype(np.float16)
    assert np.array_equal(stored.images[np.arange(16)][:, 0, 0], expected)
    assert stored.labels.tolist() == numbers.tolist()


def test_a_folder_of_pictures_gets_a_hint_about_features(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").touch()
    with pytest.raises(DataError, match="tune-dml features image_folder --data-root FOLDER"):
        import_features(tmp_path, tmp_path / "f")
