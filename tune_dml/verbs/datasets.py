"""`tune-dml datasets verify | prepare`: are these the published data, and decode them once before any sweep needs them."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainables.errors import ConfigError, Problem, nearest, raise_if_any
from tune_dml.space import Value
from tune_dml.verbs.view import table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from trainables.data.base import DataSet, Pictures, Progress

__all__ = ["Prepared", "Verified", "decoding", "open_dataset", "prepare", "verify"]


@dataclass(frozen=True)
class Verified:
    """A data set that is what it should be."""

    name: str
    root: Path | None
    expected: Mapping[str, int]
    prepared: bool

    def data(self) -> dict[str, Any]:
        """What was looked at."""
        return {
            "dataset": self.name,
            "root": None if self.root is None else str(self.root),
            "expected": dict(self.expected),
            "prepared": self.prepared,
            "problems": [],
        }

    def text(self) -> Iterable[RenderableType]:
        """A table of the counts and a sentence."""
        if self.expected:
            yield table("", ("published", "count"), self.expected.items(), right=("count",))
        yield f"{self.name}: every picture decodes" + (
            " and the counts are the published ones." if self.expected else "."
        )
        yield (
            "Already decoded."
            if self.prepared
            else f"Not decoded yet: tune-dml datasets prepare {self.name}."
        )


@dataclass(frozen=True)
class Prepared:
    """A data set in the cache."""

    pictures: Pictures
    seconds: float
    """What decoding took; 0 when it was there already."""

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
        found["size"] = found["size"] or "as stored"
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
        raise ConfigError(
            Problem("NAME", "unknown data set", name, nearest(name, list(DATASETS), what="data set"))
        )
    problems = []
    takes = inspect.signature(DATASETS[name]).parameters
    if "root" in takes and root is None:
        source = f"Pass --root DIR, where {DATASETS[name].source} lies."
        problems.append(
            Problem("--root", f"the data set {name!r} needs the folder of its files", None, source)
        )
    if "root" not in takes and root is not None:
        problems.append(
            Problem("--root", f"the data set {name!r} is made from installed packages", str(root))
        )
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


def verify(dataset: DataSet) -> Verified:
    """Read everything: checksums, counts, that every picture decodes. Raises ConfigError with every problem."""
    raise_if_any(dataset.verify())
    root = getattr(dataset, "root", None)
    return Verified(dataset.name, root, dataset.expected, dataset.is_prepared())


def prepare(dataset: DataSet, progress: Progress | None = None) -> Prepared:
    """Decode into the cache, from where an interrupted call stopped. Raises ConfigError with every problem."""
    raise_if_any(dataset.check())
    there, start = dataset.is_prepared(), time.perf_counter()
    pictures = dataset.prepare(progress)
    return Prepared(pictures, 0.0 if there else time.perf_counter() - start)


@contextmanager
def decoding(console: Console) -> Iterator[Progress]:
    """A bar that appears with the first decoded pictures and goes when all are done."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("decoding"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task("decoding", total=None, visible=False)

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
