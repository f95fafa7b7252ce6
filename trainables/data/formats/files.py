"""Find picture files in folders and compute their digests, reading each file once."""

import hashlib
import io
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image

from trainables.data.base import Progress
from trainables.data.formats import cache
from trainables.data.formats.decoding import EncodedPictures, decoding_error
from trainables.errors import DataError, Problem, raise_if_any

_LISTED = 5  # names in a message
_REPORT = 64  # files between two reports of progress
_SAVE_EVERY = 15.0  # seconds
_ALWAYS = (".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
SUFFIXES = frozenset({*_ALWAYS, *([".avif"] if find_spec("PIL._avif") else [])})  # in Pillow's wheels since 11.3
KINDS = ", ".join(_ALWAYS[:-1]) + f" or {_ALWAYS[-1]}"
"""The suffixes that every Pillow reads, for messages."""


def find_pictures(folder: Path, *, linked: bool = False) -> tuple[list[Path], list[Path]]:
    """Return the sorted pictures and other files at any depth below `folder`, except hidden ones.

    Links to files count as files; links to folders are not followed and count as other files. If `linked`, those that
    lie directly in `folder` are followed, as a disk may hold only some of the folders.
    Raises DataError for folders that cannot be listed and for names that are not UTF-8.
    """
    pictures: list[Path] = []
    other_files: list[Path] = []
    problems, unlisted, is_top = [], [str(folder)], linked
    while unlisted:
        try:
            with os.scandir(unlisted.pop()) as entries:
                visible = [entry for entry in entries if entry.name[0] != "."]
        except OSError as error:
            problems.append(Problem(str(error.filename), "the folder must be readable", str(error.strerror)))
            continue
        for entry in visible:  # uses the listing, without a stat per file on a file server
            if entry.is_dir(follow_symlinks=False) or (is_top and _is_folder(entry) and not leads_up(Path(entry))):
                unlisted.append(entry.path)
            elif entry.is_symlink() or entry.is_file():
                is_picture = os.path.splitext(entry.name)[1].lower() in SUFFIXES and not _is_folder(entry)
                (pictures if is_picture else other_files).append(Path(entry.path))
        is_top = False
    raise_if_any([*problems, *_name_problems([*pictures, *other_files])], DataError)
    return sorted(pictures), sorted(other_files)


def leads_up(path: Path) -> bool:
    """Return whether a path is a link to a folder that holds it, which would make a class of all pictures."""
    return path.is_symlink() and path.is_dir() and path.parent.resolve().is_relative_to(path.resolve())


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _name_problems(paths: Sequence[Path]) -> list[Problem]:
    """Report the first names that are not UTF-8."""
    wrong = [ascii(str(path)) for path in paths if any("\ud800" <= letter <= "\udfff" for letter in str(path))]
    return [Problem(name, "names must be UTF-8", None, "Rename it.") for name in wrong[:_LISTED]]


def encoded_files(root: Path, names: Sequence[str]) -> EncodedPictures:
    """Return the files `names` below `root` as encoded pictures."""
    return EncodedPictures(names, partial(_open_picture, root, names))


def _open_picture(root: Path, names: Sequence[str], i: int) -> Image.Image:
    return Image.open(root / names[i])


def digests(root: Path, names: Sequence[str], cache_dir: Path, *, skip: bool = False) -> list[tuple[str, str]]:
    """Return (name, SHA-256) of files; an unreadable file raises DataError, or has an empty digest if `skip`."""
    results = _read_files(root, names, cache_dir, verify=False)
    unread = [Problem(str(root / name), reason) for name, (sha256, reason) in results.items() if not (sha256 or skip)]
    raise_if_any(unread[:_LISTED], DataError)
    return [(name, sha256) for name, (sha256, _) in results.items()]


def unreadable_files(
    root: Path, names: Sequence[str], cache_dir: Path, progress: Progress | None = None
) -> dict[int, str]:
    """Return number in `names` -> reason for each file that does not decode to its end."""
    results = _read_files(root, names, cache_dir, verify=True, progress=progress)
    return {i: results[name][1] for i, name in enumerate(names) if results[name][1]}


def _read_files(
    root: Path, names: Sequence[str], cache_dir: Path, *, verify: bool, progress: Progress | None = None
) -> dict[str, tuple[str, str]]:
    """Return name -> SHA-256 and why the file does not decode (empty if it does or was not verified).

    Cache results in `cache_dir` by name, size and modification time, so that a second call reads no file.
    """
    index = cache_dir / "fingerprints" / f"{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:20]}.json"
    entries = _read_index(index)
    keys = {name: _size_and_time(os.path.join(root, name)) for name in names}
    stale = [
        name
        for name in names
        if name not in entries or entries[name][:2] != keys[name] or (verify and not entries[name][4])
    ]
    if stale:
        with ThreadPoolExecutor() as pool:
            contents = pool.map(lambda name: _read_content(root / name, verify=verify), stale)
            saved = time.monotonic()
            for number, (name, content) in enumerate(zip(stale, contents, strict=True), start=1):
                entries[name] = [*keys[name], *content, verify]
                if time.monotonic() - saved > _SAVE_EVERY:  # keep the results of a call that is killed later
                    cache.write_text(index, json.dumps(entries))
                    saved = time.monotonic()
                if progress and (number % _REPORT == 0 or number == len(stale)):
                    progress(number, len(stale))
        cache.write_text(index, json.dumps(entries))
    return {name: (entries[name][2], entries[name][3]) for name in names}


def _size_and_time(path: str) -> list[int]:
    """Return size and modification time; zeros if the file cannot be accessed."""
    try:
        stat = os.stat(path)
    except OSError:
        return [0, 0]
    return [stat.st_size, stat.st_mtime_ns]


def _read_index(index: Path) -> dict[str, list[Any]]:
    """Return the stored results, without those of unreadable files, which are read again."""
    try:
        entries: dict[str, list[Any]] = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: entry for name, entry in entries.items() if entry[2]}


def _read_content(path: Path, *, verify: bool) -> tuple[str, str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        return "", f"the file cannot be read: {error.strerror}"
    sha256 = hashlib.sha256(data).hexdigest()
    if not verify:
        return sha256, ""
    return sha256, decoding_error(lambda: Image.open(io.BytesIO(data))) if data else "the file is empty"
