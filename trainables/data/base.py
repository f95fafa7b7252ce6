"""What a data set is: pictures decoded once to uint8, integer labels, and a class-disjoint test half.

Imports no torch: checking and preparing data must be possible on a machine that only plans.
"""

from __future__ import annotations

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
from trainables.errors import ConfigError, DataError, Problem, raise_if_any

Progress = Callable[[int, int], None]
"""Called with (pictures done, pictures in all)."""
Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Contents:
    """What a data set says about the pictures it has just written to the cache."""

    labels: Labels
    """Class number of every picture, shape (N,)."""
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What a reader of the results must know about these data (dropped files, classes with one picture ...)."""
    extras: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    """Further index arrays of the protocol: `query`, `gallery`, `pairs` (P, 2), `same` (P,) ..."""


@dataclass(frozen=True)
class Pictures:
    """A decoded data set, memory-mapped read-only: every trial and worker of a node shares one copy in the page cache.

    Pickling sends the place of the cache, never the pixels.
    """

    name: str
    digest: str
    """Identity of content and settings."""
    images: cache.Images
    """uint8: an array (N, H, W, C), or `RaggedImages` where pictures differ in size; both index alike."""
    labels: Labels
    class_names: tuple[str, ...]
    test_classes: tuple[int, ...]
    """The classes of the test half; training and validation never see their pictures."""
    notes: tuple[str, ...] = ()
    extras: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    directory: Path | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def in_channels(self) -> int:
        """1 for grey pictures, 3 for colour."""
        return int(self.images.shape[-1])

    @property
    def image_size(self) -> int | None:
        """Height = width in pixels; None where pictures differ in size."""
        return self.images.shape[1] or None

    def __reduce__(self) -> str | tuple[object, ...]:
        if self.directory is None:
            return super().__reduce__()
        return open_pictures, (self.directory,)


_ANSWERS: Mapping[str, type] = {
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
"""Methods of a data set, and what they must return."""
_NOTHING_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""Of what an operating system reports, what waiting does not change."""
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _answering(name: str, method: _Method, kind: type) -> _Method:
    """The method of a data set, which may be anybody's code: what is wrong with it is a DataError that names both.

    What it complains of itself, and a disk or a memory that fails, is passed on as it is.
    """

    def mistake(data: DataSet, rule: str, found: str) -> DataError:
        remedy = f"Mend {type(data).__module__}; `trainables.testing` has the checks of a data set."
        return DataError(Problem(f"data set {data.name}", f"{name}() must {rule}", found, remedy))

    @wraps(method)
    def answer(data: DataSet, *given: Any, **named: Any) -> Any:
        try:
            result = method(data, *given, **named)
        except (ConfigError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, OSError) and not isinstance(error, _NOTHING_THERE):
                raise
            at = traceback.extract_tb(error.__traceback__)[-1]
            found = f"{type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno})"
            raise mistake(data, "not fail", found) from error
        if not isinstance(result, kind):
            raise mistake(data, f"return {kind.__name__}", type(result).__name__)
        return result

    return answer  # type: ignore[return-value]


