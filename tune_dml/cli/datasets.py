"""`tune-dml datasets`: list the data sets, verify your copy, decode it before any sweep needs it."""

from __future__ import annotations

import inspect
import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.cli.options import Json, absolute, verb
from tune_dml.cli.screen import Lines, console_for, print_result, progress_bar, table
from tune_dml.space import Value
from tune_dml.text import counted

if TYPE_CHECKING:
    from trainables.data.base import DataSet

ORDER = 37
Progress = Callable[[int, int], None]
_ALLOWED = ", which data.strict=false allows"

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
        rows = [row_of(name, cls) for name, cls in DATASETS.items()]
        text = [*(f"{paragraph(row)}\n" for row in rows), copy_commands("NAME")]
        print_result(rows, text, as_json)


@dataclass(frozen=True)
class DataSetCopy:
    """The user's copy of a data set, and settings of its decoding."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set: `tune-dml datasets`.")]
    root: Annotated[
        Path | None,
        typer.Option(
            "--root", "--data-root", help="Folder or archive of the data, as downloaded, or a table of pictures."
        ),
    ] = None
    settings: Mapping[str, Value] | None = None
    cache_dir: Path | None = None
    skip_corrupt: Annotated[bool, typer.Option(help="Leave out pictures that cannot be decoded.")] = False

    def open(self) -> DataSet:
        """Return the data set as a sweep would open it, without reading files. Raise ConfigError with all problems."""
        from trainables.data import DATASETS, build_dataset

        name, root = self.name, absolute(self.root)
        if name not in DATASETS:
            raise ConfigError(Problem("NAME", "unknown data set", name, known=DATASETS, kind="data set"))
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
            if knob in knobs:
                both = f"{knob}={knobs[knob]} and {path}={value}"
                problems.append(Problem("--set", "a setting has one value", both, "Keep one of them."))
            knobs[knob] = value
        raise_if_any(problems)
        if self.skip_corrupt:
            knobs["skip_corrupt"] = True
        return build_dataset(name, root=root, cache_dir=absolute(self.cache_dir), **knobs)


@datasets.command("verify", short_help="Check your copy of a data set")
@verb
def verify(copy: DataSetCopy, *, as_json: Json = False) -> None:
    """Check your copy of a data set: published counts and checksums, and that every picture decodes."""
    dataset, root = copy.open(), absolute(copy.root)
    with progress_bar(console_for(as_json), "reading") as progress:
        problems = dataset.verify(progress)
        findings = _findings(dataset, root, problems)
    if not as_json:
        raise_if_any(problems)
    print_result(findings, _findings_text(findings, dataset, root), as_json)
    raise typer.Exit(1 if problems else 0)


@datasets.command("prepare", short_help="Decode the pictures into the cache")
@verb
def prepare(copy: DataSetCopy, *, as_json: Json = False) -> None:
    """Decode the pictures into the cache, which all trials on this machine share; continue an interrupted call."""
    dataset = copy.open()
    with progress_bar(console_for(as_json), "decoding") as progress:
        prepared = _prepare_data(dataset, progress)
    print_result(prepared, _prepared_text(prepared), as_json)


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


def _findings(dataset: DataSet, root: Path | None, problems: Sequence[Problem]) -> dict[str, Any]:
    """Return the findings about a copy; `unreadable` pictures do not decode and will be left out (--skip-corrupt)."""
    is_ok = not problems
    counts, expected = dict(dataset.counts()) if is_ok else {}, dict(dataset.expected)
    return {
        "dataset": dataset.name,
        "root": None if root is None else str(root),
        "ok": is_ok,
        "expected": expected,
        "counts": counts,
        "differs": [key for key, count in expected.items() if is_ok and counts.get(key) != count],
        "checksums": dict(dataset.checksums()) if is_ok else {},
        "unreadable": len(dataset.unreadable) if is_ok else 0,
        "prepared": is_ok and dataset.is_prepared(),
        "notes": _notes(dataset, counts) if is_ok else [],
        "problems": [asdict(problem) for problem in problems],
    }


def _findings_text(findings: Mapping[str, Any], dataset: DataSet, root: Path | None) -> Lines:
    counts, expected, unreadable = findings["counts"], findings["expected"], findings["unreadable"]
    if keys := dict.fromkeys([*expected, *counts]):
        rows = ((key.replace("_", " "), counts.get(key), expected.get(key)) for key in keys)
        yield table("", (dataset.name, "found", "published"), rows, right=("found", "published"))
    if findings["differs"]:
        yield f"NOT the published data: counts differ{_ALLOWED}."
    elif expected:
        yield "The counts are the published ones."
    for name, state in findings["checksums"].items():
        is_published = state == "published"
        yield f"{name}: {'' if is_published else 'NOT '}the published MD5{'' if is_published else _ALLOWED}."
    if 0 < counts.get("test_classes", 0) < counts.get("classes", 0):
        yield "No class is in both the training and the test half."
    if unreadable:
        do = "does" if unreadable == 1 else "do"
        yield f"{counted(unreadable, 'picture')} {do} NOT decode and will be left out; the others decode to their end."
    elif "dimension" in counts:
        yield "The features are those that digest.json describes, byte for byte."
    else:
        yield "Every picture decodes to its end."
    yield from (f"Note: {note}" for note in findings["notes"])
    yield "Decoded already." if findings["prepared"] else f"Not decoded yet: {_prepare_command(dataset, root)}"


def _prepared_text(prepared: Mapping[str, Any]) -> Lines:
    rows = dict(prepared)
    notes, side = rows.pop("notes"), rows.pop("shorter_side")
    rows["size"] = rows["size"] or (f"whole, shorter side {side}" if side else "whole, as they are")
    rows["bytes"] = f"{rows['bytes'] / 2**20:.1f} MiB"
    rows["seconds"] = rows["seconds"] or "decoded before"
    yield table("", ("", "value"), rows.items())
    yield from (f"Note: {note}" for note in notes)


def _notes(dataset: DataSet, counts: Mapping[str, int]) -> list[str]:
    """Return the notes that a sweep on these data would print, except counts, which the table shows."""
    from trainables.data.formats.picture_files import differences

    listed = dataset.listed()
    notes = dataset.passed_over() if listed is None else listed.notes
    return [note for note in notes if note not in differences(dataset, counts)]


def _prepare_command(dataset: DataSet, root: Path | None) -> str:
    """Return the command that decodes these data, with every knob that is not at its default."""
    from trainables.methods import parameters_of

    words = ["tune-dml", "datasets", "prepare", dataset.name]
    words += ["--root", str(root)] if root is not None else []
    for knob in parameters_of(type(dataset)):
        value = getattr(dataset, knob.name, knob.default)
        if value != knob.default:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            words += ["--set", f"data.{knob.name}={text}"]
    return shlex.join(words)


def _prepare_data(dataset: DataSet, progress: Progress) -> dict[str, Any]:
    """Decode into the cache, or continue an interrupted call; return what is there. Raise ConfigError with all problems.

    `seconds` are those of decoding, 0 if it was decoded before; `shorter_side` is that of pictures stored whole.
    """
    raise_if_any(dataset.check())
    was_prepared, start = dataset.is_prepared(), time.perf_counter()
    pictures = dataset.prepare(progress, fall_back=False)
    seconds, folder = time.perf_counter() - start, pictures.directory
    return {
        "dataset": pictures.name,
        "images": len(pictures),
        "classes": len(pictures.class_names),
        "test_classes": len(pictures.test_classes),
        "channels": pictures.in_channels,
        "size": pictures.image_size,
        "shorter_side": getattr(dataset, "shorter_side", None),
        "digest": pictures.digest,
        "cache": str(folder),
        "bytes": sum(file.stat().st_size for file in folder.iterdir()) if folder else 0,
        "seconds": 0.0 if was_prepared else round(seconds, 3),
        "notes": list(pictures.notes),
    }
