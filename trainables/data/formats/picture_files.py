"""Base class of data sets of picture files with published lists; a subclass only reads the lists."""

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainables.data.base import Contents, DataSet, Indices, Labels, Progress, digest_of, problems_raised
from trainables.data.formats import archives
from trainables.data.formats.archives import other_data_remedy
from trainables.data.formats.decoding import EncodedPictures, WholePictures
from trainables.data.formats.files import encoded_files
from trainables.data.formats.stored import SkipCorrupt, StoredPictures, Strict, list_names
from trainables.errors import DataError, Problem, raise_if_any

_SHOWN = 5  # folders in a message

ShorterSide = Annotated[
    int | None, Field(ge=16, description="pictures are stored with this shorter side; null keeps their size")
]


@dataclass(frozen=True)
class PictureListing:
    """Content of the published lists; picture names are relative to the data set's folder."""

    names: Sequence[str]
    labels: Labels
    class_names: tuple[str, ...]
    test_classes: tuple[int, ...]
    extras: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    lists: Sequence[str] = ()  # list files; their content is part of the digest
    notes: tuple[str, ...] = ()


class PictureFiles(StoredPictures):
    """Whole pictures with one shorter side, so that random crops see all of them.

    `root` is the folder, its parent, or the downloaded archive, which is unpacked once into the cache. A subclass sets
    `marker` (a file or folder that identifies the folder), `folders` (where below `root` to search), `archives` and
    `list_digests` (name -> MD5) and `expected`, and implements `read`.
    """

    marker: ClassVar[str]
    folders: ClassVar[tuple[str, ...]] = (".",)
    archives: ClassVar[Mapping[str, str]] = {}
    list_digests: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        *,
        root: Path,
        cache_dir: Path,
        shorter_side: ShorterSide = 256,
        skip_corrupt: SkipCorrupt = False,
        strict: Strict = True,
    ) -> None:
        super().__init__(cache_dir=cache_dir, form=WholePictures(shorter_side), skip_corrupt=skip_corrupt)
        self.root = root
        self.shorter_side = shorter_side
        self.strict = strict

    @abstractmethod
    def read(self, folder: Path) -> PictureListing:
        """Read the published lists in `folder`. Raise DataError that names file and line."""

    @cached_property
    def folder(self) -> Path:
        """Return the data set's folder. Raise DataError if it is not below `root`."""
        root = archives.unpacked_folder(self.root, self.cache_dir)
        return find_folder(root, self.folders, self.marker, given=self.root, source=self.source, archives=self.archives)

    @cached_property
    def listing(self) -> PictureListing:
        return self.read(self.folder)

    @property
    def encoded(self) -> EncodedPictures:
        return encoded_files(self.folder, self.listing.names)

    def check(self) -> list[Problem]:
        """Check the folder, the lists, the counts and that every listed file exists."""
        if problems := problems_raised(lambda: self.listing):
            return problems
        problems = _listing_problems(self.folder, self.listing)
        differing = _differing_counts(self, counts(self.listing)) if self.strict else []
        place = str(self.folder)
        return problems + [
            Problem(place, f"{self.name} has {expected} {name}", own, other_data_remedy(self.strict_setting))
            for name, own, expected in differing
        ]

    def verify(self, progress: Progress | None = None) -> list[Problem]:
        """Check everything, published checksums and that every picture decodes.

        `strict=False` accepts differences from the published data, `skip_corrupt=True` undecodable pictures.
        """
        lists = [] if problems_raised(lambda: self.listing) else self._published_lists()  # `check` reports why
        files = [(self.root, self.archives), *lists] if self.strict else []
        problems = [problem for path, md5s in files for problem in archives.checksum_problems(path, md5s)]
        return problems + self.check() if problems else super().verify(progress)

    def _published_lists(self) -> list[tuple[Path, Mapping[str, str]]]:
        return [(self.folder / name, self.list_digests) for name in self.listing.lists]

    def counts(self) -> dict[str, int]:
        return counts(self.listing)

    def checksums(self) -> dict[str, str]:
        return archives.checksums([(self.root, self.archives), *self._published_lists()])

    def digest(self) -> str:
        digests = self.digests([*self.listing.lists, *self.listing.names])
        # A list outside the folder enters the digest by its name, not by its path.
        content = [(PurePosixPath(name).name if name[0] == "/" else name, sha256) for name, sha256 in digests]
        return digest_of(self.name, 1, self.shorter_side, self.skip_corrupt, content)

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        return self.listing.test_classes

    def contents(self, indices: Indices) -> Contents:
        listing = self.listing
        labels = listing.labels[indices]
        notes = [*listing.notes, *single_picture_notes(labels, listing.class_names)]
        notes += differences(self, counts(listing))
        extras = renumber_extras(listing.extras, indices, len(listing.names))
        return Contents(labels, listing.class_names, tuple(notes), extras)


