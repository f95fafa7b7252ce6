"""`tune-dml datasets`: list the data sets, verify your copy, decode it before any sweep needs it."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tune_dml.cli.options import Json, absolute, verb
from tune_dml.cli.screen import Lines, Listing, console_for, progress_bar, show, table
from tune_dml.space import Value

if TYPE_CHECKING:
    from trainables.data.base import DataSet, Pictures
    from trainables.errors import Problem

ORDER = 37
Progress = Callable[[int, int], None]

datasets = typer.Typer(
    invoke_without_command=True,
    help="List the data sets, verify your copy, and decode it before a sweep.",
    short_help="List, verify and decode the data sets",
)


@datasets.callback()
def listing(context: typer.Context, as_json: Json = False) -> None:
    """List the data sets: licence, source and published counts. See also: verify, prepare."""
    from trainables.data import DATASETS

    if context.invoked_subcommand is None:
        show(_DataSetList("Data sets", tuple(row_of(name, cls) for name, cls in DATASETS.items())), as_json)


@dataclass(frozen=True)
class DataSetCopy:
    """The user's copy of a data set, and settings of its decoding."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set: `tune-dml datasets`.")]
    root: Annotated[
        Path | None, typer.Option("--root", "--data-root", help="Folder or archive of the data, as downloaded.")
    ] = None
    settings: Mapping[str, Value] | None = None
    cache_dir: Path | None = None
    skip_corrupt: Annotated[bool, typer.Option(help="Leave out pictures that cannot be decoded.")] = False

    def open(self) -> DataSet:
        """Return the data set as a sweep would open it, without reading files. Raise ConfigError with all problems."""
        from trainables.data import DATASETS, build_dataset
        from trainables.errors import ConfigError, Problem, nearest, raise_if_any

        name, root = self.name, absolute(self.root)
        if name not in DATASETS:
            raise ConfigError(Problem("NAME", "unknown data set", name, nearest(name, list(DATASETS), what="data set")))
        dataset_class, problems = DATASETS[name], []
        if dataset_class.needs_root and root is None:
            source = f"Pass --root DIR, the folder of its files ({dataset_class.source})."
            problems.append(Problem("--root", f"the data set {name!r} needs the folder of its files", None, source))
        if not dataset_class.needs_root and root is not None:
            rule = f"the data set {name!r} is made from installed packages and reads no folder"
            problems.append(Problem("--root", rule, None, "Leave it out."))
        if self.skip_corrupt and "skip_corrupt" not in inspect.signature(dataset_class).parameters:
            problems.append(Problem("--skip-corrupt", f"the data set {name!r} has no picture files to leave out"))
        knobs: dict[str, object] = {}
        for path, value in (self.settings or {}).items():
            section, _, knob = path.rpartition(".")
            if section not in ("", "data"):
                problems.append(Problem("--set", "must be a setting of the data, data.*", path))
            knobs[knob] = value
        raise_if_any(problems)
        if self.skip_corrupt:
            knobs["skip_corrupt"] = True
        return build_dataset(name, root=root, cache_dir=absolute(self.cache_dir), **knobs)


@datasets.command("verify", short_help="Check your copy of a data set")
@verb
def verify(copy: DataSetCopy, *, as_json: Json = False) -> None:
    """Check your copy of a data set: published counts and checksums, and that every picture decodes."""
    from trainables.errors import raise_if_any

    dataset = copy.open()
    with progress_bar(console_for(as_json), "reading") as progress:
        result = _verify_data(dataset, absolute(copy.root), progress)
    if not as_json:
        raise_if_any(result.problems)
    show(result, as_json)
    raise typer.Exit(1 if result.problems else 0)


@datasets.command("prepare", short_help="Decode the pictures into the cache")
@verb
def prepare(copy: DataSetCopy, *, as_json: Json = False) -> None:
    """Decode the pictures into the cache, which all trials on this machine share; continue an interrupted call."""
    dataset = copy.open()
    with progress_bar(console_for(as_json), "decoding") as progress:
        prepared = _prepare_data(dataset, progress)
    show(prepared, as_json)


@dataclass(frozen=True)
class _DataSetList(Listing):
    """A list of data sets, with each address on one line so that it can be copied."""

    def text(self) -> Lines:
        for row in self.rows:
            yield paragraph(row) + "\n"
        yield copy_commands("NAME")


def copy_commands(name: str) -> str:
    """Return the commands that check and decode a local copy of a data set."""
    from tune_dml.record.origin.commands import program

    datasets = f"{program()} datasets"
    return f"Your copy: {datasets} verify {name} --root DIR; then {datasets} prepare {name} --root DIR."


def paragraph(row: Mapping[str, Any]) -> str:
    """Format a row of `row_of` as a paragraph."""
    expected = ", ".join(f"{count} {key.replace('_', ' ')}" for key, count in row["expected"].items())
    lines = [
        f"{row['data set']}: {row['citation']}",
        f"  Expected: {expected}" if expected else "",
        f"  Licence:  {row['licence']}",
        f"  Get it:   {row['source']}",
        f"  Dead or unreliable: {row['dead']}" if row["dead"] else "",
    ]
    return "\n".join(filter(None, lines))


