"""Picture files in folders: finding and fingerprinting them, reading each file once."""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from trainables.data.base import Progress
from trainables.data.formats import cache
from trainables.data.formats.decoding import EncodedPictures, why_undecodable
from trainables.errors import DataError, Problem, raise_if_any

_SHOWN = 5  # names in a message
_REPORT = 64  # files between two reports of progress
_SAVE_EVERY = 15.0  # seconds
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
KINDS = ", ".join(sorted(SUFFIXES)[:-1]) + f" or {max(SUFFIXES)}"
"""The suffixes, for messages."""


def find_pictures(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the sorted pictures and other files at any depth below `folder`, except hidden ones.

    Links to files count as files; links to folders are not followed and count as other files.
    Raises DataError for folders that cannot be listed and for names that are not UTF-8.
    """
    pictures: list[Path] = []
    others: list[Path] = []
    problems, unlisted = [], [str(folder)]
    while unlisted:
        try:
            with os.scandir(unlisted.pop()) as entries:
                seen = [entry for entry in entries if entry.name[0] != "."]
        except OSError as error:
            problems.append(Problem(str(error.filename), "the folder must be readable", str(error.strerror)))
            continue
        for entry in seen:  # the listing knows folders: no stat per file on a file server
            if entry.is_dir(follow_symlinks=False):
                unlisted.append(entry.path)
            elif entry.is_file() or entry.is_symlink():
                is_picture = os.path.splitext(entry.name)[1].lower() in SUFFIXES and not entry.is_dir()
                (pictures if is_picture else others).append(Path(entry.path))
    raise_if_any([*problems, *_name_problems([*pictures, *others])], DataError)
    return sorted(pictures), sorted(others)


def _name_problems(paths: Sequence[Path]) -> list[Problem]:
    """Report the first names that are not UTF-8."""
    wrong = [ascii(str(path)) for path in paths if any("\ud800" <= letter <= "\udfff" for letter in str(path))]
    return [Problem(name, "names must be UTF-8", None, "Rename it.") for name in wrong[:_SHOWN]]


def encoded_files(root: Path, names: Sequence[str]) -> EncodedPictures:
    """Return the files `names` below `root` as encoded pictures."""
    return EncodedPictures(names, partial(_open, root, names))


def _open(root: Path, names: Sequence[str], i: int) -> Image.Image:
    return Image.open(root / names[i])


def digests(root: Path, names: Sequence[str], cache_dir: Path, *, skip: bool = False) -> list[tuple[str, str]]:
    """Return (name, SHA-256) of files; an unreadable one raises DataError, or has an empty digest with `skip`."""
    known = _contents(root, names, cache_dir, verify=False)
    unread = [Problem(str(root / name), known[name][1]) for name, (sha256, _) in known.items() if not (sha256 or skip)]
    raise_if_any(unread[:_SHOWN], DataError)
    return [(name, sha256) for name, (sha256, _) in known.items()]


def unreadable_files(
    root: Path, names: Sequence[str], cache_dir: Path, progress: Progress | None = None
) -> dict[int, str]:
    """Return number in `names` -> reason for each file that does not decode to its end."""
    known = _contents(root, names, cache_dir, verify=True, progress=progress)
    return {i: known[name][1] for i, name in enumerate(names) if known[name][1]}


def _contents(
    root: Path, names: Sequence[str], cache_dir: Path, *, verify: bool, progress: Progress | None = None
) -> dict[str, tuple[str, str]]:
    """Return name -> SHA-256 and why the file does not decode (empty if it does or was not verified).

    Cached in `cache_dir` by name, size and modification time, so that a second call reads nothing.
    """
    index = cache_dir / "fingerprints" / f"{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:20]}.json"
    known = _read_index(index)
    keys = {name: _state(os.path.join(root, name)) for name in names}
    stale = [
        name for name in names if name not in known or known[name][:2] != keys[name] or (verify and not known[name][4])
    ]
    if stale:
        with ThreadPoolExecutor() as pool:
            contents = pool.map(lambda name: _read_content(root / name, verify=verify), stale)
            saved = time.monotonic()
            for done, (name, content) in enumerate(zip(stale, contents, strict=True), start=1):
                known[name] = [*keys[name], *content, verify]
                if time.monotonic() - saved > _SAVE_EVERY:  # keep the results of a call that is killed later
                    cache.write_text(index, json.dumps(known))
                    saved = time.monotonic()
                if progress and (done % _REPORT == 0 or done == len(stale)):
                    progress(done, len(stale))
        read = {name: entry for name, entry in known.items() if entry[2]}  # retry unreadable files next time
        cache.write_text(index, json.dumps(read))
    return {name: (known[name][2], known[name][3]) for name in names}


def _state(path: str) -> list[int]:
    """Return size and modification time; zeros if the file cannot be accessed."""
    try:
        stat = os.stat(path)
    except OSError:
        return [0, 0]
    return [stat.st_size, stat.st_mtime_ns]


def _read_index(index: Path) -> dict[str, list[Any]]:
    try:
        known: dict[str, list[Any]] = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known


def _read_content(path: Path, *, verify: bool) -> tuple[str, str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        return "", f"the file cannot be read: {error.strerror}"
    sha256 = hashlib.sha256(data).hexdigest()
    if not verify:
        return sha256, ""
    return sha256, why_undecodable(lambda: Image.open(io.BytesIO(data))) if data else "the file is empty"
