"""Manage the cache of decoded pictures: one directory per data set and digest, opened memory-mapped.

    <cache_dir>/<name>-<digest>/   images.npy (N, H, W, C), or pixels.bin + offsets.npy + shapes.npy if sizes differ;
                                   labels.npy, extra-*.npy, about.json (written last)

A build writes to a temporary sibling under a file lock and then renames it, so a directory is complete or absent.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from trainables.errors import ConfigError, DataError, Problem
from trainables.files import expand_home, write_whole

Pixels = NDArray[np.uint8]
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_SPARE = 64 << 20  # bytes that stay free on the disk
_SAMPLES, _BLOCK = 64, 4096
"""Number and size in bytes of the blocks that `fingerprint` reads."""
_OTHER_FOLDER = "Point TUNE_DML_CACHE (--cache-dir) at a writable directory."
_MORE_ROOM = "Free some space, or choose a larger disk (the cache's is TUNE_DML_CACHE or --cache-dir)."


class DiskFull(DataError):
    """The decoded pictures do not fit on the disk of the cache."""


class RaggedImages:
    """Pictures of different sizes in one flat memory-mapped file.

    `images[i]` is a view (H_i, W_i, C); `shape` is (N, 0, 0, C).
    """

    def __init__(self, pixels: Pixels, offsets: NDArray[np.int64], shapes: NDArray[np.int32], channels: int) -> None:
        self.pixels = pixels
        self.offsets = offsets
        self.sizes = shapes
        """Height and width of every picture, shape (N, 2)."""
        self.shape = (len(shapes), 0, 0, channels)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int | np.integer) -> Pixels:
        if not isinstance(index, int | np.integer):
            raise TypeError("index pictures of different sizes one by one; trainables.models.views.Views makes batches")
        height, width = self.sizes[index].tolist()
        start = int(self.offsets[index])
        return self.pixels[start : start + height * width * self.shape[3]].reshape(height, width, self.shape[3])


class Squares(Protocol):
    """Anything that indexes like an array (N, H, W, C) of uint8, or of float16 for stored features."""

    shape: tuple[int, ...]

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> NDArray[Any]: ...


Images = Pixels | RaggedImages | Squares


def default_cache_dir() -> Path:
    """Return $TUNE_DML_CACHE, else $XDG_CACHE_HOME/tune_dml, else ~/.cache/tune_dml.

    Raises DataError if none is set and the user has no home folder.
    """
    if configured := os.environ.get("TUNE_DML_CACHE"):
        return expand_home(configured)
    if xdg_cache := os.environ.get("XDG_CACHE_HOME"):
        return expand_home(xdg_cache) / "tune_dml"
    if not (home_cache := expand_home("~/.cache")).is_absolute():
        rule = "the cache needs a folder, and this user has no home folder"
        raise DataError(Problem("HOME", rule, os.environ.get("HOME"), f"Set HOME, or else: {_OTHER_FOLDER}"))
    return home_cache / "tune_dml"


def create_images(directory: Path, shape: Sequence[int]) -> Pixels:
    """Create a writable memory map (N, H, W, C) of uint8. Raise DataError if the disk is too full."""
    require_space(directory, int(np.prod(shape, dtype=np.int64)))
    mapped: Pixels = np.lib.format.open_memmap(directory / "images.npy", mode="w+", dtype=np.uint8, shape=tuple(shape))
    reserve(directory / "images.npy")
    return mapped


def create_ragged(directory: Path, shapes: NDArray[np.int32], channels: int) -> RaggedImages:
    """Create writable `RaggedImages` for pictures of the given heights and widths (N, 2)."""
    sizes = shapes.astype(np.int64).prod(axis=1) * channels
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    require_space(directory, int(offsets[-1]))
    np.save(directory / "offsets.npy", offsets[:-1])
    np.save(directory / "shapes.npy", np.concatenate([shapes, np.full((len(shapes), 1), channels)], 1).astype(np.int32))
    pixels = np.memmap(directory / "pixels.bin", mode="w+", dtype=np.uint8, shape=(int(offsets[-1]),))
    reserve(directory / "pixels.bin")
    return RaggedImages(pixels, offsets[:-1], shapes, channels)


def reserve(file: Path) -> None:
    """Allocate the file's blocks now, because writing into a mapped file on a full disk kills the process."""
    with file.open("r+b") as handle:
        try:
            os.posix_fallocate(handle.fileno(), 0, file.stat().st_size)
        except AttributeError:  # not available on this system
            return
        except OSError as error:
            if error.errno not in FULL:  # the file system cannot allocate; `require_space` has checked
                return
            raise _disk_full_error(file.parent, file.stat().st_size) from error


