"""The user's own pictures, in one folder per class or listed in a table."""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated
from unicodedata import normalize

import numpy as np
from pydantic import Field

from trainables.data.base import Contents, Indices, Pictures, Progress, digest_of, problems_raised
from trainables.data.formats.class_folders import ClassFolders
from trainables.data.formats.decoding import EncodedPictures, SquarePictures
from trainables.data.formats.files import KINDS, encoded_files
from trainables.data.formats.picture_files import PictureListing, renumber_extras, single_picture_notes
from trainables.data.formats.picture_table import PictureTable, part_of, read_picture_table
from trainables.data.formats.stored import SkipCorrupt, StoredPictures, list_names
from trainables.data.formats.table_rows import TABLES
from trainables.errors import DataError, Problem, nearest, raise_if_any
from trainables.files import expand_home

_SHEETS = (".xlsx", ".xls", ".ods")


class ImageFolder(StoredPictures):
    """Pictures below `root/CLASS`, decoded to RGB squares of `size` pixels (shorter side, then centre).

    Folders `root/train/CLASS` and `root/test/CLASS` say which classes test, or a split file: JSON
    `{"class": "train" | "test"}` or text lines `class train` or `class,train`. `root` may also be a table (CSV, TSV or
    Parquet) with columns path, label and, optionally, split. Otherwise the second half of the sorted classes tests.
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
        return encoded_files(self.folder, self._listing.names)

    @property
    def names_test_classes(self) -> bool:
        """Whether a split file, the folders or the table's column say which classes test."""
        return bool(self.split_file) or self._layout.has_split

    @property
    def _is_table(self) -> bool:
        return self.root.suffix.lower() in TABLES and not self.root.is_dir()

    @cached_property
    def _layout(self) -> ClassFolders | PictureTable:
        """The folders or the table. Raise DataError for mistakes in a table."""
        return read_picture_table(self.root) if self._is_table else ClassFolders(self.root, self.source)

    @property
    def _listing(self) -> PictureListing:
        return self._layout.listing

    def check(self) -> list[Problem]:
        """Check everything, also that every picture decodes; the results are cached, so the next call is fast."""
        return self.verify()

    def verify(self, progress: Progress | None = None) -> list[Problem]:
        if not self.root.exists():
            if self._is_table:
                return [Problem(str(self.root), "the table must exist")]
            return [Problem(str(self.root), "the data folder must exist", None, f"Expected {self.source}.")]
        if not (self.root.is_dir() or self._is_table):
            return [_file_problem(self.root, self.source)]
        if self._is_table and self.split_file:
            remedy = "Leave it out, and add a column split with train or test."
            return [Problem("data.split_file", "a table names its test classes itself", str(self.split_file), remedy)]
        if problems := problems_raised(lambda: self._listing):
            return problems
        labels, classes = self._listing.labels.tolist(), self._listing.class_names
        problems = self._layout.problems()
        if self.split_file:
            problems += _read_split(self.split_file, classes)[1]
        elif self._layout.has_split and len(self._listing.test_classes) in {0, len(classes)} and not problems:
            rule, found = "the folders for training and for testing must both hold pictures", list_names(classes)
            problems.append(Problem(str(self.root), rule, found, "Fill the other, or move it away."))
        failures = self.undecodable(progress)
        problems += self.decoding_problems(failures)
        decodable = {label for i, label in enumerate(labels) if i not in failures}
        if self.skip_corrupt and len(decodable) < len(classes):
            empty = [classes[c] for c in range(len(classes)) if c not in decodable]
            problems.append(Problem(str(self.root), "these classes have no picture that decodes", empty))
        return problems

    def counts(self) -> dict[str, int]:
        labels, classes = self._listing.labels, self._listing.class_names
        test = self.test_classes(classes)
        return {
            "images": len(labels),
            "classes": len(classes),
            "test_images": int(np.isin(labels, test).sum()),
            "test_classes": len(test),
        }

    def digest(self) -> str:
        listing = self._listing
        split, pictures = self.test_classes(listing.class_names), self.digests(listing.names)
        if not self._is_table:
            return digest_of(self.name, 1, self.size, self.skip_corrupt, split, pictures)
        labelled = [(listing.class_names[c], sha256) for c, (_, sha256) in zip(listing.labels, pictures, strict=True)]
        searched = {part: numbers.tolist() for part, numbers in listing.extras.items()}
        return digest_of(self.name, "table 1", self.size, self.skip_corrupt, split, labelled, searched)

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        """Return the test classes of the split file, the parts or the table, else the second half of the classes."""
        if self.split_file is None:
            return self._listing.test_classes
        parts, problems = _read_split(self.split_file, class_names)
        raise_if_any(problems, DataError)
        return tuple(i for i, name in enumerate(class_names) if parts[name] == "test")

    def contents(self, indices: Indices) -> Contents:
        listing = self._listing
        labels = listing.labels[indices]
        notes = [*listing.notes, *single_picture_notes(labels, listing.class_names), *self._shared_notes(indices)]
        extras = renumber_extras(listing.extras, indices, len(listing.names))
        return Contents(labels, listing.class_names, tuple(notes), extras)

    def listed(self) -> Pictures:
        """Return the data set with black pictures, without those that `check` found undecodable."""
        failures = self.undecodable(None) if self.skip_corrupt else {}
        indices = self._decodable(failures)
        black = np.broadcast_to(np.uint8(0), (len(indices), self.size, self.size, 3))
        return self.with_images(black, self._contents_with_note(indices, failures), self.digest())

    def _shared_notes(self, indices: Indices) -> list[str]:
        """Report files that occur in several classes, as copies or links."""
        names, labels = self._listing.names, self._listing.labels.tolist()
        by_digest: dict[str, list[int]] = {}
        for i, (_, sha256) in enumerate(self.digests(names)):
            by_digest.setdefault(sha256, []).append(i)
        used, test = set(indices.tolist()), set(self.test_classes(self._listing.class_names))
        copies = [[i for i in same if i in used] for same in by_digest.values()]
        shared = [same for same in copies if len({labels[i] for i in same}) > 1]
        if not shared:
            return []
        across = sum(len({labels[i] in test for i in same}) > 1 for same in shared)
        listed = list_names([" = ".join(names[i] for i in same[:3]) for same in shared], 3)
        halves = f", {across} of them in a training and a test class" if across else ""
        return [f"pictures that lie in several classes: {len(shared)}{halves} ({listed})"]

    def passed_over(self) -> list[str]:
        notes = self._layout.notes()
        if self._layout.has_split and not self.split_file:
            test = len(self._listing.test_classes)
            train = len(self._listing.class_names) - test
            what = "column split splits" if self._is_table else "folders split"
            notes.insert(0, f"The {what} the classes: {train} for training and validation, {test} for testing")
        return notes


