"""Files that are whole or absent, whatever kills their writer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: bytes | str | Callable[[BinaryIO], object], *, private: bool = False) -> None:
    """Replace a file by bytes, text (UTF-8), or what a function writes; a reader sees the old file or the new one.

    The folder is made if missing; the content is on disk before the name changes. A private file is its owner's to read alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        if private:
            os.fchmod(file.fileno(), 0o600)  # before there is anything to read
        if callable(content):
            content(file)
        else:
            file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
