"""Read a table of the user's pictures: path, label and, optionally, the part of each."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

import numpy as np

from trainables.data.formats.picture_files import PictureListing
from trainables.data.formats.stored import list_names
from trainables.data.formats.table_rows import TableRows, in_class_order
from trainables.errors import DataError, Problem, raise_if_any

TRAINING_PARTS = frozenset({"train", "training", "val", "valid", "validation"})
TEST_PARTS = frozenset({"test", "testing"})
SHARED_CLASSES = "classes for testing must not be trained on, but these lie in both parts"
_PATHS, _LABELS, _SPLIT = ("path", "image_path", "file_name"), ("label", "class"), "split"
_FLAGS = ("is_query", "is_gallery")  # of Open Metric Learning
_TRUTH = dict.fromkeys(("true", "1", "1.0"), True) | dict.fromkeys(("", "false", "0", "0.0", "none", "nan"), False)
_WITHOUT = "Without the column split the second half of the classes is for testing."


@dataclass(frozen=True)
class PictureTable:
    """The pictures of a table, sorted by class and name."""

    path: Path
    listing: PictureListing
    has_split: bool
    unread: tuple[str, ...]  # columns without a meaning here

    def problems(self) -> list[Problem]:
        """Return the problem of a table with one class."""
        names = self.listing.class_names
        rule = "at least 2 classes are needed"
        return [] if len(names) > 1 else [Problem(str(self.path), rule, f"only {names[0]!r}")]

    def notes(self) -> list[str]:
        """Return a remark on columns that are not read."""
        note = f"columns of the table that were not read ({len(self.unread)}): {list_names(self.unread)}"
        return [note] if self.unread else []


@dataclass(frozen=True)
class _Parts:
    """Rows of the test half."""

    test: Sequence[int] = ()
    query: Sequence[int] = ()
    gallery: Sequence[int] = ()


def part_of(word: str) -> str:
    """Return train or test for a word that means one of them, such as Val; another word in lower case."""
    part = word.strip().casefold()
    return "train" if part in TRAINING_PARTS else "test" if part in TEST_PARTS else part


def read_picture_table(path: Path) -> PictureTable:
    """Return the pictures of a table. Raise DataError that names line, value and remedy of each mistake."""
    rows = TableRows.read(path)
    flags = rows.name_of(_FLAGS)
    optional = (_SPLIT, *_FLAGS) if flags else (_SPLIT,) if _SPLIT in rows.header else ()
    required = [_PATHS, _LABELS, *((name,) for name in optional)]
    raise_if_any([problem for names in required for problem in rows.header_problems(names)], DataError)
    labels = [label.strip() for label in rows.column(rows.name_of(_LABELS))]
    names = _names(rows, labels)
    parts = _parts(rows, labels, names) if optional else _Parts()
    return PictureTable(
        path,
        _listing(names, labels, parts),
        bool(optional),
        tuple(n for n in rows.header if n and n not in {rows.name_of(_PATHS), rows.name_of(_LABELS), *optional}),
    )


def _listing(names: Sequence[str], labels: Sequence[str], parts: _Parts) -> PictureListing:
    """Return the pictures in the order of classes and names; numbers as labels are in the order of their values."""
    classes = tuple(in_class_order(labels))
    number = {label: i for i, label in enumerate(classes)}
    order = sorted(range(len(names)), key=lambda row: (number[labels[row]], names[row]))
    numbers = np.array([number[labels[row]] for row in order], dtype=np.int64)
    test = {labels[row] for row in parts.test} or set(classes[(len(classes) + 1) // 2 :])
    searched = {"query": parts.query, "gallery": parts.gallery} if parts.query else {}
    extras = {name: np.flatnonzero(np.isin(order, part)) for name, part in searched.items()}
    lonely = {labels[row] for row in parts.query} - {labels[row] for row in parts.gallery}
    return PictureListing(
        names=[names[row] for row in order],
        labels=numbers,
        class_names=classes,
        test_classes=tuple(number[label] for label in classes if label in test),
        extras=extras,
        notes=(f"classes of queries without a gallery picture: {len(lonely)}",) if lonely else (),
    )


def _names(rows: TableRows, labels: Sequence[str]) -> list[str]:
    """Return the name of each picture from the table's folder. Raise DataError for wrong paths and labels."""
    paths, folder = rows.column(rows.name_of(_PATHS)), str(rows.path.parent)
    names = [_file_name(folder, path) for path in paths]
    first: dict[str, int] = {}
    again = [(row, first[name]) for row, name in enumerate(names) if name and first.setdefault(name, row) != row]
    missing = [(row, paths[row] or "an empty cell") for row, name in enumerate(names) if not name]
    unlabelled = [(row, paths[row]) for row, label in enumerate(labels) if not label]
    copies = [(i, f"{names[i]} in lines {rows.line(j)} and {rows.line(i)}") for i, j in again if labels[i] == labels[j]]
    two_labels = [
        (i, f"{names[i]}: {labels[j]} in line {rows.line(j)}, {labels[i]} in line {rows.line(i)}")
        for i, j in again
        if labels[i] != labels[j]
    ]
    rule = f"every path must be that of a file, but {{n}} of {len(paths)} {{are}} not"
    remedy = f"Write absolute paths, or paths from the table's folder, {folder}."
    problems = rows.mistakes(missing, rule, remedy)
    remedy = "Fill it in, or delete the line."
    problems += rows.mistakes(unlabelled, "every picture needs a label, but {n} {have} none", remedy)
    problems += rows.mistakes(copies, "a picture may be listed once, but {n} {are} repeated", "Delete the copies.")
    problems += rows.mistakes(
        two_labels, "a picture has one label, but {n} {have} two", "Keep one line of each picture."
    )
    raise_if_any(problems, DataError)
    return names


