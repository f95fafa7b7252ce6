"""Answers stored beside a sweep, so that `list` and `status` show them without computing statistics.

An answer is computed again when the ledger, the plan, the installed code or the way commands are written has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.files import write_whole
from tune_dml.record.ledger import LEDGER

if TYPE_CHECKING:
    from tune_dml.record.results import Results

_FILE = ".answers.json"
_PACKAGES = ("tune_dml", "trainables", "search_spaces")


def stored_lines(results: Results, kind: str, compute: Callable[[], list[str]]) -> list[str]:
    """Return the lines of one kind (`headline`, `answer`) about a sweep, from its file while that is current."""
    path, digest = results.folder / _FILE, _digest(results)
    stored: dict[str, list[str]] = {}
    with suppress(OSError, ValueError):
        read = json.loads(path.read_text(encoding="utf-8"))
        stored = read["lines"] if read["digest"] == digest else {}
    if kind not in stored:
        stored[kind] = compute()
        with suppress(OSError):  # a read-only folder
            write_whole(path, json.dumps({"digest": digest, "lines": stored}))
    return stored[kind]


def _digest(results: Results) -> str:
    """Return a digest of what an answer depends on."""
    from tune_dml.record.origin.commands import program

    times = [results.folder, str(Path.cwd()), program(), _code()]
    for name in (LEDGER, "plan.json"):
        with suppress(OSError):
            stat = (results.folder / name).stat()
            times += [stat.st_mtime_ns, stat.st_size]
    return hashlib.sha256(repr(times).encode()).hexdigest()


@cache
def _code() -> tuple[float, ...]:
    """Return the times at which our packages, and the installed ones, last changed."""
    root = Path(__file__).parents[2]
    installed = os.stat(sysconfig.get_path("purelib")).st_mtime
    return installed, *(max(_times(root / package), default=0.0) for package in _PACKAGES)


def _times(folder: Path) -> Iterator[float]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _times(Path(entry.path))
            else:
                yield entry.stat().st_mtime
