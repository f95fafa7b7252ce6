"""Picture files in folders: finding them, and knowing their content without reading it twice."""

from __future__ import annotations

import hashlib
import io
import json
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

_REPORT = 64  # files between two reports of progress
_SAVE_EVERY = 15.0  # seconds
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})


def find_pictures(folder: Path) -> tuple[list[Path], list[Path]]:
    """(pictures, other files) at any depth below `folder`, each sorted; names that start with a dot are passed over."""
    visible = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    pictures = [path for path in visible if path.suffix.lower() in SUFFIXES]
    return pictures, [path for path in visible if path.suffix.lower() not in SUFFIXES]


def encoded_files(root: Path, names: Sequence[str]) -> EncodedPictures:
    """The files `names`, relative to `root`, as encoded pictures."""
    return EncodedPictures(names, partial(_open, root, names))


def _open(root: Path, names: Sequence[str], i: int) -> Image.Image:
    return Image.open(root / names[i])


def digests(root: Path, names: Sequence[str], cache_dir: Path) -> list[tuple[str, str]]:
    """(name, SHA-256) of files below `root`."""
    return [(name, sha256) for name, (sha256, _) in _contents(root, names, cache_dir, verify=False).items()]


def unreadable_files(
    root: Path, names: Sequence[str], cache_dir: Path, progress: Progress | None = None
) -> dict[int, str]:
    """Number in `names` -> reason for each file that does not decode to its end."""
    known = _contents(root, names, cache_dir, verify=True, progress=progress)
    return {i: known[name][1] for i, name in enumerate(names) if known[name][1]}


def _contents(
    root: Path, names: Sequence[str], cache_dir: Path, *, verify: bool, progress: Progress | None = None
) -> dict[str, tuple[str, str]]:
    """Name -> SHA-256, and why it does not decode to its end (empty when it does, or when it was never to be verified).

    Remembered in `cache_dir` by name, size and time of change, so that a second call reads nothing.
    """
    index = cache_dir / "fingerprints" / f"{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:20]}.json"
    known = _read_index(index)
    stats = {name: (root / name).stat() for name in names}
    keys = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    stale = [
        name for name in names if name not in known or known[name][:2] != keys[name] or (verify and not known[name][4])
    ]
    if stale:
        with ThreadPoolExecutor() as pool:
            looked = pool.map(lambda name: _look(root / name, verify=verify), stale)
            saved = time.monotonic()
            for done, (name, content) in enumerate(zip(stale, looked, strict=True), start=1):
                known[name] = [*keys[name], *content, verify]
                if time.monotonic() - saved > _SAVE_EVERY:  # a killed call has not read in vain
                    cache.write_text(index, json.dumps(known))
                    saved = time.monotonic()
                if progress and (done % _REPORT == 0 or done == len(stale)):
                    progress(done, len(stale))
        cache.write_text(index, json.dumps(known))
    return {name: (known[name][2], known[name][3]) for name in names}


def _read_index(index: Path) -> dict[str, list[Any]]:
    try:
        known: dict[str, list[Any]] = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known


def _look(path: Path, *, verify: bool) -> tuple[str, str]:
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    if not verify:
        return sha256, ""
    return sha256, why_undecodable(lambda: Image.open(io.BytesIO(data))) if data else "the file is empty"
