"""Compare downloaded archives with the published checksum, and unpack them once."""

import hashlib
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from trainables.data.formats import cache
from trainables.errors import DataError, Problem, raise_if_any

_SHOWN = 5
_SUFFIXES = (".tar", ".tgz", ".gz", ".tbz2", ".bz2", ".txz", ".xz", ".zip")
_ENCRYPTED = 0x1  # flag of a zip archive's entry


def other_data_remedy(setting: str = "data.strict") -> str:
    """Return the remedy for data unlike the published ones; `setting` accepts them."""
    return f"Download it again, or pass --set {setting}=false to use it as it is."


def unpacked_folder(root: Path, cache_dir: Path) -> Path:
    """Return `root` if it is a folder, or else the folder below `cache_dir` with the archive's content."""
    if not root.is_file():
        return root
    state = root.stat()
    key = hashlib.sha256(f"{root.resolve()} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:20]
    target = cache_dir / "unpacked" / f"{root.stem}-{key}"
    cache.build_once(target, lambda folder: unpack(root, folder), complete=Path.is_dir)
    return target


def checksum_problems(archive: Path, published: Mapping[str, str]) -> list[Problem]:
    """Compare an archive with the published MD5 of its name; an archive with an unknown name causes no problem."""
    expected = published.get(archive.name)
    if expected is None or not archive.is_file():
        return []
    own = _md5(archive, archive.stat().st_mtime_ns)
    return [] if own == expected else [Problem(str(archive), f"the MD5 must be {expected}", own, other_data_remedy())]


@lru_cache
def _md5(file: Path, changed: int) -> str:  # `changed` is part of the cache's key
    with file.open("rb") as source:
        return hashlib.file_digest(source, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def checksums(files: Iterable[tuple[Path, Mapping[str, str]]]) -> dict[str, str]:
    """Return name -> "published" or "differs" for each file whose name has a published MD5."""
    return {
        file.name: "differs" if checksum_problems(file, published) else "published"
        for file, published in files
        if file.name in published and file.is_file()
    }


def unpack(archive: Path, folder: Path) -> None:
    """Extract a tar (any compression) or zip archive into `folder`.

    Raises DataError before writing anything if an entry leads outside, is a link or a device, or if the disk is too
    full.
    """
    try:
        if zipfile.is_zipfile(archive):
            _unzip(archive, folder)
        else:
            _untar(archive, folder)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in cache.FULL:
            raise
        if archive.suffix.lower() not in _SUFFIXES:
            remedy = "Unpack it, or pass the folder that holds it and the pictures."
            raise DataError(Problem(str(archive), "must be a folder or an archive", None, remedy)) from error
        remedy = "Download it again; known kinds are .tar, .tgz, .tar.gz, .tar.bz2, .tar.xz and .zip."
        raise DataError(Problem(str(archive), "must be a readable archive", str(error), remedy)) from error


def _untar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as source:
        members = source.getmembers()
        bad = [m.name for m in members if _is_outside(m.name) or not (m.isfile() or m.isdir())]
        raise_if_any(_entry_problems(archive, bad), DataError)
        cache.require_space(folder, sum(member.size for member in members))
        source.extractall(folder, members, filter="data")


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as source:
        entries = source.infolist()
        bad = [e.filename for e in entries if _is_outside(e.filename) or stat.S_ISLNK(e.external_attr >> 16)]
        raise_if_any(_entry_problems(archive, bad), DataError)
        if any(entry.flag_bits & _ENCRYPTED for entry in entries):  # as img.zip of In-Shop
            remedy = "Unpack it with the password from its authors, and pass the folder."
            raise DataError(Problem(str(archive), "must be an archive without a password", None, remedy))
        cache.require_space(folder, sum(entry.file_size for entry in entries))
        source.extractall(folder, entries)  # noqa: S202 - a zip archive, whose entries are checked


def _is_outside(name: str) -> bool:
    path = PurePosixPath(name.replace("\\", "/"))
    return path.is_absolute() or ".." in path.parts or (len(name) > 1 and name[1] == ":")


def _entry_problems(archive: Path, bad: list[str]) -> list[Problem]:
    rule = "every entry must be a plain file or folder inside the archive's own folder"
    problems = [Problem(f"{archive.name}: {name}", rule, None, "Do not use this archive.") for name in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        problems.append(Problem(archive.name, f"{len(bad) - _SHOWN} more entries break that rule"))
    return problems