def _file_problem(file: Path, source: str) -> Problem:
    """Return the problem of a root that is neither a folder nor a table."""
    unpack = "Unpack it, and give its folder."
    remedies = dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), unpack) | dict.fromkeys(
        _SHEETS, "Save it as .csv."
    )
    endings = [suffix.lower() for suffix in file.suffixes]
    remedy = next((text for suffix, text in remedies.items() if suffix in endings), f"Expected {source}.")
    return Problem(str(file), f"must be a folder or a table ({', '.join(TABLES[:-1])} or {TABLES[-1]})", None, remedy)


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
    spelled = {normalize("NFC", name): name for name in classes} | {name: name for name in classes}  # macOS decomposes
    halves = {spelled.get(n, spelled.get(normalize("NFC", n), n)): part_of(str(part)) for n, part in parts.items()}
    problems = []
    if wrong := [f"{name}: {part}" for name, part in halves.items() if part not in ("train", "test")]:
        rule, remedy = f"every class must be 'train' or 'test', but {len(wrong)} are not", "Correct these entries."
        problems.append(Problem(str(path), rule, list_names(wrong), remedy))
    if unknown := sorted(halves.keys() - set(classes)):
        remedy = nearest(unknown[0], classes, what="class")
        problems.append(
            Problem(str(path), f"{len(unknown)} listed classes have no folder", list_names(unknown), remedy)
        )
    if missing := [name for name in classes if name not in halves]:
        problems.append(
            Problem(str(path), "every class must be listed", f"missing: {list_names(missing)}", "Add them.")
        )
    if not problems and len(set(halves.values())) == 1:
        rule = "must name classes for training and classes for testing"
        problems.append(Problem(str(path), rule, f"only {halves[classes[0]]}", "Change some entries."))
    return halves, problems


def _split_lines(text: str) -> dict[str, str]:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = [re.split(r"[\s,;]+(?=[^\s,;]+$)", line) for line in lines]
    if rows and rows[0][-1].casefold() == "split":  # a header
        del rows[0]
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
