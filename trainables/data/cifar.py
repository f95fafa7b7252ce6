"""CIFAR-10 and CIFAR-100, as the Python archives hold them."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainables.data.base import Contents, DataSet, Progress, digest_of, problems_raised
from trainables.data.formats import archives, cache
from trainables.data.formats.files import digests
from trainables.data.formats.picture_files import differences, find_folder
from trainables.data.formats.safe_pickle import load_pickle
from trainables.data.formats.stored import Strict
from trainables.errors import DataError, Problem

_AGAIN = "Get the python version again, as published."


class _Cifar(DataSet):
    """60,000 colour pictures of 32 x 32 pixels; the second half of the classes is the test half.

    `extras["official_test"]` numbers the 10,000 pictures of the official test batch, for linear evaluation. `root` is
    the folder, its parent or the archive.
    """

    licence = "none stated; pictures for research"
    source = "www.cs.toronto.edu/~kriz/cifar.html, python version"
    folder_name: ClassVar[str]
    train_files: ClassVar[tuple[str, ...]]
    test_file: ClassVar[str]
    meta_file: ClassVar[str]
    names_key: ClassVar[str]
    labels_key: ClassVar[str]
    archive_md5: ClassVar[dict[str, str]]

    def __init__(self, *, root: Path, cache_dir: Path, strict: Strict = True) -> None:
        super().__init__(cache_dir=cache_dir)
        self.root, self.strict = root, strict

    @cached_property
    def folder(self) -> Path:
        root = archives.unpacked_folder(self.root, self.cache_dir)
        return find_folder(
            root,
            (".", self.folder_name),
            self.meta_file,
            given=self.root,
            source=self.source,
            archives=self.archive_md5,
        )

    @property
    def _file_names(self) -> list[str]:
        return [*self.train_files, self.test_file, self.meta_file]

    def check(self) -> list[Problem]:
        if problems := problems_raised(lambda: self.folder):
            return problems
        missing = [self.folder / name for name in self._file_names if not (self.folder / name).is_file()]
        rule = "every batch file must be there"
        absent = [Problem(str(file), rule, None, f"Get it from: {self.source}.") for file in missing]
        return absent or (self._count_problems() if self.strict else [])

    def _count_problems(self) -> list[Problem]:
        """Compare counts with the published ones, from the cache if there is one, else from the batches."""
        decoded = self.open_cached(self.digest())
        return problems_raised(self._load if decoded is None else lambda: self._check_count(len(decoded.labels)))

    def _check_count(self, images: int) -> None:
        if self.strict and images != self.expected["images"]:
            rule = f"{self.name} has {self.expected['images']} images"
            raise DataError(Problem(str(self.folder), rule, images, archives.other_data_remedy(self.strict_setting)))

    def verify(self, progress: Progress | None = None) -> list[Problem]:
        problems = archives.checksum_problems(self.root, self.archive_md5) if self.strict else []
        return problems + self.check() or problems_raised(self._load)

    def counts(self) -> dict[str, int]:
        _, labels, class_names, _ = self._load()
        return {"images": len(labels), "classes": len(class_names)}

    def checksums(self) -> dict[str, str]:
        return archives.checksums([(self.root, self.archive_md5)])

    def digest(self) -> str:
        return digest_of(self.name, 1, digests(self.folder, self._file_names, self.cache_dir))

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        return tuple(range(len(class_names) // 2, len(class_names)))

    def write(self, directory: Path, progress: Progress | None) -> Contents:
        images, labels, class_names, extras = self._load()
        cache.create_images(directory, images.shape)[:] = images
        if progress:
            progress(len(labels), len(labels))
        notes = tuple(differences(self, {"images": len(labels), "classes": len(class_names)}))
        return Contents(labels, class_names, notes, extras)

    def _load(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[str, ...], dict[str, NDArray[Any]]]:
        meta = load_pickle(self.folder / self.meta_file)
        if not (isinstance(meta, dict) and isinstance(meta.get(self.names_key), list)):
            rule = f"must hold the list {self.names_key!r}"
            raise DataError(Problem(str(self.folder / self.meta_file), rule, type(meta).__name__, _AGAIN))
        class_names = tuple(str(name) for name in meta[self.names_key])
        batches = [self._read_batch(name, len(class_names)) for name in (*self.train_files, self.test_file)]
        images = np.concatenate([pixels for pixels, _, _ in batches])
        labels = np.concatenate([numbers for _, numbers, _ in batches])
        self._check_count(len(labels))
        extras: dict[str, NDArray[Any]] = {"official_test": np.arange(len(labels) - len(batches[-1][1]), len(labels))}
        if all(coarse is not None for _, _, coarse in batches):
            extras["super_labels"] = np.concatenate([np.array(c, dtype=np.int64) for _, _, c in batches])
        return images, labels, class_names, extras

    def _read_batch(self, name: str, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], list[int] | None]:
        path = self.folder / name
        batch = load_pickle(path)
        try:
            planes, labels = np.asarray(batch["data"]).reshape(-1, 3, 32, 32), np.asarray(batch[self.labels_key])
            coarse = batch.get("coarse_labels")
        except (KeyError, TypeError, ValueError) as error:
            rule = f"must hold 'data' (N, 3072) and {self.labels_key!r}"
            raise DataError(Problem(str(path), rule, f"{type(error).__name__}: {error}", _AGAIN)) from error
        if planes.dtype != np.uint8 or labels.dtype.kind not in "iu":  # a conversion would change them
            rule = f"'data' must be uint8, and {self.labels_key!r} whole numbers"
            raise DataError(Problem(str(path), rule, f"{planes.dtype} and {labels.dtype}", _AGAIN))
        if labels.shape != planes.shape[:1] or labels.min(initial=0) < 0 or labels.max(initial=0) >= classes:
            rule = f"must hold one label below {classes} for each picture"
            raise DataError(Problem(str(path), rule, (len(planes), len(labels), int(labels.max(initial=0))), _AGAIN))
        if coarse is not None and len(coarse) != len(labels):
            rule = "must hold one of 'coarse_labels' for each picture"
            raise DataError(Problem(str(path), rule, (len(planes), len(coarse)), _AGAIN))
        return planes.transpose(0, 2, 3, 1), labels.astype(np.int64), coarse


class Cifar10(_Cifar):
    """CIFAR-10: 10 classes."""

    name = "cifar10"
    citation = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
    expected: ClassVar = {"images": 60_000, "classes": 10}
    folder_name = "cifar-10-batches-py"
    train_files = tuple(f"data_batch_{i}" for i in range(1, 6))
    test_file = "test_batch"
    meta_file = "batches.meta"
    names_key = "label_names"
    labels_key = "labels"
    archive_md5: ClassVar = {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}


class Cifar100(_Cifar):
    """CIFAR-100: 100 classes; the 20 super-classes are in `extras["super_labels"]`."""

    name = "cifar100"
    citation = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
    expected: ClassVar = {"images": 60_000, "classes": 100}
    folder_name = "cifar-100-python"
    train_files = ("train",)
    test_file = "test"
    meta_file = "meta"
    names_key = "fine_label_names"
    labels_key = "fine_labels"
    archive_md5: ClassVar = {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"}
