"""Tables of pictures: a CSV, TSV or Parquet file says path, label and part of each picture."""

import csv
import time
from unicodedata import normalize

import numpy as np
import pytest
from helpers.published_formats import picture

from trainables.data import build_dataset
from trainables.data.formats.picture_table import read_picture_table
from trainables.errors import DataError

OML = "path,label,split,is_query,is_gallery"
CLASSES = ("ant", "bee", "cow", "dog")
PLAIN = [(f"{name}-{i}.png", name) for name in CLASSES for i in range(2)]


@pytest.fixture
def folder(tmp_path):
    for number, (path, _) in enumerate(PLAIN):
        picture(tmp_path / "table" / path, number)
    return tmp_path / "table"


@pytest.fixture
def write(folder):
    def make(header="path,label", rows=PLAIN, name="labels.csv", encoding="utf-8"):
        lines = [header, *(row if isinstance(row, str) else ",".join(row) for row in rows)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding=encoding)
        return folder / name

    return make


@pytest.fixture
def build(tmp_path):
    return lambda table, **knobs: build_dataset("image_folder", root=table, cache_dir=tmp_path / "cache", **knobs)


def only_problem(table):
    with pytest.raises(DataError) as error:
        read_picture_table(table)
    (problem,) = error.value.problems
    return str(problem)


def test_a_table_says_the_same_as_folders(write, build, folder, tmp_path):
    data = build(write(), size=16)
    assert data.check() == []
    assert data.counts() == {"images": 8, "classes": 4, "test_images": 4, "test_classes": 2}
    pictures = data.prepare()
    assert pictures.class_names == CLASSES
    assert pictures.test_classes == (2, 3)
    for path, label in PLAIN:
        (tmp_path / "folders" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "folders" / label / path).write_bytes((folder / path).read_bytes())
    others = build(tmp_path / "folders", size=16).prepare()
    assert np.array_equal(pictures.images, others.images)
    assert np.array_equal(pictures.labels, others.labels)
    assert np.array_equal(build(folder / "labels.csv", size=16).on_demand(None)[0][:], others.images)


@pytest.mark.parametrize(
    ("header", "row", "name", "encoding"),
    [
        ("path,label", "{path},{label}", "labels.csv", "utf-8-sig"),
        ("Image_Path ; Label", "{path}; {label} ", "labels.csv", "utf-8"),
        ("label\tfile_name", "{label}\t./{path}", "metadata.tsv", "utf-8"),
        ("sep=;\r\npath;label", "{path};{label}", "labels.csv", "utf-8-sig"),
        ('"sep=|"\nextra|path|label', "1,2|{path}|{label}", "labels.csv", "utf-8"),
        ("class,extra,path", '"{label}","a, b","{folder}/{path}"', "labels.CSV", "utf-8"),
    ],
)
def test_spellings_of_a_table_mean_the_same(write, build, folder, header, row, name, encoding):
    plain = build(write()).digest()
    rows = [row.format(path=path, label=label, folder=folder) for path, label in reversed(PLAIN)]
    data = build(write(header, ["", *rows], name, encoding))
    assert data.check() == []
    assert data.digest() == plain
    unread = "columns of the table that were not read (1): extra" in data.passed_over()
    assert unread == ("extra" in header)


def test_a_parquet_table(write, build, folder):
    import pyarrow
    from pyarrow import parquet

    columns = {"path": [path for path, _ in PLAIN], "label": [CLASSES.index(label) for _, label in PLAIN]}
    parquet.write_table(pyarrow.table(columns), folder / "labels.parquet")
    assert build(folder / "labels.parquet").listed().class_names == ("0", "1", "2", "3")
    unlabelled = [float("nan") if label == "ant" else CLASSES.index(label) for _, label in PLAIN]
    parquet.write_table(pyarrow.table({"path": columns["path"], "label": unlabelled}), folder / "labels.parquet")
    assert "every picture needs a label, but 2 have none" in only_problem(folder / "labels.parquet")
    (folder / "labels.parquet").write_text("path,label\n")
    assert "the table must be readable as Parquet" in only_problem(folder / "labels.parquet")