def _file_name(folder: str, cell: str) -> str:
    """Return the name of the file that a cell means, from the folder if it lies there; an empty text without one."""
    plain = cell.strip().replace("\\", "/")
    for name in (cell, cell.strip(), plain, normalize("NFC", plain), normalize("NFD", plain)):  # macOS decomposes
        if name and os.path.isfile(os.path.join(folder, name)):
            climbs = ".." in name.split("/")  # a linked folder makes a/../b another file than b
            path = os.path.realpath(os.path.join(folder, name)) if climbs else os.path.normpath(name)
            return path.removeprefix(f"{folder}/")
    return ""


def _parts(rows: TableRows, labels: Sequence[str], names: Sequence[str]) -> _Parts:
    """Return the rows for testing. Raise DataError if no protocol fits the columns."""
    words = [word.strip().casefold() for word in rows.column(_SPLIT)]
    wrong = [(row, word) for row, word in enumerate(words) if word not in TRAINING_PARTS | TEST_PARTS]
    rule = "the split must be train, validation or test, but {n} {are} not"
    problems = rows.mistakes(wrong, rule, "Correct these cells, or leave out the column.")
    is_oml = bool(rows.name_of(_FLAGS)) and not TEST_PARTS & set(words)  # its test half is called validation
    training = {"train", "training"} if is_oml else TRAINING_PARTS
    test = [row for row, word in enumerate(words) if word not in training]
    shared = {labels[row] for row in test} & {labels[row] for row, word in enumerate(words) if word in training}
    if not problems and not 0 < len(test) < len(words):
        rule = "the column split must have rows for training and for testing"
        remedy = f"Write test for the classes to hold out; training classes also validate. {_WITHOUT}"
        problems.append(Problem(str(rows.path), rule, list_names(sorted(set(words))), remedy))
    elif not problems and shared:
        remedy = f"Write one part for all pictures of a class. {_WITHOUT}"
        problems.append(Problem(str(rows.path), SHARED_CLASSES, list_names(sorted(shared)), remedy))
    raise_if_any(problems, DataError)
    return _searched(rows, test, labels, names) if rows.name_of(_FLAGS) else _Parts(test)


def _searched(rows: TableRows, test: Sequence[int], labels: Sequence[str], names: Sequence[str]) -> _Parts:
    """Return the test half as queries and gallery. If every picture is both, each searches all others."""
    cells = [[cell.strip().casefold() for cell in rows.column(name)] for name in _FLAGS]
    wrong = [(row, cell) for column in cells for row, cell in enumerate(column) if cell not in _TRUTH]
    rule = "is_query and is_gallery must be True or False, but {n} {are} not"
    raise_if_any(rows.mistakes(wrong, rule, "Correct these cells."), DataError)
    query, gallery = ({row for row, cell in enumerate(column) if _TRUTH[cell]} for column in cells)
    if query == gallery == set(test):
        return _Parts(test)
    checks = [
        ((query | gallery) - set(test), "is_query and is_gallery are for test pictures, but {n} {are} for training"),
        (set(test) - query - gallery, "every test picture must be a query or in the gallery, but {n} {are} neither"),
        (
            query & gallery,
            f"all test pictures or none may be query and gallery at once, but {{n}} of {len(test)} {{are}}",
        ),
    ]
    problems = list[Problem]()
    for found, rule in checks:
        problems += rows.mistakes([(row, names[row]) for row in sorted(found)], rule, "Change the cells of these rows.")
    if not problems and not {labels[row] for row in query} & {labels[row] for row in gallery}:
        problems.append(Problem(str(rows.path), "no query has a gallery picture of its class", None, "Add some."))
    raise_if_any(problems, DataError)
    return _Parts(test, sorted(query), sorted(gallery))
