"""Data sets that are picture files plus published lists: found, counted, decoded; a subclass only reads the lists."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainables.data import archives
from trainables.data.base import Contents, DataSet, Labels, Progress, digest_of
from trainables.data.decoding import decode_ragged, failure_problems, keep_or_raise
from trainables.data.files import encoded_files, fingerprints
from trainables.errors import DataError, Problem, raise_if_any

__all__ = ["Listing", "PictureFiles", "contiguous", "few", "find_folder", "table"]

ShorterSide = Annotated[
    int | None, Field(ge=16, description="pictures are stored with this shorter side; null keeps their size")
]
SkipCorrupt = Annotated[bool, Field(description="leave out pictures that cannot be decoded")]
Strict = Annotated[bool, Field(description="refuse data that differ from the published counts or checksums")]


@dataclass(frozen=True)
class Listing:
    """What the published lists say; picture files are named relative to the data set's folder."""

    names: Sequence[str]
    labels: Labels
    class_names: tuple[str, ...]
    test_classes: tuple[int, ...]
    extras: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    lists: Sequence[str] = ()
    """The list files, whose content is part of the identity."""
    notes: tuple[str, ...] = ()


class PictureFiles(DataSet):
    """Pictures stored whole, with one shorter side, so that random crops see all of them.

    `root` is the folder (or its parent), or the archive as downloaded, which is unpacked once into the cache. A subclass
    sets `marker` (a file or folder that tells the data set's folder), `folders` (where below `root` to look for it),
    `archives` (name -> MD5), `expected`, and implements `read`.
    """

    marker: ClassVar[str]
    folders: ClassVar[tuple[str, ...]] = (".",)
    archives: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        *,
        root: Path,
        cache_dir: Path,
        shorter_side: ShorterSide = 256,
        skip_corrupt: SkipCorrupt = False,
        strict: Strict = True,
    ) -> None:
        super().__init__(cache_dir=cache_dir)
        self.root = root
        self.shorter_side = shorter_side
        self.skip_corrupt = skip_corrupt
        self.strict = strict

    @abstractmethod
    def read(self, folder: Path) -> Listing:
        """Read the published lists in `folder`; raises DataError naming file and line."""

    @cached_property
    def folder(self) -> Path:
        """The data set's folder; raises DataError when it is not below `root`."""
        root = archives.unpacked(self.root, self.cache_dir)
        return find_folder(root, self.folders, self.marker, given=self.root, source=self.source)

    @cached_property
    def listing(self) -> Listing:
        """The published lists."""
        return self.read(self.folder)

    def check(self) -> list[Problem]:
        """The folder, the lists, the counts, and that every listed file is there; a downloaded archive is unpacked."""
        try:
            listing = self.listing
        except DataError as error:
            return list(error.problems)
        missing = [name for name in listing.names if not _inside(name) or not (self.folder / name).is_file()]
        found = (
            [Problem(str(self.folder), f"{len(missing)} listed pictures are missing", few(missing))]
            if missing
            else []
        )
        return found + (count_problems(self, counts(listing), str(self.folder)) if self.strict else [])

    def verify(self) -> list[Problem]:
        """`check`, the archive's checksum, class-disjoint halves, and that every picture decodes: reads everything."""
        found = archives.checksum_problems(self.root, self.archives) + self.check()
        if found:
            return found
        prints = fingerprints(self.folder, list(self.listing.names), self.cache_dir, verify=True)
        reasons = {i: prints[name].reason for i, name in enumerate(self.listing.names) if prints[name].reason}
        return failure_problems(reasons, self.listing.names)

    def digest(self) -> str:
        """Lists, names and content of the pictures, settings."""
        listing = self.listing
        prints = fingerprints(self.folder, [*listing.lists, *listing.names], self.cache_dir, verify=False)
        content = [(name, print_.sha256) for name, print_ in prints.items()]
        return digest_of(self.name, 1, self.shorter_side, self.skip_corrupt, content)

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        """The published test half."""
        return self.listing.test_classes

    def write(self, directory: Path, progress: Progress | None) -> Contents:
        """Decode in parallel, from where an interrupted call stopped."""
        listing = self.listing
        encoded = encoded_files(self.folder, listing.names)
        failures = decode_ragged(directory, encoded, self.shorter_side, progress)
        kept = keep_or_raise(directory, failures, listing.names, skip_corrupt=self.skip_corrupt)
        notes = list(listing.notes)
        notes += [
            f"differs from the published data: {p.rule}, but got {p.value}"
            for p in self._differences(listing)
        ]
        if failures:
            lost = [listing.names[i] for i in sorted(failures)]
            notes.append(f"{len(lost)} pictures cannot be decoded and were left out: {few(lost)}")
        extras = keep_extras(listing.extras, kept, len(listing.names))
        return Contents(listing.labels[kept], listing.class_names, tuple(notes), extras)

    def _differences(self, listing: Listing) -> list[Problem]:
        return count_problems(self, counts(listing), str(self.folder))