def open_images(directory: Path, mode: Literal["r", "r+"] = "r") -> Pixels | RaggedImages:
    """Open the pictures of a cache read-only, or of an unfinished one for writing ("r+")."""
    if (directory / "images.npy").exists():
        mapped: Pixels = np.load(directory / "images.npy", mmap_mode=mode)
        return mapped
    shapes = np.load(directory / "shapes.npy")
    pixels = np.memmap(directory / "pixels.bin", mode=mode, dtype=np.uint8)
    return RaggedImages(pixels, np.load(directory / "offsets.npy"), shapes[:, :2], int(shapes[0, 2]))


def select_images(directory: Path, indices: NDArray[np.int64]) -> None:
    """Keep only the pictures numbered `indices`, in that order."""
    if (directory / "images.npy").exists():
        old_images = np.load(directory / "images.npy", mmap_mode="r")
        shorter, shape = directory / "kept.npy", (len(indices), *old_images.shape[1:])
        require_space(directory, int(np.prod(shape, dtype=np.int64)))
        new_images = np.lib.format.open_memmap(shorter, mode="w+", dtype=np.uint8, shape=shape)
        reserve(shorter)
        for new, old in enumerate(indices):
            new_images[new] = old_images[old]
        new_images.flush()
        shorter.replace(directory / "images.npy")
        return
    for name in ("offsets.npy", "shapes.npy"):
        np.save(directory / name, np.load(directory / name)[indices])


def require_space(directory: Path, needed: int) -> None:
    """Raise DiskFull if the disk of `directory` cannot take `needed` bytes."""
    if shutil.disk_usage(directory).free < needed + _SPARE:
        raise _disk_full_error(directory, needed)


def _disk_full_error(directory: Path, needed: int) -> DiskFull:
    rule = f"the data need {_size_text(needed)} on its disk, and {_size_text(_SPARE)} must stay free"
    free = f"{_size_text(shutil.disk_usage(directory).free)} free"
    return DiskFull(Problem(str(directory.parent), rule, free, _MORE_ROOM))


def _size_text(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def build_once(target: Path, build: Callable[[Path], None], *, complete: Callable[[Path], bool]) -> None:
    """Run `build(temporary directory)` and rename the result to `target`, unless `target` is `complete`.

    Wait while another process builds the same target. The next build continues a killed one; a build that fails with
    DataError leaves no files. A truncated cache is rebuilt.
    """
    if complete(target):
        return
    with _named_folder(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target.with_name(f".{target.name}.lock")).acquire()
    with lock:
        if complete(target):
            return
        temporary = target.with_name(f".building-{target.name}")
        temporary.mkdir(exist_ok=True)
        try:
            build(temporary)
        except ConfigError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        except OSError as error:
            if error.errno not in FULL:
                raise
            shutil.rmtree(temporary, ignore_errors=True)
            raise DiskFull(Problem(str(target.parent), "the disk of the cache is full", None, _MORE_ROOM)) from error
        for path in temporary.iterdir():
            _fsync(path)  # before the rename, in case the machine crashes
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)  # a folder, too
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fingerprint(file: Path) -> str:
    """Return a digest of blocks spread over the file, all of it if it is small, to detect overwritten files."""
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as opened:
        last = max(os.fstat(opened.fileno()).st_size - _BLOCK, _BLOCK * (_SAMPLES - 1))
        for number in range(_SAMPLES):
            opened.seek(number * last // (_SAMPLES - 1))
            digest.update(opened.read(_BLOCK))
    return digest.hexdigest()[:16]


def write_text(path: Path, text: str) -> None:
    """Replace a small file of the cache atomically; the last writer wins."""
    with _named_folder(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            write_whole(path, text)


@contextmanager
def _named_folder(directory: Path) -> Iterator[None]:
    """Turn an OSError into a DataError that names the cache's folder."""
    try:
        yield
    except OSError as error:
        rule, remedy = "the cache directory must be writable", f"Free some space there, or: {_OTHER_FOLDER}"
        raise DataError(Problem(str(directory), rule, str(error), remedy)) from error
