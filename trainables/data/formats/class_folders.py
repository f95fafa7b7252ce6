"""List the user's pictures in one folder per class, perhaps in folders for training and testing."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from shlex import quote

import numpy as np

from trainables.data.formats.feature_store import FEATURES
from trainables.data.formats.files import SUFFIXES, find_pictures, leads_up
from trainables.data.formats.picture_files import PictureListing
from trainables.data.formats.picture_table import SHARED_CLASSES, TEST_PARTS, TRAINING_PARTS
from trainables.data.formats.stored import list_names, other_file_notes
from trainables.data.formats.table_rows import TABLES
from trainables.errors import DataError, Problem

_MIN_CLASSES = 4
"""Smallest number of classes: two train, two test."""
_PUBLISHED = {
    "image_class_labels.txt": "cub200",
    "cars_annos.mat": "cars196",
    "devkit/cars_train_annos.mat": "cars196",
    "Ebay_train.txt": "sop",
    "list_eval_partition.txt": "inshop",
    "Eval/list_eval_partition.txt": "inshop",
}
"""List -> the published data set that it belongs to."""
_PART_NAMES = TRAINING_PARTS | TEST_PARTS | {"query", "gallery"}


class ClassFolders:
    """Pictures below `root/CLASS`, or below `root/train/CLASS` and `root/test/CLASS`; `source` describes them."""

    def __init__(self, root: Path, source: str) -> None:
        self.root = root
        self.source = source

    @property
    def has_split(self) -> bool:
        """Whether the folders say which classes test."""
        return bool(self._parts)

    @cached_property
    def listing(self) -> PictureListing:
        """Return the pictures by class and name, without empty folders. Without parts the second half tests."""
        pictures: dict[str, list[Path]] = {}
        for folder, (found, _) in self._files_by_folder.items():
            pictures.setdefault(folder.name, []).extend(found)  # train and val may share a class
        classes = tuple(name for name, files in pictures.items() if files)
        half = range((len(classes) + 1) // 2, len(classes))
        tests = [i for i, name in enumerate(classes) if name in self._parts["test"]] if self._parts else half
        return PictureListing(
            names=[file.relative_to(self.root).as_posix() for name in classes for file in pictures[name]],
            labels=np.repeat(np.arange(len(classes)), [len(pictures[name]) for name in classes]),
            class_names=classes,
            test_classes=tuple(tests),
        )

    @cached_property
    def _files_by_folder(self) -> dict[Path, tuple[list[Path], list[Path]]]:
        """Candidate class folder -> its pictures and its other files."""
        return {folder: find_pictures(folder) for folder in self._folders}

    @cached_property
    def _folders(self) -> list[Path]:
        """Return the candidate class folders, sorted by class name. Raise DataError if the root is unreadable."""
        if not self._parts:
            return _subfolders(self.root)
        folders = [folder for part in _subfolders(self.root) for folder in _subfolders(part)]
        return sorted(folders, key=lambda folder: (folder.name, folder))

    @cached_property
    def _parts(self) -> dict[str, set[str]]:
        """The classes of `train` and `test` if the root holds these parts of a split; else empty.

        Validation folders count as training: a trial's validation classes are chosen from the training classes.
        """
        parts: dict[str, set[str]] = {"train": set(), "test": set()}
        for folder in _subfolders(self.root):
            name = folder.name.lower()
            half = "train" if name in TRAINING_PARTS else "test" if name in TEST_PARTS else None
            if half is None and not find_pictures(folder)[0]:
                continue  # such as __MACOSX
            if half is None or _pictures_in(folder):
                return {}
            parts[half] |= {inner.name for inner in _subfolders(folder)}
        is_split = parts["train"] and parts["test"] and not parts["train"] & parts["test"]
        return parts if is_split else {}

    def problems(self) -> list[Problem]:
        """Return the problems of folders that are not those of two or more classes."""
        classes = self.listing.class_names
        expected = f"Expected {self.source}."
        parts = [name for name in classes if name.lower() in _PART_NAMES]
        if len(parts) == len(classes) >= 2 and not all(_pictures_in(self.root / part) for part in parts):
            return [_part_problem(self.root, self.source, parts)]
        if self._nested_example and 2 <= len(classes) < _MIN_CLASSES:
            rule = f"holds {len(classes)} folders of folders, where the folders of the classes are expected"
            remedy = f"If the inner folders are the classes, put them into one folder. {expected}"
            return [Problem(str(self.root), rule, list_names(classes), remedy)]
        tables = [path for path in _visible(self.root) if path.suffix.lower() in TABLES and path.is_file()]
        with_table = f"{expected} Or give the table {tables[0]}." if tables else expected
        if len(parts) == len(classes) >= 2 and tables:  # pictures for training and testing, and their labels
            rule = "holds pictures of parts, where the folders of the classes are expected"
            return [Problem(str(self.root), rule, list_names(parts), with_table)]
        if len(classes) >= 2:
            return []
        if _pictures_in(self.root) and not classes:
            rule = f"pictures must lie in one folder a class, but {len(_pictures_in(self.root))} lie in the root itself"
            return [Problem(str(self.root), rule, _pictures_in(self.root)[0].name, with_table)]
        found = f"only {classes[0]!r}" if classes else "no picture at all"
        inner = next((_only_folders(folder) for folder in self._folders if folder.name in classes), None)
        remedy = f"If the folders in it are the classes, give {inner}. {with_table}" if inner else with_table
        if name := self._published:
            remedy = f"It holds the lists of {name}: use --dataset {name} --data-root {quote(str(self.root))}."
        if not classes and (self.root / FEATURES).exists():
            remedy = f"It has stored features: use --dataset features --data-root {quote(str(self.root))}."
        return [Problem(str(self.root), "at least 2 classes are needed", found, remedy)]

    @property
    def _published(self) -> str:
        """The published data set whose lists lie in the root; empty if there are none."""
        return next((name for file, name in _PUBLISHED.items() if (self.root / file).exists()), "")

    @property
    def _nested_example(self) -> str:
        """Return an inner folder as an example if every class has its pictures in several inner folders; else empty."""
        inner = [
            {file.parts[len(folder.parts)] if file.parent != folder else "" for file in files}
            for folder, (files, _) in self._files_by_folder.items()
            if files
        ]
        several = all(len(names) > 1 and "" not in names for names in inner)
        return f"{self.listing.class_names[0]}/{min(inner[0])}" if inner and several else ""

    def notes(self) -> list[str]:
        """Return remarks on files and folders that are not read."""
        notes = []
        if name := self._published:
            notes.append(f"the folder holds the lists of {name}: --dataset {name} reads its own classes and split")
        if self._nested_example:
            notes.append(
                f"Every class folder has folders in it, such as {self._nested_example}; these are not separate classes"
            )
        if loose := [path.name for path in _pictures_in(self.root)]:
            notes.append(f"pictures in no class's folder were passed over ({len(loose)}): {list_names(loose)}")
        classes = set(self.listing.class_names)
        if empty := [path.name for path in self._folders if path.name not in classes]:
            notes.append(f"folders without pictures were passed over ({len(empty)}): {list_names(empty)}")
        if broken := [path.name for path in _visible(self.root) if path.is_symlink() and not path.exists()]:
            notes.append(f"links that lead nowhere were passed over ({len(broken)}): {list_names(broken)}")
        if loops := [path.name for path in _visible(self.root) if leads_up(path)]:
            notes.append(f"links to a folder that holds them were not followed ({len(loops)}): {list_names(loops)}")
        other_files = [path for _, files_beside in self._files_by_folder.values() for path in files_beside]
        return notes + other_file_notes(self.root, other_files)


def _only_folders(folder: Path) -> Path | None:
    """Return the first folder, from `folder` down a chain of single folders, that holds several; None without one."""
    while len(inner := [path for path in _subfolders(folder) if find_pictures(path)[0]]) == 1:
        folder = inner[0]
    return folder if inner else None


def _part_problem(root: Path, source: str, parts: Sequence[str]) -> Problem:
    """Return the problem of parts that are not `train` and `test` with different classes."""
    classes = {part: {folder.name for folder in _subfolders(root / part)} for part in parts}
    training = [part for part in parts if part.lower() in TRAINING_PARTS]
    if loose := [part for part in parts if _pictures_in(root / part)]:
        remedy = (
            f"Give {root / max(parts, key=lambda part: len(classes[part]))} alone, or sort the others into classes."
        )
        return Problem(str(root), "pictures of a part must lie in one folder a class", list_names(loose), remedy)
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
    return [path for path in _visible(folder) if path.is_dir() and not leads_up(path)]


def _visible(folder: Path) -> list[Path]:
    """Return what lies in a folder, sorted, without hidden files. Raise DataError if it is unreadable."""
    try:
        return sorted(path for path in folder.iterdir() if path.name[0] != ".")
    except OSError as error:
        raise DataError(Problem(str(folder), "the folder must be readable", error.strerror)) from error