# Entries of `extras` that number pictures, and so change when pictures are left out.
NUMBERING = ("query", "gallery", "official_test", "pairs")


def keep_extras(
    extras: Mapping[str, NDArray[np.generic]], kept: NDArray[np.int64], total: int
) -> dict[str, NDArray[np.generic]]:
    """Index arrays renumbered to the pictures that stay; a pair that lost a picture goes, with its other columns."""
    if len(kept) == total:
        return dict(extras)
    place = np.full(total, -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    pairs = extras.get("pairs", np.zeros((0, 2), dtype=np.int64)).astype(np.int64)
    pairs_left = np.all(place[pairs] >= 0, axis=1)
    result: dict[str, NDArray[np.generic]] = {}
    for key, array in extras.items():
        if key in NUMBERING:
            moved = place[array.astype(np.int64)]
            result[key] = moved[pairs_left] if key == "pairs" else moved[moved >= 0]
        elif key in ("same", "fold"):
            result[key] = array[pairs_left]
        else:  # one entry a picture
            result[key] = array[kept]
    return result


def counts(listing: Listing) -> dict[str, int]:
    """The figures that papers quote."""
    test = np.isin(listing.labels, listing.test_classes)
    figures = {
        "images": len(listing.labels),
        "classes": len(listing.class_names),
        "train_images": int((~test).sum()),
        "train_classes": len(listing.class_names) - len(listing.test_classes),
        "test_images": int(test.sum()),
        "test_classes": len(listing.test_classes),
    }
    return figures | {key: len(array) for key, array in listing.extras.items()}


def count_problems(dataset: DataSet, figures: Mapping[str, int], place: str) -> list[Problem]:
    """One problem for each published count that these data do not have."""
    return [
        Problem(place, f"{dataset.name} has {expected} {key.replace('_', ' ')}", figures.get(key, 0), _REMEDY)
        for key, expected in dataset.expected.items()
        if figures.get(key, 0) != expected
    ]


_REMEDY = "Download it again, or set data.strict=false to use it as it is."


def find_folder(root: Path, folders: Iterable[str], marker: str, *, given: Path, source: str) -> Path:
    """The first of `root`'s `folders` that holds `marker`; raises DataError saying what was looked for and where."""
    if not given.exists():
        raise DataError(Problem(str(given), "the data folder must exist", None, f"Get it from: {source}."))
    tried = [root / folder for folder in folders]
    for folder in tried:
        if (folder / marker).exists():
            return folder.resolve()
    rule = f"must hold {marker}, there or in {' or '.join(folders)}"
    raise DataError(Problem(str(given), rule, None, f"Get it from: {source}."))


def table(path: Path, columns: int, *, skip: int = 0) -> list[list[str]]:
    """Rows of a white-space separated list after `skip` head lines; the last column may hold blanks.

    Raises DataError naming file and line of every row that has too few columns.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise DataError(Problem(str(path), "the list must be readable", str(error))) from error
    rows, problems = [], []
    for number, line in enumerate(lines[skip:], start=skip + 1):
        if not line.strip():
            continue
        row = line.split(maxsplit=columns - 1)
        if len(row) == columns:
            rows.append([cell.strip() for cell in row])
        else:
            problems.append(Problem(f"{path}:{number}", f"must have {columns} columns", line))
    raise_if_any(problems[:10], DataError)
    return rows


def contiguous(ids: Sequence[int] | NDArray[np.int64]) -> tuple[Labels, list[int]]:
    """Labels 0 .. C-1 in the order of the ids, and the id of each label."""
    known, labels = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)
    return labels.astype(np.int64).reshape(-1), known.tolist()


def few(names: Sequence[str], shown: int = 5) -> str:
    """The first names, and dots when there are more."""
    return ", ".join(names[:shown]) + (" ..." if len(names) > shown else "")


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
