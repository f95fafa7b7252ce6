"""Stored features of a frozen backbone: a data set whose pictures are vectors."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from trainables.data.base import Contents, DataSet, Pictures, Progress, digest_of
from trainables.data.formats.feature_store import (
    FEATURES,
    METADATA,
    SPLITS,
    StoreDigest,
    open_rows,
    read_table,
    store_problems,
)
from trainables.errors import DataError, Problem, raise_if_any


class Features(DataSet):
    """Features that `tune-dml features` wrote: row-aligned float16, read in place and never copied.

    Heads train on them with `model.backbone=identity`. Each step draws one of a picture's stored views; evaluation sees
    view 0. The test classes are those of the data set that the features come from.
    """

    name = "features"
    citation = "the user's own features"
    licence = "that of the pictures and of the backbone's weights"
    source = "tune-dml features DATASET --backbone NAME -o DIR"

    def __init__(self, *, root: Path, cache_dir: Path) -> None:
        super().__init__(cache_dir=cache_dir)
        self.root = root

    def check(self) -> list[Problem]:
        return _folder_problems(self.root, _state(self.root))

    def verify(self, progress: Progress | None = None) -> list[Problem]:
        return store_problems(self.root, whole=True)

    @cached_property
    def _digest(self) -> StoreDigest:
        return StoreDigest.read(self.root)

    def counts(self) -> dict[str, int]:
        pictures = self.listed()
        return {
            "images": len(pictures),
            "classes": len(pictures.class_names),
            "test_images": int(np.isin(pictures.labels, pictures.test_classes).sum()),
            "test_classes": len(pictures.test_classes),
            "views": self._digest.views,
            "dimension": self._digest.dimension,
        }

    def digest(self) -> str:
        about = self._digest
        return digest_of(self.name, 1, about.views, *(about.files[name]["sha256"] for name in (FEATURES, METADATA)))

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        return self.listed().test_classes

    def write(self, directory: Path, progress: Progress | None) -> Contents:
        rule = "stored features are read in place and have no decoded copy"
        raise DataError(Problem(str(self.root), rule))  # pragma: no cover - `prepare` never builds a cache

    def is_prepared(self) -> bool:
        return not self.check()

    def cache_path(self, digest: str) -> Path:
        return self.root

    def open_cached(self, digest: str) -> Pictures | None:
        if self.check() or self.digest() != digest:
            return None
        return self.listed()

    def listed(self) -> Pictures:
        return _open_features(self.root, _state(self.root))

    def prepare(self, progress: Progress | None = None, *, fall_back: bool = True) -> Pictures:
        raise_if_any(self.check(), DataError)
        return self.listed()


_FileState = tuple[tuple[int, int], ...]
"""Size and modification time of each file, which tell whether a folder was replaced."""


def _state(folder: Path) -> _FileState:
    try:
        stats = [(folder / name).stat() for name in (FEATURES, METADATA, "digest.json")]
    except OSError:
        return ()
    return tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)


@lru_cache(8)
def _folder_problems(folder: Path, state: _FileState) -> list[Problem]:
    """Check a folder. The cache skips repeated checks of unchanged files, because every trial opens the folder."""
    return store_problems(folder)


@lru_cache(8)
def _open_features(folder: Path, state: _FileState) -> Pictures:
    """Return the features as pictures of one pixel. Raise DataError for a damaged folder."""
    about = StoreDigest.read(folder)
    rows, table = open_rows(folder, about), read_table(folder)
    first = slice(None, None, about.views)  # a line per picture
    names, labels = np.unique(table.classes[first], return_inverse=True)
    splits = table.splits[first]
    test_labels = np.unique(labels[np.isin(splits, SPLITS[1:])])
    extras = {part: np.flatnonzero(splits == part) for part in SPLITS[2:] if (splits == part).any()}
    maker = "" if about.network == "imported" else f" by {about.network}"
    views = f"{about.views} stored view{'s' if about.views > 1 else ''}"
    data = about.origin.get("dataset", "imported data")
    note = f"Features of {data}: {about.dimension} numbers a picture{maker}, {views}."
    return _StoredFeatures(
        name=Features.name,
        digest=Features(root=folder, cache_dir=folder).digest(),
        images=rows,
        labels=labels.astype(np.int64),
        class_names=tuple(names.tolist()),
        test_classes=tuple(test_labels.tolist()),
        notes=(note,),
        extras=extras,
        directory=folder,
    )


class _StoredFeatures(Pictures):
    """Features as pictures; pickling sends the folder, not the rows."""

    def __reduce__(self) -> str | tuple[object, ...]:
        return _reopen, (self.directory,)


def _reopen(folder: Path) -> Pictures:
    return _open_features(folder, _state(folder))