class DataSet(ABC):
    """A source of labelled pictures.

    A subclass sets the class attributes, declares its knobs in a keyword-only constructor (see trainables.methods;
    `root` and `cache_dir` come from the context), and implements `check`, `digest`, `test_classes` and `write`.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    licence: ClassVar[str]
    source: ClassVar[str]
    """Where to get it."""
    dead: ClassVar[str] = ""
    """Addresses that no longer work or cannot be relied on, so that nobody looks there."""
    expected: ClassVar[Mapping[str, int]] = {}
    """Published counts, e.g. {"images": 11788, "classes": 200}; empty where the user's own files decide."""
    needs_root: ClassVar[bool] = False
    """Whether it lies on the user's disk; read off the constructor (`root`)."""

    strict_setting = "data.strict"
    """What lets data pass that differ from the published ones, for messages; a task's benchmarks have a setting of their own."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.needs_root = "root" in inspect.signature(cls).parameters
        for name in _ANSWERS.keys() & vars(cls).keys():
            setattr(cls, name, _answering(name, vars(cls)[name], _ANSWERS[name]))

    def __init__(self, *, cache_dir: Path) -> None:
        self.cache_dir = Path(cache_dir)
        self.unreadable: Sequence[str] = ()
        """Pictures that `verify` found broken and that `skip_corrupt` leaves out."""

    @abstractmethod
    def check(self) -> list[Problem]:
        """Everything that would stop `prepare`, found without decoding into the cache; never raises for bad data."""

    def verify(self, progress: Progress | None = None) -> list[Problem]:
        """`check`, and whatever takes reading everything: checksums, counts, that every picture decodes."""
        return self.check()

    def counts(self) -> Mapping[str, int]:
        """The figures of these data, by the names of `expected` where those are given; for data that `check` accepts."""
        return {}

    def checksums(self) -> Mapping[str, str]:
        """Files whose digest is published: name -> "published" or "differs"; for data that `check` accepts."""
        return {}

    @abstractmethod
    def digest(self) -> str:
        """Identity of content and settings, a hexadecimal SHA-256, without decoding everything."""

    @abstractmethod
    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        """The class numbers of the test half."""

    @abstractmethod
    def write(self, directory: Path, progress: Progress | None) -> Contents:
        """Decode every picture into `directory` with the writers of trainables.data.formats.cache; raises DataError."""

    def is_prepared(self) -> bool:
        """Whether the decoded data are in the cache already."""
        digest = self.digest()
        return _is_whole(self.place(digest), digest)

    def prepared(self, digest: str) -> Pictures | None:
        """What is in the cache already of the data of this digest, whatever lies at their source now; None where nothing is."""
        target = self.place(digest)
        return open_pictures(target) if _is_whole(target, digest) else None

    def place(self, digest: str) -> Path:
        """Where the decoded data of this digest are kept."""
        return self.cache_dir / f"{self.name}-{digest[:20]}"

    def passed_over(self) -> Sequence[str]:
        """Notes on what lies beside the pictures and is not read. No part of the identity, so told anew at each opening."""
        return ()

    def listed(self) -> Pictures | None:
        """The pictures as far as they are known before one is decoded, all of them black; None where a set cannot tell."""
        return None

    def on_demand(self, progress: Progress | None) -> tuple[cache.Images, Contents] | None:
        """The pictures decoded anew at each use, for a disk on which they do not fit; None where a set cannot."""
        return None

    def prepare(self, progress: Progress | None = None, *, fall_back: bool = True) -> Pictures:
        """The decoded data set; decodes on first use, afterwards opens the cache of the same digest.

        Two processes never build the same cache twice, and a build that dies leaves nothing behind that looks complete.
        Where the disk is too small for the decoded pictures they are decoded anew at each use, to the same pixels, and
        a note says so; with `fall_back=False` that is an error. Raises DataError with every problem of the data.
        """
        raise_if_any(self.check(), DataError)
        digest = self.digest()
        target = self.place(digest)

        def build(directory: Path) -> None:
            contents = self.write(directory, progress)
            test_classes = self._consistent(contents, len(cache.open_images(directory)))
            _write_contents(directory, contents, self.name, digest, test_classes)

        try:
            cache.build_once(target, build, complete=lambda folder: _is_whole(folder, digest))
        except cache.DiskFull as error:
            undecoded = self.on_demand(progress) if fall_back else None
            if undecoded is None:
                raise
            return self._undecoded(*undecoded, digest, error)
        opened = open_pictures(target)
        return replace(opened, notes=(*opened.notes, *self.passed_over()))

    def _undecoded(self, images: cache.Images, contents: Contents, digest: str, reason: cache.DiskFull) -> Pictures:
        problem = reason.problems[0]
        note = (
            f"{problem.place}: {problem.rule}, but there are {problem.value or 'none left'}. So every trial decodes the "
            f"pictures anew, to the same pixels, which is slower. {problem.remedy}"
        )
        return self.with_images(images, contents, digest, note)

    def with_images(self, images: cache.Images, contents: Contents, digest: str, *notes: str) -> Pictures:
        """Pictures that do not come from the cache. Raises DataError where they are not what `contents` says."""
        test_classes = self._consistent(contents, len(images))
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

    def _consistent(self, contents: Contents, pictures: int) -> tuple[int, ...]:
        """The classes of the test half; raises DataError where they, or the labels, do not fit the pictures."""
        raise_if_any(_contents_problems(contents, pictures, self.name), DataError)
        test_classes = tuple(self.test_classes(contents.class_names))
        raise_if_any(_test_problems(test_classes, len(contents.class_names), self.name), DataError)
        return test_classes


def _contents_problems(contents: Contents, pictures: int, name: str) -> list[Problem]:
    """What `write` says against what it has written: a mistake of a data set's author, which training would not notice."""
    labels, classes = np.asarray(contents.labels), len(contents.class_names)
    if labels.shape != (pictures,) or not np.issubdtype(labels.dtype, np.integer):
        got = f"{labels.dtype} of shape {labels.shape}"
        return [Problem(f"data set {name}", f"there must be a whole number for each of the {pictures} pictures", got)]
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        got = f"{labels.min()} to {labels.max()}"
        return [Problem(f"data set {name}", f"labels must be the numbers of its {classes} classes, from 0", got)]
    return []


def _test_problems(test_classes: Sequence[int], classes: int, name: str) -> list[Problem]:
    """A class of the test half that is none: its pictures would be trained on without a word."""
    if wrong := [c for c in test_classes if not 0 <= c < classes]:
        return [Problem(f"data set {name}", f"test_classes must be numbers of its {classes} classes, from 0", wrong)]
    return []


def _write_contents(directory: Path, contents: Contents, name: str, digest: str, test_classes: Sequence[int]) -> None:
    np.save(directory / "labels.npy", np.asarray(contents.labels, dtype=np.int64))
    for key, array in contents.extras.items():
        np.save(directory / f"extra-{key}.npy", array)
    files = sorted(directory.iterdir())
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
    (directory / "about.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")


def _is_whole(directory: Path, digest: str) -> bool:
    """Whether a cache was built from these data with these settings, and no file of it was cut, lost or overwritten since."""
    try:
        about = json.loads((directory / "about.json").read_text(encoding="utf-8"))
        sizes = {name: (directory / name).stat().st_size for name in about["bytes"]}
        known = about.get("fingerprints", {})  # caches of older versions have none
        same = all(cache.fingerprint(directory / name) == known[name] for name in known)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return bool(about["digest"] == digest and sizes == about["bytes"] and same)


def open_pictures(directory: Path) -> Pictures:
    """A prepared data set, memory-mapped read-only."""
    about = json.loads((directory / "about.json").read_text(encoding="utf-8"))
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
    """SHA-256 of a JSON-able description, for `DataSet.digest`."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def problems_raised(read: Callable[[], object]) -> list[Problem]:
    """What reading some data complains of; empty when it succeeds."""
    try:
        read()
    except DataError as error:
        return list(error.problems)
    return []