# Entries of `extras` that hold picture numbers.
_NUMBERING = ("query", "gallery", "official_test", "pairs")


def renumber_extras(
    extras: Mapping[str, NDArray[np.generic]], indices: NDArray[np.int64], total: int
) -> dict[str, NDArray[np.generic]]:
    """Renumber index arrays to the pictures that stay; drop pairs that lost a picture."""
    if len(indices) == total:
        return dict(extras)
    number = np.full(total, -1, dtype=np.int64)
    number[indices] = np.arange(len(indices))
    pairs = extras.get("pairs", np.zeros((0, 2), dtype=np.int64)).astype(np.int64)
    pairs_left = np.all(number[pairs] >= 0, axis=1)
    result: dict[str, NDArray[np.generic]] = {}
    for key, array in extras.items():
        if key in _NUMBERING:
            moved = number[array.astype(np.int64)]
            result[key] = moved[pairs_left] if key == "pairs" else moved[moved >= 0]
        elif key in ("same", "fold"):
            result[key] = array[pairs_left]
        else:  # one entry for each picture
            result[key] = array[indices]
    return result


def counts(listing: PictureListing) -> dict[str, int]:
    """Return the counts that papers quote."""
    test = np.isin(listing.labels, listing.test_classes)
    figures = {
        "images": len(listing.labels),
        "classes": len(listing.class_names),
        "train_images": int((~test).sum()),
        "train_classes": len(listing.class_names) - len(listing.test_classes),
        "test_images": int(test.sum()),
        "test_classes": len(listing.test_classes),
    }
    return figures | {key: len(array) for key, array in listing.extras.items() if key in _NUMBERING}


def differences(dataset: DataSet, figures: Mapping[str, int]) -> list[str]:
    """Return a note on the counts that differ from the published ones; none if all agree."""
    parts = [f"{own} {name} (published: {expected})" for name, own, expected in _differing_counts(dataset, figures)]
    return [f"differs from the published data: {', '.join(parts)}"] if parts else []


