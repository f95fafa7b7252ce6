"""Store a trial's files in a folder or at an address in object storage. Writes are atomic.

    files = files_at(Path("sweeps/toy/trials/3f2a"))        # or files_at("s3://bucket/sweeps/toy-1b2c/3f2a")
    files.put("sealed.json", content); files.get("sealed.json"); files.names(); files.delete("sealed.json")

Every method raises OSError if the storage fails; `trainables.files.retry_storage` retries temporary failures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.files import missing_folder_error, require_folder, write_whole

if TYPE_CHECKING:
    from trainables.bucket import BucketFiles


def files_at(storage: Path | str) -> FolderFiles | BucketFiles:
    """Return the files in a folder or at an address in object storage (`s3://...`)."""
    if "://" not in str(storage):
        return FolderFiles(Path(storage))
    from trainables.bucket import BucketFiles

    return BucketFiles(str(storage))


@dataclass(frozen=True)
class FolderFiles:
    """Files in a folder, which `put` creates; raises OSError if its parent is missing (unmounted)."""

    folder: Path

    @property
    def storage(self) -> str:
        """Folder, for messages."""
        return str(self.folder)

    def put(self, name: str, content: bytes, *, private: bool = False) -> None:
        """Write or replace a file atomically; a private one is readable by its owner only."""
        require_folder(self.folder.parent)
        try:
            write_whole(self.folder / name, content, private=private)
        except FileNotFoundError as error:  # the folder vanished since the check
            raise missing_folder_error(self.folder) from error

    def get(self, name: str) -> bytes | None:
        """Return the content of a file, or None if there is none."""
        require_folder(self.folder.parent)
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """Return the names of all files, at any depth."""
        require_folder(self.folder.parent)
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        (self.folder / name).unlink(missing_ok=True)