def test_names_with_commas_quotes_line_breaks_and_backslashes(folder, build):
    decomposed = normalize("NFD", "é.png")  # as macOS writes it
    names = ['a, "b".png', "line\nbreak.png", " blank.png", "日本.png", "back\\slash.png", "sub/c.png", decomposed]
    for number, name in enumerate(names):
        picture(folder / name, number)
    with (folder / "odd.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        cells = [normalize("NFC", name.replace("/", "\\")) for name in names]
        writer.writerows([cell, "xy"[number % 2]] for number, cell in enumerate(cells))
    data = build(folder / "odd.csv")
    assert data.check() == []
    assert sorted(data.encoded.names) == sorted(names)


@pytest.mark.parametrize(
    "names", [("007", "9", "10", "100"), ("-12", "-1", "9", "10"), ("-1.0", "9.0", "10.0", "100.0")]
)
def test_numbers_stay_text_in_their_own_order(write, build, names):
    label_of = dict(zip(("cow", "bee", "ant", "dog"), names, strict=True))
    listed = build(write(rows=[(path, label_of[label]) for path, label in PLAIN])).listed()
    assert listed.class_names == names
    assert listed.test_classes == (2, 3)


def in_turn(*parts):
    return [(*row, parts[number % len(parts)]) for number, row in enumerate(PLAIN)]


PARTS = [(path, label, part) for (path, label), part in zip(PLAIN, ["test"] * 4 + ["train", "Val"] * 2, strict=True)]


def test_the_column_split_holds_out_the_test_classes(write, build):
    plain, split = build(write()), build(write("path,label,split", PARTS, "split.csv"))
    assert split.listed().test_classes == (0, 1)
    assert split.digest() != plain.digest()
    assert "The column split splits the classes: 2 for training and validation, 2 for testing" in split.passed_over()
    (problem,) = build(split.root, split_file="parts.txt").check()
    assert "add a column split" in str(problem)


@pytest.mark.parametrize("name", ["moved.csv", "labels.csv"])
def test_the_digest_depends_on_the_meaning_of_a_table_alone(write, build, folder, name):
    data = build(write())
    before = data.digest()
    data.prepare()
    folder.rename(folder.parent / "elsewhere")
    moved = (folder.parent / "elsewhere" / "labels.csv").rename(folder.parent / "elsewhere" / name)
    assert build(moved).digest() == before
    assert build(moved).is_prepared()
    moved.write_text(moved.read_text().replace(",bee", ",bees"))
    assert build(moved).digest() != before


def in_oml(*flags):
    """Return rows of two test classes, which OML calls validation; each flag is `is_query,is_gallery`."""
    test = [(path, label, "validation", flags[i % len(flags)]) for i, (path, label) in enumerate(PLAIN[:4])]
    return [*test, *((path, label, "train", ",") for path, label in PLAIN[4:])]


def test_the_columns_of_open_metric_learning_separate_queries_and_gallery(write, build):
    pictures = build(write(OML, in_oml("True,False", "False,True"))).listed()
    assert pictures.test_classes == (0, 1)
    assert {part: numbers.tolist() for part, numbers in pictures.extras.items()} == {"query": [0, 2], "gallery": [1, 3]}
    both = build(write(OML, in_oml("1,1.0"), "both.csv")).listed()
    assert (both.test_classes, both.extras) == ((0, 1), {})
    assert both.digest != pictures.digest
    lonely = build(write(OML, in_oml("1,0", "1,0", "1,0", "0,1"), "lonely.csv")).listed()
    assert "classes of queries without a gallery picture: 1" in lonely.notes


def test_left_out_pictures_leave_queries_and_gallery_in_step(write, build, folder):
    (folder / "ant-1.png").write_bytes(b"")
    data = build(write(OML, in_oml("1,0", "0,1")), skip_corrupt=True)
    assert data.check() == []
    extras = data.prepare().extras
    assert {part: numbers.tolist() for part, numbers in extras.items()} == {"query": [0, 1], "gallery": [2]}


WRONG = [
    ("image,label", PLAIN, "labels.csv:1: the header must have a column path or image_path or file_name. Known"),
    ("path,labels", PLAIN, "must have a column label or class. Did you mean 'labels'?"),
    ("sep=,\npath,labels", PLAIN, "labels.csv:2: the header must have a column label or class"),
    ("sep=,\npath,label", [*PLAIN, "ant"], "labels.csv:11: every line must have 2 cells ... '1 cells'"),
    ("ant-0.png,ant", PLAIN[1:], "the header must have a column path ... must have a column label"),
    ("path,label,label", [(*row, "x") for row in PLAIN], "labels.csv:1: the header must have one column label"),
    ("path,label", [*PLAIN, "a,b.png,ant"], "labels.csv:10: ... 2 cells ... 1 has not (given: '3 cells'). Put quotes"),
    ("path,label", [*PLAIN, "ant"], "labels.csv:10: every line must have 2 cells ... '1 cells'"),
    ("path,label", [*PLAIN[:4], '"cow-0.png,cow', *PLAIN[5:]], "labels.csv:6: the line must be readable as CSV"),
    ("path,label", [], "labels.csv: the table lists no picture"),
    ("path,label", [*PLAIN, "x.png,ant", "y.png,bee"], "labels.csv:10: ... but 2 of 10 are not ... 'x.png, y.png'"),
    ("path,label", [*PLAIN, ",ant"], "labels.csv:10: ... but 1 of 9 is not (given: 'an empty cell')"),
    ("path,label", [*PLAIN[:3], "bee-1.png, ", *PLAIN[4:]], "labels.csv:5: ... 1 has none (given: 'bee-1.png')"),
    ("path,label", [*PLAIN, PLAIN[0]], "labels.csv:10: ... but 1 is repeated (given: 'ant-0.png in lines 2 and 10')"),
    ("path,label", [*PLAIN, "../table/ant-0.png,ant"], "labels.csv:10: ... 'ant-0.png in lines 2 and 10'"),
    ("path,label", [*PLAIN, "./ant-0.png,cow"], "labels.csv:10: ... 1 has two ... ant in line 2, cow in line 10"),
    ("path,label", [(path, "ant") for path, _ in PLAIN], "at least 2 classes are needed"),
    ("path,label,split", [(*row, "tset") for row in PLAIN], "labels.csv:2: ... or test, but 8 are not (given: 'tset')"),
    (
        "path,label,split",
        [(*row, "train") for row in PLAIN],
        "for training and for testing, but got 'train'. Write test",
    ),
    ("path,label,split", in_turn("train", "validation"), "for testing, but got 'train, validation'"),
    ("path,label,split", in_turn("train", "test"), "must not be trained on ... ant, bee"),
    ("path,label,is_query,is_gallery", [(*row, "1", "1") for row in PLAIN], "the header must have a column split"),
    ("path,label,split,is_query", [(*row, "1") for row in PARTS], "the header must have a column is_gallery"),
    (OML, [(*row, "maybe", "1") for row in PARTS], "labels.csv:2: is_query and is_gallery must be True or False"),
    (OML, [(*row, "1", "1") for row in PARTS], "labels.csv:6: ... for test pictures, but 4 are for training"),
    (OML, [(*row, "", "") for row in PARTS], "labels.csv:2: ... a query or in the gallery, but 4 are neither"),
    (OML, [(*row, "1" * (row[2] == "test"), "1" * (row[1] == "ant")) for row in PARTS], "at once, but 2 of 4 are"),
    (
        OML,
        [(*row, "1" * (row[1] == "ant"), "1" * (row[1] == "bee")) for row in PARTS],
        "no query has a gallery picture",
    ),
]


@pytest.mark.parametrize(("header", "rows", "message"), WRONG)
def test_each_mistake_has_its_line_and_a_remedy(write, build, header, rows, message):
    shown = "\n".join(map(str, build(write(header, rows)).check()))
    for part in message.split(" ... "):
        assert part in shown


def test_bytes_that_are_no_utf_8_are_named_with_their_line(write):
    message = only_problem(write(rows=[*PLAIN, "möwe.png,möwe"], encoding="latin-1"))
    assert "labels.csv:10: the table must be UTF-8 text" in message
    assert "CSV UTF-8" in message
    assert "must be UTF-8" in only_problem(write(encoding="utf-16"))


def test_other_files_are_refused_and_a_table_beside_loose_pictures_is_named(write, build, folder):
    for name, remedy in [("pictures.rar", "Unpack it"), ("labels.ods", "Save it as"), ("ant-0.png", "root/CLASS")]:
        (folder / name).touch()
        (problem,) = build(folder / name).check()
        assert problem.rule == "must be a folder or a table (.csv, .tsv or .parquet)"
        assert remedy in problem.remedy
    write()
    (problem,) = build(folder).check()
    assert f"Or give the table {folder / 'labels.csv'}." in problem.remedy


def test_a_table_of_many_rows_is_read_in_about_a_second(folder):
    rows = "".join(f"ant-0.png/../{i % 1000}/{i}.png,{i % 1000}\n" for i in range(30_000))
    (folder / "many.csv").write_text("path,label\n" + rows)
    start = time.process_time()
    message = only_problem(folder / "many.csv")
    assert "30000 of 30000 are not" in message
    assert time.process_time() - start < 2