def row_of(name: str, cls: type[DataSet]) -> dict[str, object]:
    """Describe a data set without its files."""
    return {
        "data set": name,
        "expected": dict(cls.expected),
        "licence": cls.licence,
        "source": cls.source,
        "dead": cls.dead,
        "citation": cls.citation,
    }


@dataclass(frozen=True)
class _VerifiedDataSet:
    """The findings about a local copy of a data set."""

    name: str
    root: Path | None
    expected: Mapping[str, int]
    problems: tuple[Problem, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts of this copy; empty if there are problems."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    unreadable: int = 0
    """Number of pictures that do not decode and will be left out (--skip-corrupt)."""
    disjoint: bool = False
    """Whether there is a test half whose classes are not in the training half."""
    notes: tuple[str, ...] = ()
    """Oddities of the data that were found without decoding."""
    prepared: bool = False
    prepare_command: str = ""

    def data(self) -> dict[str, object]:
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
            "notes": list(self.notes),
            "problems": [asdict(problem) for problem in self.problems],
        }

    @property
    def _differing(self) -> list[str]:
        if self.problems:
            return []
        return [key for key, count in self.expected.items() if self.counts.get(key) != count]

    def text(self) -> Lines:
        keys = dict.fromkeys([*self.expected, *self.counts])
        if keys:
            rows = ((key.replace("_", " "), self.counts.get(key), self.expected.get(key)) for key in keys)
            yield table("", (self.name, "found", "published"), rows, right=("found", "published"))
        if self._differing:
            yield "NOT the published data: counts differ, which data.strict=false allows."
        elif self.expected:
            yield "The counts are the published ones."
        for name, state in self.checksums.items():
            yield f"{name}: " + (
                "the published MD5."
                if state == "published"
                else "NOT the published MD5, which data.strict=false allows."
            )
        if self.disjoint:
            yield "No class is in both the training and the test half."
        yield (
            f"{self.unreadable} pictures do NOT decode and will be left out; the others decode to their end."
            if self.unreadable
            else "Every picture decodes to its end."
        )
        yield from (f"Note: {note}" for note in self.notes)
        yield "Decoded already." if self.prepared else f"Not decoded yet: {self.prepare_command}"


@dataclass(frozen=True)
class _PreparedDataSet:
    """A data set in the cache."""

    pictures: Pictures
    seconds: float
    """Seconds of decoding; 0 if it was decoded before."""
    shorter_side: int | None = None
    """Shorter side of pictures that are stored whole."""

    def data(self) -> dict[str, Any]:
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

    def text(self) -> Lines:
        rows = self.data()
        notes = rows.pop("notes")
        shorter = rows.pop("shorter_side")
        stored_size = f"whole, shorter side {shorter}" if shorter else "whole, as they are"
        rows["size"] = rows["size"] or stored_size
        rows["bytes"] = f"{rows['bytes'] / 2**20:.1f} MiB"
        rows["seconds"] = rows["seconds"] or "decoded before"
        yield table("", ("", "value"), rows.items())
        yield from (f"Note: {note}" for note in notes)


def _verify_data(dataset: DataSet, root: Path | None, progress: Progress) -> _VerifiedDataSet:
    """Check checksums and counts, and decode every picture; collect every problem."""
    if problems := dataset.verify(progress):
        return _VerifiedDataSet(dataset.name, root, dataset.expected, tuple(problems))
    counts = dataset.counts()
    return _VerifiedDataSet(
        dataset.name,
        root,
        dataset.expected,
        counts=counts,
        checksums=dataset.checksums(),
        unreadable=len(dataset.unreadable),
        disjoint=0 < counts.get("test_classes", 0) < counts.get("classes", 0),
        notes=_notes(dataset, counts),
        prepared=dataset.is_prepared(),
        prepare_command=_prepare_command(dataset, root),
    )


def _notes(dataset: DataSet, counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return the notes that a sweep on these data would print, except counts, which the table shows."""
    from trainables.data.formats.picture_files import differences

    listed = dataset.listed()
    notes = dataset.passed_over() if listed is None else listed.notes
    return tuple(note for note in notes if note not in differences(dataset, counts))


def _prepare_command(dataset: DataSet, root: Path | None) -> str:
    """Return the command that decodes these data, with every knob that is not at its default."""
    import shlex

    from trainables.methods import parameters_of

    words = ["tune-dml", "datasets", "prepare", dataset.name]
    words += ["--root", str(root)] if root is not None else []
    for knob in parameters_of(type(dataset)):
        value = getattr(dataset, knob.name, knob.default)
        if value != knob.default:
            words += ["--set", f"data.{knob.name}={_setting_text(value)}"]
    return shlex.join(words)


def _setting_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _prepare_data(dataset: DataSet, progress: Progress) -> _PreparedDataSet:
    """Decode into the cache, or continue an interrupted call. Raise ConfigError with every problem."""
    from trainables.errors import raise_if_any

    raise_if_any(dataset.check())
    was_prepared, start = dataset.is_prepared(), time.perf_counter()
    pictures = dataset.prepare(progress, fall_back=False)
    seconds = 0.0 if was_prepared else time.perf_counter() - start
    return _PreparedDataSet(pictures, seconds, getattr(dataset, "shorter_side", None))
