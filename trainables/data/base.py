"""Data sets: pictures decoded once to uint8, integer labels and a class-disjoint test half.

Imports no torch, so that a machine that only plans can check and prepare data.
"""

import hashlib
import inspect
import json
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainables.data.formats import cache
from trainables.data.formats.feature_store import FeatureRows
from trainables.errors import ConfigError, DataError, Problem, raise_if_any

Progress = Callable[[int, int], None]
"""Called with (pictures done, pictures in all)."""
Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Contents:
    """Labels and notes of the pictures that a data set has written to the cache."""

    labels: Labels
    """Class number of every picture, shape (N,)."""
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Remarks for the report: dropped files, classes with a single picture ..."""
    extras: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    """Further index arrays of the protocol, such as `query`, `gallery`, `pairs` (P, 2) and `same` (P,)."""


@dataclass(frozen=True)
class Pictures:
    """A decoded data set, memory-mapped read-only.

    All trials and workers of a node share one copy in the page cache. Pickling sends the cache's path, not the pixels.
    """

    name: str
    digest: str
    """SHA-256 of content and settings."""
    images: cache.Images
    """uint8 array (N, H, W, C), or `RaggedImages` if pictures differ in size; both index alike."""
    labels: Labels
    class_names: tuple[str, ...]
    test_classes: tuple[int, ...]
    """Classes of the test half; training and validation never see their pictures."""
    notes: tuple[str, ...] = ()
    extras: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    directory: Path | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def in_channels(self) -> int:
        """Number of channels: 1 for grey pictures, 3 for colour."""
        return int(self.images.shape[-1])

    @property
    def image_size(self) -> int | None:
        """Height and width in pixels; None if pictures differ in size."""
        return self.images.shape[1] or None

    @property
    def are_features(self) -> bool:
        """Whether these are stored features of a backbone, which cannot be displayed."""
        return isinstance(self.images, FeatureRows)

    def __reduce__(self) -> str | tuple[object, ...]:
        if self.directory is None:
            return super().__reduce__()
        return open_pictures, (self.directory,)


_RETURN_TYPES: Mapping[str, type] = {
    "check": Iterable,
    "verify": Iterable,
    "counts": Mapping,
    "checksums": Mapping,
    "digest": str,
    "test_classes": Iterable,
    "write": Contents,
    "passed_over": Iterable,
    "listed": object,
    "on_demand": object,
}
"""Return type of each method of a data set."""
_ABOUT = "about.json"
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _checked_method(name: str, method: _Method, kind: type) -> _Method:
    """Wrap a data set's method so that its mistakes become a DataError that names data set and method.

    Configuration errors, failing disks and lack of memory pass unchanged.
    """

    def error_of(data: DataSet, rule: str, found: str) -> DataError:
        remedy = f"Fix {type(data).__module__}; run `trainables.testing.dataset_checks` on it."
        return DataError(Problem(f"data set {data.name}", f"{name}() must {rule}", found, remedy))

    @wraps(method)
    def call_checked(data: DataSet, *args: Any, **kwargs: Any) -> Any:
        try:
            result = method(data, *args, **kwargs)
        except (ConfigError, MemoryError):
            raise
        except PermissionError as error:
            place, remedy = error.filename or f"data set {data.name}", "Change its permissions."
            raise DataError(Problem(str(place), "access must be permitted", error.strerror, remedy)) from error
        except (Exception, SystemExit) as error:
            if isinstance(error, OSError) and not isinstance(
                error, FileNotFoundError | NotADirectoryError | IsADirectoryError
            ):
                raise  # waiting may fix it
            frame = traceback.extract_tb(error.__traceback__)[-1]
            found = f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"
            raise error_of(data, "not fail", found) from error
        if not isinstance(result, kind):
            raise error_of(data, f"return {kind.__name__}", type(result).__name__)
        return result

    return call_checked  # type: ignore[return-value]


class DataSet(ABC):
    """A source of labelled pictures.

    A subclass sets the class attributes, declares its knobs in a keyword-only constructor (see `trainables.methods`;
    `root` and `cache_dir` come from the context) and implements `check`, `digest`, `test_classes` and `write`.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    licence: ClassVar[str]
    source: ClassVar[str]
    """Where to download the data set."""
    dead: ClassVar[str] = ""
    """Addresses that no longer work or are unreliable."""
    expected: ClassVar[Mapping[str, int]] = {}
    """Published counts, e.g. {"images": 11788, "classes": 200}; empty if the user's own files decide."""
    needs_root: ClassVar[bool] = False
    """True if the constructor takes `root`, the user's copy of the files."""

    strict_setting = "data.strict"
    """Setting that accepts data unlike the published ones, for messages."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.needs_root = "root" in inspect.signature(cls).parameters
        for name in _RETURN_TYPES.keys() & vars(cls).keys():
            setattr(cls, name, _checked_method(name, vars(cls)[name], _RETURN_TYPES[name]))

    def __init__(self, *, cache_dir: Path) -> None:
        self.cache_dir = Path(cache_dir)
        self.unreadable: Sequence[str] = ()
        """Undecodable pictures that `verify` found and `skip_corrupt` leaves out."""

    @abstractmethod
    def check(self) -> list[Problem]:
        """Return everything that would stop `prepare`. Be quick, as every command checks. Never raise for bad data."""

    def verify(self, progress: Progress | None = None) -> list[Problem]:
        """Run `check`, then the checks that read every file: checksums, counts, decoding."""
        return self.check()

    def counts(self) -> Mapping[str, int]:
        """Return the counts of these data under the names of `expected`; call after `check`."""
        return {}

    def checksums(self) -> Mapping[str, str]:
        """Return file name -> "published" or "differs" for files with a published digest; call after `check`."""
        return {}

    @abstractmethod
    def digest(self) -> str:
        """Return the hexadecimal SHA-256 of content and settings, without decoding everything."""

    @abstractmethod
    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        """Return the class numbers of the test half."""

    @abstractmethod
    def write(self, directory: Path, progress: Progress | None) -> Contents:
        """Decode every picture into `directory` with the writers of `formats.cache`. Raise DataError if one fails."""

    def is_prepared(self) -> bool:
        digest = self.digest()
        return _is_complete(self.cache_path(digest), digest)

    def open_cached(self, digest: str) -> Pictures | None:
        """Return the cached data set of this digest, even if the source has changed; None if it is not cached."""
        target = self.cache_path(digest)
        return open_pictures(target) if _is_complete(target, digest) else None

    def cache_path(self, digest: str) -> Path:
        """Return the folder of the decoded data of this digest."""
        return self.cache_dir / f"{self.name}-{digest[:20]}"

    def passed_over(self) -> Sequence[str]:
        """Return notes on files that were not read; computed at each opening, not part of the digest."""
        return ()

    def listed(self) -> Pictures | None:
        """Return the data set with black pictures, without decoding; None if not supported."""
        return None

    def on_demand(self, progress: Progress | None) -> tuple[cache.Images, Contents] | None:
        """Return pictures that are decoded at each use, for a full disk; None if not supported."""
        return None

    def prepare(self, progress: Progress | None = None, *, fall_back: bool = True) -> Pictures:
        """Decode on first use, then open the cached copy.

        Only one process builds a cache, and an interrupted build never counts as complete. If the disk is too small,
        pictures are decoded at each use, to the same pixels, and a note says so; without `fall_back` it is an error.
        Raises DataError with every problem of the data.
        """
        raise_if_any(self.check(), DataError)
        digest = self.digest()
        target = self.cache_path(digest)

        def build(directory: Path) -> None:
            contents = self.write(directory, progress)
            test_classes = self._checked_test_classes(contents, len(cache.open_images(directory)))
            _write_contents(directory, contents, self.name, digest, test_classes)

        try:
            cache.build_once(target, build, complete=lambda folder: _is_complete(folder, digest))
        except cache.DiskFull as error:
            undecoded = self.on_demand(progress) if fall_back else None
            if undecoded is None:
                raise
            problem = error.problems[0]
            note = (
                f"{problem.place}: {problem.rule}, but there are {problem.value or 'none left'}. So every trial decodes "
                f"the pictures at each use, to the same pixels, which is slower. {problem.remedy}"
            )
            return self.with_images(*undecoded, digest, note)
        opened = open_pictures(target)
        return replace(opened, notes=(*opened.notes, *self.passed_over()))

    def with_images(self, images: cache.Images, contents: Contents, digest: str, *notes: str) -> Pictures:
        """Return pictures that are not in the cache. Raise DataError if `contents` does not fit them."""
        test_classes = self._checked_test_classes(contents, len(images))
        return Pictures(
            name=self.name,
            digest=digest,
            images=images,
            labels=np.asarray(contents.labels, dtype=np.int64),
            class_names=contents.class_names,
            test_classes=test_classes,
            notes=(*contents.notes, *self.passed_over(), *notes),
            extras=contents.extras,
        )

    def _checked_test_classes(self, contents: Contents, pictures: int) -> tuple[int, ...]:
        """Return the test classes. Raise DataError if they or the labels do not fit the pictures."""
        raise_if_any(_contents_problems(contents, pictures, self.name), DataError)
        returned, classes = self.test_classes(contents.class_names), len(contents.class_names)
        test_classes = tuple(returned.tolist() if isinstance(returned, np.ndarray) else returned)
        # Training would use the pictures of classes that are named otherwise, and a mask's values are 0 and 1.
        valid = [isinstance(c, int | np.integer) and not isinstance(c, bool) and 0 <= c < classes for c in test_classes]
        if not all(valid):
            rule = f"test_classes must be numbers of its {classes} classes, from 0"
            wrong = [c for c, is_valid in zip(test_classes, valid, strict=True) if not is_valid]
            remedy = "For a mask, return np.flatnonzero(mask)." if isinstance(wrong[0], bool | np.bool_) else ""
            raise DataError(Problem(f"data set {self.name}", rule, wrong, remedy))
        return test_classes


def _contents_problems(contents: Contents, pictures: int, name: str) -> list[Problem]:
    """Check the labels that `write` returned. Training would not notice a mistake."""
    labels, classes = np.asarray(contents.labels), len(contents.class_names)
    if labels.shape != (pictures,) or not np.issubdtype(labels.dtype, np.integer):
        got = f"{labels.dtype} of shape {labels.shape}"
        return [Problem(f"data set {name}", f"there must be a whole number for each of the {pictures} pictures", got)]
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        got = f"{labels.min()} to {labels.max()}"
        return [Problem(f"data set {name}", f"labels must be the numbers of its {classes} classes, from 0", got)]
    if other := [class_name for class_name in contents.class_names if not isinstance(class_name, str)]:
        got = type(other[0]).__name__
        return [Problem(f"data set {name}", "class_names must be text", got, "Return tuple(map(str, names)).")]
    return []


def _write_contents(directory: Path, contents: Contents, name: str, digest: str, test_classes: Sequence[int]) -> None:
    np.save(directory / "labels.npy", np.asarray(contents.labels, dtype=np.int64))
    for key, array in contents.extras.items():
        np.save(directory / f"extra-{key}.npy", array)
    files = sorted(file for file in directory.iterdir() if file.name != _ABOUT)  # a killed build may have left it
    about = {
        "name": name,
        "digest": digest,
        "class_names": list(contents.class_names),
        "test_classes": [int(c) for c in test_classes],
        "notes": list(contents.notes),
        "extras": sorted(contents.extras),
        "bytes": {file.name: file.stat().st_size for file in files},
        "fingerprints": {file.name: cache.fingerprint(file) for file in files},
    }
    (directory / _ABOUT).write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")


def _is_complete(directory: Path, digest: str) -> bool:
    """Return whether a cache has this digest and none of its files is missing, truncated or overwritten."""
    try:
        about = json.loads((directory / _ABOUT).read_text(encoding="utf-8"))
        sizes = {name: (directory / name).stat().st_size for name in about["bytes"]}
        same = all(cache.fingerprint(directory / name) == mark for name, mark in about["fingerprints"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    return bool(about.get("digest") == digest and sizes == about["bytes"] and same)


def open_pictures(directory: Path) -> Pictures:
    """Open a prepared data set, memory-mapped read-only."""
    about = json.loads((directory / _ABOUT).read_text(encoding="utf-8"))
    return Pictures(
        name=about["name"],
        digest=about["digest"],
        images=cache.open_images(directory),
        labels=np.load(directory / "labels.npy"),
        class_names=tuple(about["class_names"]),
        test_classes=tuple(about["test_classes"]),
        notes=tuple(about["notes"]),
        extras={key: np.load(directory / f"extra-{key}.npy") for key in about["extras"]},
        directory=directory,
    )


def digest_of(*parts: object) -> str:
    """Return the SHA-256 of a JSON-able description, for `DataSet.digest`."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def problems_raised(read: Callable[[], object]) -> list[Problem]:
    """Return the problems of the ConfigError that `read` raises; none if it succeeds."""
    try:
        read()
    except ConfigError as error:
        return list(error.problems)
    return []