def _differing_counts(dataset: DataSet, figures: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Return (name, own count, published count) for each count that differs."""
    return [
        (key.replace("_", " "), figures.get(key, 0), expected)
        for key, expected in dataset.expected.items()
        if figures.get(key, 0) != expected
    ]


def _listing_problems(folder: Path, listing: PictureListing) -> list[Problem]:
    """Report an empty list, pictures that are listed twice, which would find themselves, and missing pictures."""
    if not len(listing.names):
        return [Problem(str(folder), "the lists name no picture", None, "Extract the archive again.")]
    missing = _missing_problems(folder, listing.names)
    if not (repeated := [name for name, count in Counter(listing.names).items() if count > 1]):
        return missing
    rule = f"a picture may be listed once, but {len(repeated)} are repeated"
    return [Problem(str(folder), rule, list_names(repeated), "Extract the archive again."), *missing]


def _missing_problems(folder: Path, names: Sequence[str]) -> list[Problem]:
    """Report missing pictures by folder, as after an incomplete extraction."""
    listed, missing = Counter(map(_parent, names)), defaultdict(list)
    for name in names:
        if not _inside(name) or not (folder / name).is_file():
            missing[_parent(name)].append(name)
    if not missing:
        return []
    count = sum(map(len, missing.values()))
    complete = [parent for parent, names_lost in missing.items() if len(names_lost) == listed[parent]]
    partial = [parent for parent, names_lost in missing.items() if len(names_lost) < listed[parent]]
    parts = [f"all of {list_names(complete)}"] if complete else []
    parts += [f"{len(missing[p])} of the {listed[p]} in {p}: {list_names(missing[p], 3)}" for p in partial[:_SHOWN]]
    if len(partial) > _SHOWN:
        parts.append(f"some in {len(partial) - _SHOWN} more folders")
    rule = f"{count} listed pictures are missing, in {len(missing)} of {len(listed)} folders"
    remedy = "Extract the whole archive again; a list of another copy does not fit."
    return [Problem(str(folder), rule, "; ".join(parts), remedy)]


def _parent(name: str) -> str:
    return name.rpartition("/")[0] or "."


def single_picture_notes(labels: Labels, class_names: Sequence[str]) -> list[str]:
    """Return notes on classes with one picture or none, which have no positive pair."""
    counts = np.bincount(labels, minlength=len(class_names))
    notes = []
    if single := [class_names[c] for c in np.flatnonzero(counts == 1).tolist()]:
        notes.append(f"classes with a single picture, which is no query ({len(single)}): {list_names(single)}")
    if none := [class_names[c] for c in np.flatnonzero(counts == 0).tolist()]:
        notes.append(f"classes without a picture left ({len(none)}): {list_names(none)}")
    return notes


def find_folder(
    root: Path, folders: Sequence[str], marker: str, *, given: Path, source: str, archives: Iterable[str] = ()
) -> Path:
    """Return the first of `root`'s `folders` that holds `marker`. Raise DataError if none does."""
    require_root(given, source)
    doubled = [f"{folder}/{folder}" for folder in folders if folder != "."]  # unpacked into a folder of the same name
    for folder in (*folders, *doubled):
        if (root / folder / marker).exists():
            return (root / folder).resolve()
    below = [folder for folder in folders if folder != "."]
    rule = f"must hold {marker}" + (f", directly or in {' or '.join(below)}/" if below else "")
    raise wrong_root(root, rule, given=given, source=source, archives=archives, markers=[marker])


def folder_remedy(root: Path, markers: Sequence[str]) -> str:
    """Return a remedy that names the folder with a marker, one or two levels above or below `root`; else empty."""
    for above in root.absolute().parents[:2]:
        if any((above / name).exists() for name in markers):
            return f"Pass the folder above, {above}."
    for levels in ("*", "*/*"):
        for name in sorted(markers, key=len, reverse=True):  # Eval/list.txt before list.txt, which Eval holds
            below = [path.parents[name.count("/")] for path in root.glob(f"{levels}/{name}")]
            if len(below) == 1:
                return f"Pass the folder below, {below[0]}."
    return ""


def require_root(given: Path, source: str) -> None:
    """Raise DataError unless `given` exists."""
    if not given.exists():
        raise DataError(Problem(str(given), "the data folder must exist", None, f"Get it from: {source}."))


def wrong_root(
    root: Path, rule: str, *, given: Path, source: str, archives: Iterable[str] = (), markers: Sequence[str] = ()
) -> DataError:
    """Return the error for a wrong `root`, with its content and, if found, the folder with a marker or the archive."""
    holds = sorted(path.name + "/" * path.is_dir() for path in root.iterdir() if path.name[0] != ".")
    archive = next((name for name in archives if name in holds), None)
    remedy = f"Pass the archive itself, {given / archive}." if archive else f"Get it from: {source}."
    remedy = folder_remedy(given, markers) or remedy
    content = f"a folder with {list_names(holds)}" if holds else "an empty folder"
    return DataError(Problem(str(given), rule, content, remedy))


def read_columns(path: Path, columns: int, *, skip: int = 0, head: str = "") -> list[list[str]]:
    """Return the rows of a blank-separated list after `skip` head lines; the last column may hold blanks.

    Raise a DataError that names file and line of each row with too few columns, or if the last head line does not begin
    with `head`: it would be a row that is lost.
    """
    lines = read_list(path).splitlines()
    last_head = "".join(lines[skip - 1 : skip]).strip()
    if not last_head.startswith(head):
        rule, remedy = f"must be the head line, which begins with {head}", "Extract the archive again."
        raise DataError(Problem(f"{path}:{skip}", rule, last_head, remedy))
    rows, problems = [], []
    for number, line in enumerate(lines[skip:], start=skip + 1):
        if not line.strip():
            continue
        row = line.split(maxsplit=columns - 1)
        if len(row) == columns:
            rows.append([cell.strip() for cell in row])
        else:
            problems.append(
                Problem(f"{path}:{number}", f"must have {columns} columns", line, "Extract the archive again.")
            )
    raise_if_any(problems[:10], DataError)
    return rows


def read_list(path: Path) -> str:
    """Return the text of a list. Raise DataError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        rule = "the list must be there" if isinstance(error, FileNotFoundError) else "the list must be readable"
        reason = None if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise DataError(Problem(str(path), rule, reason, "Extract the archive again.")) from error


def number_ids(ids: Sequence[int] | Sequence[str]) -> tuple[Labels, tuple[str, ...]]:
    """Return labels 0 .. C-1 in the order of the ids, and the id of each label as text."""
    distinct, labels = np.unique(ids, return_inverse=True)
    return labels.astype(np.int64).reshape(-1), tuple(str(item) for item in distinct.tolist())


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
