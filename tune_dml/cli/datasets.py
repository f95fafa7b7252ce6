"""`tune-dml datasets verify | prepare`: are these the published data, and decode them once before any sweep needs them."""

from __future__ import annotations

import inspect
import json
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainables.errors import ConfigError, Problem, nearest, raise_if_any
from trainables.methods import parameters_of
from tune_dml.cli.view import table
from tune_dml.space import Value

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from trainables.data.base import DataSet, Pictures, Progress


@dataclass(frozen=True)
class Verified:
    """What was found of a data set, and what is wrong with it."""

    name: str
    root: Path | None
    expected: Mapping[str, int]
    problems: tuple[Problem, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of this copy; empty when there are problems."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    unreadable: int = 0
    """Pictures that do not decode and will be left out, as asked for."""
    disjoint: bool = False
    """Whether there is a test half, whose classes are then no training classes."""
    prepared: bool = False
    prepare_command: str = ""

    def data(self) -> dict[str, Any]:
        """What was looked at, with every problem."""
        return {
            "dataset": self.name,
            "root": None if self.root is None else str(self.root),
            "ok": not self.problems,
            "expected": dict(self.expected),
            "counts": dict(self.counts),
            "differs": self._differing,
            "checksums": dict(self.checksums),
            "unreadable": self.unreadable,
            "prepared": self.prepared,
            "problems": [asdict(problem) for problem in self.problems],
        }

    @property
    def _differing(self) -> list[str]:
        if self.problems:
            return []
        return [key for key, count in self.expected.items() if self.counts.get(key) != count]

    def text(self) -> Iterable[RenderableType]:
        """A table of the counts and what was checked, one line each."""
        keys = dict.fromkeys([*self.expected, *self.counts])
        if keys:
            rows = ((key.replace("_", " "), self.counts.get(key), self.expected.get(key)) for key in keys)
            yield table("", (self.name, "found", "published"), rows, right=("found", "published"))
        if self._differing:
            yield "NOT the published data: counts differ, which data.strict=false lets pass."
        elif self.expected:
            yield "The counts are the published ones."
        for name, state in self.checksums.items():
            yield f"{name}: " + (
                "the published MD5."
                if state == "published"
                else "NOT the published MD5, which data.strict=false lets pass."
            )
        if self.disjoint:
            yield "No class is in both the training and the test half."
        yield (
            f"{self.unreadable} pictures do NOT decode and will be left out; the others decode to their end."
            if self.unreadable
            else "Every picture decodes to its end."
        )
        yield "Decoded already." if self.prepared else f"Not decoded yet: {self.prepare_command}"


@dataclass(frozen=True)
class Prepared:
    """A data set in the cache."""

    pictures: Pictures
    seconds: float
    """What decoding took; 0 when it was there already."""
    shorter_side: int | None = None
    """Of pictures that are stored whole."""

    def data(self) -> dict[str, Any]:
        """Counts, place, identity and notes."""
        pictures = self.pictures
        folder = pictures.directory
        return {
            "dataset": pictures.name,
            "images": len(pictures),
            "classes": len(pictures.class_names),
            "test_classes": len(pictures.test_classes),
            "channels": pictures.in_channels,
            "size": pictures.image_size,
            "shorter_side": self.shorter_side,
            "digest": pictures.digest,
            "cache": str(folder),
            "bytes": sum(file.stat().st_size for file in folder.iterdir()) if folder else 0,
            "seconds": round(self.seconds, 3),
            "notes": list(pictures.notes),
        }

    def text(self) -> Iterable[RenderableType]:
        """A table, the notes, and how to go on."""
        found = self.data()
        notes = found.pop("notes")
        shorter = found.pop("shorter_side")
        whole = f"whole, shorter side {shorter}" if shorter else "whole, as they are"
        found["size"] = found["size"] or whole
        found["bytes"] = f"{found['bytes'] / 2**20:.1f} MiB"
        found["seconds"] = found["seconds"] or "decoded before"
        yield table("", ("", "value"), found.items())
        yield from (f"Note: {note}" for note in notes)


def open_dataset(
    name: str,
    *,
    root: Path | None,
    cache_dir: Path | None,
    settings: Mapping[str, Value] | None = None,
    skip_corrupt: bool = False,
) -> DataSet:
    """The data set as a sweep would open it; reads nothing yet. Raises ConfigError with everything that is wrong."""
    from trainables.data import DATASETS, build_dataset

    if name not in DATASETS:
        raise ConfigError(Problem("NAME", "unknown data set", name, nearest(name, list(DATASETS), what="data set")))
    problems = []
    takes = inspect.signature(DATASETS[name]).parameters
    if DATASETS[name].needs_root and root is None:
        source = f"Pass --root DIR, where {DATASETS[name].source} lies."
        problems.append(Problem("--root", f"the data set {name!r} needs the folder of its files", None, source))
    if not DATASETS[name].needs_root and root is not None:
        problems.append(Problem("--root", f"the data set {name!r} is made from installed packages", str(root)))
    if skip_corrupt and "skip_corrupt" not in takes:
        problems.append(Problem("--skip-corrupt", f"the data set {name!r} has no picture files to leave out"))
    knobs: dict[str, object] = {}
    for path, value in (settings or {}).items():
        section, _, knob = path.rpartition(".")
        if section not in ("", "data"):
            problems.append(Problem("--set", "only data.* settings say how pictures are decoded", path))
        knobs[knob] = value
    raise_if_any(problems)
    if skip_corrupt:
        knobs["skip_corrupt"] = True
    return build_dataset(name, root=root, cache_dir=cache_dir, **knobs)


def verify(dataset: DataSet, progress: Progress | None = None) -> Verified:
    """Read everything: checksums, counts, that every picture decodes; collects every problem."""
    root: Path | None = getattr(dataset, "given", None) or getattr(dataset, "root", None)
    if problems := dataset.verify(progress):
        return Verified(dataset.name, root, dataset.expected, tuple(problems))
    counts = dataset.counts()
    return Verified(
        dataset.name,
        root,
        dataset.expected,
        counts=counts,
        checksums=dataset.checksums(),
        unreadable=len(dataset.unreadable),
        disjoint=0 < counts.get("test_classes", 0) < counts.get("classes", 0),
        prepared=dataset.is_prepared(),
        prepare_command=_prepare_command(dataset, root),
    )


def _prepare_command(dataset: DataSet, root: Path | None) -> str:
    """What decodes exactly these data: the knobs that are not at their defaults are part of their identity."""
    words = ["tune-dml", "datasets", "prepare", dataset.name]
    words += ["--root", str(root)] if root is not None else []
    for knob in parameters_of(type(dataset)):
        value = getattr(dataset, knob.name, knob.default)
        if value != knob.default:
            words += ["--set", f"data.{knob.name}={_word(value)}"]
    return shlex.join(words)


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def prepare(dataset: DataSet, progress: Progress | None = None) -> Prepared:
    """Decode into the cache, from where an interrupted call stopped. Raises ConfigError with every problem."""
    raise_if_any(dataset.check())
    there, start = dataset.is_prepared(), time.perf_counter()
    pictures = dataset.prepare(progress, fall_back=False)
    seconds = 0.0 if there else time.perf_counter() - start
    return Prepared(pictures, seconds, getattr(dataset, "shorter_side", None))


def decoding(console: Console) -> AbstractContextManager[Progress]:
    """The bar of pictures being decoded."""
    return working(console, "decoding")


@contextmanager
def working(console: Console, what: str) -> Iterator[Progress]:
    """A bar that appears with the first pictures and goes when all are done."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(what, total=None, visible=False)

    def told(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total, visible=True)
        if done >= total:
            stop()  # the terminal is free for what comes next
        elif console.is_interactive and not bar.live.is_started:
            bar.start()

    def stop() -> None:
        if bar.live.is_started:  # stopping a bar that never began would print an empty line
            bar.stop()

    try:
        yield told
    finally:
        stop()
