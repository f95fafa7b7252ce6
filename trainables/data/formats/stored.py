"""Base class of data sets of pictures on the user's disk: decoded once into the cache, or at each use on a full disk.

It handles undecodable pictures and resuming, and gives equal pixels with and without a cache.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainables.data.base import Contents, DataSet, Indices, Pictures, Progress
from trainables.data.formats import cache
from trainables.data.formats.cache import Images, Pixels, RaggedImages
from trainables.data.formats.decoding import EncodedPictures, SquarePictures, WholePictures, decode, failure_problems
from trainables.data.formats.files import digests, unreadable_files
from trainables.errors import DataError, Problem

SkipCorrupt = Annotated[bool, Field(description="leave out pictures that cannot be decoded")]
Strict = Annotated[bool, Field(description="refuse data that differ from the published counts or checksums")]
FaceSize = Annotated[int, Field(ge=16, le=512, description="height and width in pixels")]


class _SquaresOnDemand:
    """Squares as `decode` writes them, decoded at each use; indexes like an array (N, size, size, 3)."""

    def __init__(self, encoded: EncodedPictures, indices: Indices, form: SquarePictures) -> None:
        self.encoded, self.indices, self.form = encoded, indices, form
        self.shape: tuple[int, ...] = (len(indices), form.size, form.size, 3)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int | np.integer | NDArray[np.int64]) -> Pixels:
        if isinstance(index, int | np.integer):
            with self.encoded.open(int(self.indices[index])) as image:
                return self.form.pixels(image)
        chosen = np.arange(len(self))[index]
        return np.array([self[number] for number in chosen], dtype=np.uint8).reshape(len(chosen), *self.shape[1:])


class _WholeOnDemand(RaggedImages):
    """Whole pictures as `decode` writes them, decoded at each use; `indices` numbers those in use."""

    def __init__(self, encoded: EncodedPictures, indices: Indices, form: WholePictures) -> None:
        no_pixels, no_offsets = np.zeros(0, dtype=np.uint8), np.zeros(len(indices), dtype=np.int64)
        super().__init__(no_pixels, no_offsets, form.sizes(encoded)[indices], channels=3)
        self.encoded, self.indices, self.form = encoded, indices, form

    def __getitem__(self, index: int | np.integer) -> Pixels:
        with self.encoded.open(int(self.indices[index])) as image:
            return self.form.pixels(image)


class StoredPictures(DataSet):
    """Encoded pictures on the user's disk.

    `form` says how decoded pictures are stored. `skip_corrupt` leaves out undecodable pictures, with a note; otherwise
    they are problems. A subclass also implements `folder`, `encoded` and `contents`.
    """

    def __init__(self, *, cache_dir: Path, form: SquarePictures | WholePictures, skip_corrupt: bool) -> None:
        super().__init__(cache_dir=cache_dir)
        self.form = form
        self.skip_corrupt = skip_corrupt

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Folder that picture names are relative to."""

    @property
    @abstractmethod
    def encoded(self) -> EncodedPictures:
        """Encoded pictures. Raise DataError if the files cannot be listed."""

    @abstractmethod
    def contents(self, indices: Indices) -> Contents:
        """Return labels and notes of the pictures with these indices."""

    def verify(self, progress: Progress | None = None) -> list[Problem]:
        return self.check() or self.decoding_problems(self.undecodable(progress))

    def undecodable(self, progress: Progress | None) -> dict[int, str]:
        """Return picture number -> reason for each picture that does not decode to its end."""
        return unreadable_files(self.folder, self.encoded.names, self.cache_dir, progress)

    def decoding_problems(self, failures: Mapping[int, str]) -> list[Problem]:
        """Return a problem per failure. If failures may be left out, store them in `unreadable` and return none."""
        names = self.encoded.names
        if not self.skip_corrupt or len(failures) == len(names):
            return failure_problems(failures, names, self.folder)
        self.unreadable = tuple(names[i] for i in sorted(failures))
        return []

    def digests(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return (name, SHA-256) of files in `folder`, for `digest`."""
        return digests(self.folder, names, self.cache_dir, skip=self.skip_corrupt)

    def write(self, directory: Path, progress: Progress | None) -> Contents:
        failures = decode(directory, self.encoded, self.form, progress)
        indices = self._decodable(failures)
        if failures:
            cache.select_images(directory, indices)
        return self._contents_with_note(indices, failures)

    def listed(self) -> Pictures | None:
        if self.skip_corrupt:  # which pictures stay is known only after decoding
            return None
        number, side = len(self.encoded.names), self.form.size if isinstance(self.form, SquarePictures) else 0
        black = np.broadcast_to(np.uint8(0), (number, side, side, 3))
        return self.with_images(black, self.contents(np.arange(number)), self.digest())

    def on_demand(self, progress: Progress | None) -> tuple[Images, Contents]:
        failures = self.undecodable(progress)
        indices = self._decodable(failures)
        contents, form = self._contents_with_note(indices, failures), self.form
        if isinstance(form, SquarePictures):
            return _SquaresOnDemand(self.encoded, indices, form), contents
        return _WholeOnDemand(self.encoded, indices, form), contents

    def _decodable(self, failures: Mapping[int, str]) -> Indices:
        """Return the pictures that stay. Raise DataError if failures may not be left out."""
        names = self.encoded.names
        indices = np.setdiff1d(np.arange(len(names)), list(failures))
        if failures and not (self.skip_corrupt and len(indices)):
            raise DataError(failure_problems(failures, names, self.folder))
        return indices

    def _contents_with_note(self, indices: Indices, failures: Mapping[int, str]) -> Contents:
        """Return `contents` with a note on pictures that were left out."""
        contents = self.contents(indices)
        if not failures:
            return contents
        lost = [self.encoded.names[i] for i in sorted(failures)]
        note = f"pictures that cannot be decoded were left out ({len(lost)}): {list_names(lost)}"
        return replace(contents, notes=(*contents.notes, note))


def list_names(names: Iterable[str], limit: int = 5) -> str:
    """Join the first `limit` names, and add dots if there are more."""
    all_names = list(names)
    return ", ".join(all_names[:limit]) + (" ..." if len(all_names) > limit else "")


def other_file_notes(root: Path, files: Sequence[Path]) -> list[str]:
    """Return notes on the other files that `find_pictures` found below `root`."""
    notes = []
    if links := [path.relative_to(root).as_posix() for path in files if path.is_dir()]:
        notes.append(f"links to folders were not followed ({len(links)}): {list_names(links)}")
    if names := [path.name for path in files if not path.is_dir()]:
        listed = list_names(dict.fromkeys(names))
        notes.append(f"files whose names are not those of pictures were passed over ({len(names)}): {listed}")
    return notes
