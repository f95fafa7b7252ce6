"""The user's own pictures, in one folder per class or listed in a table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from trainables.data.base import Contents, Indices, Pictures, Progress, digest_of, problems_raised
from trainables.data.formats.decoding import EncodedPictures, SquarePictures
from trainables.data.formats.files import KINDS, SUFFIXES, encoded_files, find_pictures
from trainables.data.formats.picture_files import keep_extras, single_picture_notes
from trainables.data.formats.picture_table import (
    SHARED_CLASSES,
    TEST_PARTS,
    TRAINING_PARTS,
    PictureTable,
    read_picture_table,
)
from trainables.data.formats.stored import SkipCorrupt, StoredPictures, list_names
from trainables.data.formats.table_rows import TABLES
from trainables.errors import DataError, Problem, nearest, raise_if_any
from trainables.files import expand_home

_MIN_CLASSES = 4
"""Smallest number of classes: two train, two test."""
_PART_NAMES = TRAINING_PARTS | TEST_PARTS | {"query", "gallery"}


class ImageFolder(StoredPictures):
    """Pictures below `root/CLASS`, decoded to RGB squares of `size` pixels (shorter side, then centre).

    Classes are sorted by name; the second half is the test half. Folders `root/train/CLASS` and `root/test/CLASS` or a
    split file say otherwise: JSON `{"class": "train" | "test"}` or text lines `class train` or `class,train`.

    `root` may also be a table (CSV, TSV or Parquet) with columns path and label; column split says which classes test.
    """

    name = "image_folder"
    citation = "the user's own pictures"
    licence = "the user's own"
    source = f"root/CLASS/*{KINDS}"

    def __init__(
        self,
        *,
        root: Path,
        cache_dir: Path,
        size: Annotated[int, Field(ge=16, le=1024, description="height and width in pixels")] = 64,
        split_file: Annotated[
            str | None, Field(description="which class trains, which tests; JSON or text; may lie beside the classes")
        ] = None,
        skip_corrupt: SkipCorrupt = False,
    ) -> None:
        super().__init__(cache_dir=cache_dir, form=SquarePictures(size), skip_corrupt=skip_corrupt)
        self.root = root
        self.size = size
        self.split_file = expand_home(split_file) if split_file else None
        if self.split_file and not self.split_file.exists() and (root / self.split_file.name).exists():
            self.split_file = root / self.split_file.name  # the file was moved with the pictures

    @property
    def folder(self) -> Path:
        return self.root.parent if self._is_table else self.root

    @property
    def encoded(self) -> EncodedPictures:
        return encoded_files(self.folder, self._listing[0])

    @property
    def names_test_classes(self) -> bool:
        """Whether a split file, the folders or the table's column say which classes test."""
        return bool(self.split_file or self._parts)

    @property
    def _is_table(self) -> bool:
        return self.root.suffix.lower() in TABLES and not self.root.is_dir()

    @cached_property
    def _table(self) -> PictureTable | None:
        """The table, if the root is one. Raise DataError for mistakes in it."""
        return read_picture_table(self.root) if self._is_table else None

    def check(self) -> list[Problem]:
        return self.verify()

    def verify(self, progress: Progress | None = None) -> list[Problem]:
        if not self.root.exists():
            rule = "the table must exist" if self._is_table else "the data folder must exist"
            return [Problem(str(self.root), rule, None, f"Expected {self.source}.")]
        if not (self.root.is_dir() or self._is_table):
            return [_file_problem(self.root, self.source)]
        if self._is_table and self.split_file:
            remedy = "Leave it out, and add a column split with train or test."
            return [Problem("data.split_file", "a table names its test classes itself", str(self.split_file), remedy)]
        if problems := problems_raised(lambda: self._listing):
            return problems
        _, labels, classes = self._listing
        problems = self._class_problems(classes)
        if self.split_file:
            problems += _read_split(self.split_file, classes)[1]
        failures = self.undecodable(progress)
        problems += self.decoding_problems(failures)
        decodable = {label for i, label in enumerate(labels) if i not in failures}
        if self.skip_corrupt and len(decodable) < len(classes):
            empty = [classes[c] for c in range(len(classes)) if c not in decodable]
            problems.append(Problem(str(self.root), "these classes have no picture that decodes", empty))
        return problems

    def counts(self) -> dict[str, int]:
        _, labels, classes = self._listing
        test = set(self.test_classes(classes))
        return {
            "images": len(labels),
            "classes": len(classes),
            "test_images": sum(label in test for label in labels),
            "test_classes": len(test),
        }

    def digest(self) -> str:
        names, _, classes = self._listing
        split = self.test_classes(classes)
        if self._table is None:
            return digest_of(self.name, 1, self.size, self.skip_corrupt, split, self.digests(names))
        listing = self._table.listing
        pictures = [(classes[c], sha256) for c, (_, sha256) in zip(listing.labels, self.digests(names), strict=True)]
        searched = {part: numbers.tolist() for part, numbers in listing.extras.items()}
        return digest_of(self.name, "table 1", self.size, self.skip_corrupt, split, pictures, searched)

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        """Return the test classes of the split file, table or parts, else the second half of the sorted names."""
        if self._table:
            return self._table.listing.test_classes
        if self.split_file is None and self._parts:
            return tuple(i for i, name in enumerate(class_names) if name in self._parts["test"])
        if self.split_file is None:
            return tuple(range((len(class_names) + 1) // 2, len(class_names)))
        parts, problems = _read_split(self.split_file, class_names)
        raise_if_any(problems, DataError)
        return tuple(i for i, name in enumerate(class_names) if parts[name] == "test")

    def contents(self, indices: Indices) -> Contents:
        _, labels, classes = self._listing
        numbers = np.array(labels, dtype=np.int64)[indices]
        notes = [*single_picture_notes(numbers, classes), *self._shared_notes(indices)]
        if self._table is None:
            return Contents(numbers, classes, tuple(notes))
        listing = self._table.listing
        extras = keep_extras(listing.extras, indices, len(labels))
        return Contents(numbers, classes, (*listing.notes, *notes), extras)

    def listed(self) -> Pictures:
        """Return the data set with black pictures, without those that `check` found undecodable."""
        failures = self.undecodable(None) if self.skip_corrupt else {}
        indices = self._decodable(failures)
        black = np.broadcast_to(np.uint8(0), (len(indices), self.size, self.size, 3))
        return self.with_images(black, self._contents_with_note(indices, failures), self.digest())

    @cached_property
    def _listing(self) -> tuple[list[str], list[int], tuple[str, ...]]:
        """Return names relative to `folder`, labels and class names; empty folders are no classes."""
        if self._table:
            listing = self._table.listing
            return list(listing.names), listing.labels.tolist(), listing.class_names
        pictures: dict[str, list[Path]] = {}
        for folder, (found, _) in self._files_by_folder.items():
            pictures.setdefault(folder.name, []).extend(found)  # train and val may share a class
        classes = tuple(name for name, files in pictures.items() if files)
        pairs = [(file, label) for label, name in enumerate(classes) for file in pictures[name]]
        names = [file.relative_to(self.root).as_posix() for file, _ in pairs]
        return names, [label for _, label in pairs], classes

    @cached_property
    def _files_by_folder(self) -> dict[Path, tuple[list[Path], list[Path]]]:
        """Candidate class folder -> its pictures and its other files; empty for a table."""
        return {folder: find_pictures(folder) for folder in self._folders}

    @cached_property
    def _folders(self) -> list[Path]:
        """Return the candidate class folders, sorted by class name. Raise DataError if the root is unreadable."""
        if self._is_table:
            return []
        if not self._parts:
            return _subfolders(self.root)
        folders = [folder for part in _subfolders(self.root) for folder in _subfolders(part)]
        return sorted(folders, key=lambda folder: (folder.name, folder))

    @cached_property
    def _parts(self) -> dict[str, set[str]]:
        """The classes of `train` and `test` if the root holds these parts of a split; else empty."""
        if self._table:
            listing = self._table.listing
            test = {listing.class_names[c] for c in listing.test_classes}
            return {"train": set(listing.class_names) - test, "test": test} if self._table.has_split else {}
        return _split_parts(self.root)

    def _class_problems(self, classes: Sequence[str]) -> list[Problem]:
        expected = f"Expected {self.source}."
        parts = [] if self._is_table else [name for name in classes if name.lower() in _PART_NAMES]
        if len(parts) == len(classes) >= 2 and not any(_pictures_in(self.root / part) for part in parts):
            return [_part_problem(self.root, self.source, parts)]
        if self._nested_example and 2 <= len(classes) < _MIN_CLASSES:
            rule = f"holds {len(classes)} folders of folders, where the folders of the classes are expected"
            remedy = f"If the inner folders are the classes, put them into one folder. {expected}"
            return [Problem(str(self.root), rule, list_names(classes), remedy)]
        if len(classes) >= 2:
            return []
        if self._is_table:
            return [Problem(str(self.root), "at least 2 classes are needed", f"only {classes[0]!r}")]
        if _pictures_in(self.root) and not classes:
            rule = f"pictures must lie in one folder a class, but {len(_pictures_in(self.root))} lie in the root itself"
            tables = [path for path in _visible(self.root) if path.suffix.lower() in TABLES]
            remedy = f"{expected} Or give the table {tables[0]}." if tables else expected
            return [Problem(str(self.root), rule, _pictures_in(self.root)[0].name, remedy)]
        found = f"only {classes[0]!r}" if classes else "no picture at all"
        inner = [
            self.root / name for name in classes if sum(path.is_dir() for path in (self.root / name).iterdir()) > 1
        ]
        remedy = f"If the folders in it are the classes, give {inner[0]}. {expected}" if inner else expected
        return [Problem(str(self.root), "at least 2 classes are needed", found, remedy)]

    def _shared_notes(self, indices: Indices) -> list[str]:
        """Report files that occur in several classes, as copies or links."""
        names, labels, classes = self._listing
        by_digest: dict[str, list[int]] = {}
        for i, (_, sha256) in enumerate(self.digests(names)):
            by_digest.setdefault(sha256, []).append(i)
        used, test = set(indices.tolist()), set(self.test_classes(classes))
        copies = [[i for i in same if i in used] for same in by_digest.values()]
        shared = [same for same in copies if len({labels[i] for i in same}) > 1]
        if not shared:
            return []
        across = sum(len({labels[i] in test for i in same}) > 1 for same in shared)
        listed = list_names([" = ".join(names[i] for i in same[:3]) for same in shared], 3)
        halves = f", {across} of them in a training and a test class" if across else ""
        return [f"pictures that lie in several classes: {len(shared)}{halves} ({listed})"]

    @property
    def _nested_example(self) -> str:
        """Return an inner folder as an example if every class has its pictures in several inner folders; else empty."""
        inner = [
            {file.parts[len(folder.parts)] if file.parent != folder else "" for file in files}
            for folder, (files, _) in self._files_by_folder.items()
            if files
        ]
        several = all(len(names) > 1 and "" not in names for names in inner)
        return f"{self._listing[2][0]}/{min(inner[0])}" if inner and several else ""

    def passed_over(self) -> list[str]:
        notes = []
        if self._parts and not self.split_file:
            train, test = (len(self._parts[half]) for half in ("train", "test"))
            what = "column split splits" if self._is_table else "folders split"
            notes.append(f"The {what} the classes: {train} for training and validation, {test} for testing")
        if self._table:
            unread = self._table.unread
            note = f"columns of the table that were not read ({len(unread)}): {list_names(unread)}"
            return [*notes, note] if unread else notes
        if self._nested_example:
            notes.append(
                f"Every class folder has folders in it, such as {self._nested_example}; these are not separate classes"
            )
        if loose := [path.name for path in _pictures_in(self.root)]:
            notes.append(f"pictures in no class's folder were passed over ({len(loose)}): {list_names(loose)}")
        classes = self._listing[2]
        if empty := [path.name for path in self._folders if path.name not in classes]:
            notes.append(f"folders without pictures were passed over ({len(empty)}): {list_names(empty)}")
        other_files = [path for _, files_beside in self._files_by_folder.values() for path in files_beside]
        if links := [path.relative_to(self.root).as_posix() for path in other_files if path.is_dir()]:
            notes.append(f"links to folders inside classes were not followed ({len(links)}): {list_names(links)}")
        if loops := [path.name for path in _visible(self.root) if _leads_up(path)]:
            notes.append(f"links to a folder that holds them were not followed ({len(loops)}): {list_names(loops)}")
        if files := [path.name for path in other_files if not path.is_dir()]:
            names = list_names(list(dict.fromkeys(files)))
            notes.append(f"files whose names are not those of pictures were passed over ({len(files)}): {names}")
        return notes


def _file_problem(file: Path, source: str) -> Problem:
    """Return the problem of a root that is neither a folder nor a table."""
    remedies = {
        ".zip": "Unpack it, and give its folder.",
        ".tar": "Unpack it, and give its folder.",
        ".xlsx": "Save it as .csv.",
    }
    endings = [suffix.lower() for suffix in file.suffixes]
    remedy = next((text for suffix, text in remedies.items() if suffix in endings), f"Expected {source}.")
    return Problem(str(file), f"must be a folder or a table ({', '.join(TABLES[:-1])} or {TABLES[-1]})", None, remedy)


def _split_parts(root: Path) -> dict[str, set[str]]:
    """Return the classes of `train` and `test` if a folder holds these parts of a split; else an empty dict.

    Validation folders count as training: a trial's validation classes are chosen from the training classes.
    """
    parts: dict[str, set[str]] = {"train": set(), "test": set()}
    for folder in _subfolders(root):
        name = folder.name.lower()
        half = "train" if name in TRAINING_PARTS else "test" if name in TEST_PARTS else None
        if half is None or _pictures_in(folder):
            return {}
        parts[half] |= {inner.name for inner in _subfolders(folder)}
    is_split = parts["train"] and parts["test"] and not parts["train"] & parts["test"]
    return parts if is_split else {}


def _part_problem(root: Path, source: str, parts: Sequence[str]) -> Problem:
    """Return the problem of parts that are not `train` and `test` with different classes."""
    classes = {part: {folder.name for folder in _subfolders(root / part)} for part in parts}
    training = [part for part in parts if part.lower() in TRAINING_PARTS]
    trained = set().union(*(classes[part] for part in training))
    tested = set().union(*(classes[part] for part in parts if part.lower() in TEST_PARTS))
    if shared := sorted(trained & tested):
        largest = max(training, key=lambda part: len(classes[part]))
        remedy = f"Give {root / largest}: the second half of its classes is then for testing."
        return Problem(str(root), SHARED_CLASSES, list_names(shared), remedy)
    rule = "holds the parts of a split, where the folders of the classes are expected"
    remedy = "Name the parts train and test, or put the class folders into one folder with data.split_file."
    return Problem(str(root), rule, list_names(parts), f"{remedy} Expected {source}.")


def _pictures_in(folder: Path) -> list[Path]:
    """Return the pictures of a folder, sorted, without those of its subfolders."""
    return [path for path in _visible(folder) if path.suffix.lower() in SUFFIXES and not path.is_dir()]


def _subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without links that lead to the folder or above it."""
    return [path for path in _visible(folder) if path.is_dir() and not _leads_up(path)]


def _leads_up(path: Path) -> bool:
    """Return whether a path is a link to a folder that holds it, which would make a class of all pictures."""
    return path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve())


def _visible(folder: Path) -> list[Path]:
    """Return what lies in a folder, sorted, without hidden files. Raise DataError if it is unreadable."""
    try:
        return sorted(path for path in folder.iterdir() if path.name[0] != ".")
    except OSError as error:
        raise DataError(Problem(str(folder), "the folder must be readable", error.strerror)) from error


def _read_split(path: Path, classes: Sequence[str]) -> tuple[dict[str, str], list[Problem]]:
    """Return class -> train or test, and every problem of the file."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte-order mark
        is_json = path.suffix.lower() == ".json"
        parts = json.loads(text, object_pairs_hook=_parts_by_class) if is_json else _split_lines(text)
    except (OSError, ValueError, RecursionError) as error:
        remedy = "Restore it, or put a copy into the folder of the pictures." if not path.exists() else ""
        return {}, [Problem(str(path), "the split file must be readable JSON or text", str(error), remedy)]
    if not isinstance(parts, dict):
        return {}, [Problem(str(path), 'must be an object {"class": "train" or "test"}', type(parts).__name__)]
    problems = [
        Problem(str(path), f"class {name!r} must be 'train' or 'test'", part)
        for name, part in parts.items()
        if part not in ("train", "test")
    ]
    problems += [
        Problem(str(path), f"class {name!r} has no folder", None, nearest(name, classes, what="class"))
        for name in parts
        if name not in classes
    ]
    if missing := [name for name in classes if name not in parts]:
        problems.append(Problem(str(path), "every class must be listed", f"missing: {list_names(missing)}"))
    return parts, problems


def _split_lines(text: str) -> dict[str, str]:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = [re.split(r"[\s,]+(?=[^\s,]+$)", line) for line in lines]
    if bad := [row for row in rows if len(row) != 2]:
        raise ValueError(f"expected `class train` or `class test`, but got {' '.join(bad[0])!r}")
    return _parts_by_class((name, part) for name, part in rows)


def _parts_by_class(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return class -> part. Raise ValueError if a class has two parts."""
    parts: dict[str, str] = {}
    for name, part in pairs:
        if parts.setdefault(name, part) != part:
            raise ValueError(f"class {name!r} is listed in two parts")
    return parts
