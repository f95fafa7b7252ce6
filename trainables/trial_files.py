"""Where a trial keeps its files: a folder, or a place in object storage. A reader sees a file whole or not at all.

    files = files_at(Path("sweeps/toy/trials/3f2a"))        # or files_at("s3://bucket/sweeps/toy-1b2c/3f2a")
    files.put("sealed.json", content); files.get("sealed.json"); files.names(); files.delete("sealed.json")

Every verb raises OSError where the storage fails; `trainables.files.patiently` knows what passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainables.files import existing, gone, write_whole


class TrialFiles(Protocol):
    """The files of one trial, by names such as `sealed.json` and `evidence/sheet.jpg`."""

    @property
    def place(self) -> str:
        """Where they are, for people."""

    def put(self, name: str, content: bytes, *, private: bool = False) -> None:
        """Write a file, in place of an earlier one; a private one is its owner's to read, where there are owners."""

    def get(self, name: str) -> bytes | None:
        """What is in a file; None where there is none."""

    def names(self) -> list[str]:
        """All files."""

    def delete(self, name: str) -> None:
        """Take a file away; nothing happens where there is none."""


def files_at(place: Path | str) -> TrialFiles:
    """The files in a folder, or at an address in object storage (`s3://...`)."""
    if "://" not in str(place):
        return FolderFiles(Path(place))
    from trainables.bucket import BucketFiles

    return BucketFiles(str(place))


@dataclass(frozen=True)
class FolderFiles:
    """In a folder, which is made when something is written; the folder above must be there, else its file system is gone."""

    folder: Path

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.folder)

    def put(self, name: str, content: bytes, *, private: bool = False) -> None:
        """On disk before it has its name."""
        existing(self.folder.parent)
        try:
            write_whole(self.folder / name, content, private=private)
        except FileNotFoundError as error:  # since it was looked for
            raise gone(self.folder) from error

    def get(self, name: str) -> bytes | None:
        """As it is on disk."""
        existing(self.folder.parent)
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """In folders below it too."""
        existing(self.folder.parent)
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())

    def delete(self, name: str) -> None:
        """The file alone."""
        (self.folder / name).unlink(missing_ok=True)
