"""Decode pictures of any kind to uint8 RGB in the cache, in parallel and resumably, and collect failures."""

import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from trainables.data.base import Progress
from trainables.data.formats import cache
from trainables.errors import Problem
from trainables.files import write_whole

_CHUNK = 256  # pictures between two updates of done.npy
_PLAIN = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"})  # modes that always convert to RGB
_SHOWN = 10  # failures in a message


@dataclass(frozen=True)
class EncodedPictures:
    """Encoded pictures by number: files of a folder, records of an archive."""

    names: Sequence[str]  # name of each picture in messages
    open: Callable[[int], Image.Image]  # open one picture, possibly without decoding its pixels


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow picture to upright 8-bit RGB.

    Apply the EXIF orientation, divide 16-bit greys by 257, show transparent pixels as white, and use the first frame.
    Raise ValueError for real numbers, whose range is unknown.
    """
    if image.mode == "F":
        raise ValueError("pixels must be whole numbers")
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits, which some Pillow versions open as 32
        grey = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray((grey / 257).round().astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        upper = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", upper.size, (255, 255, 255, 255)), upper)
    return image.convert("RGB")


def _resized(width: int, height: int, shorter: int | None) -> tuple[int, int]:
    """Return (width, height) after the shorter side is resized to `shorter`; None changes nothing."""
    if shorter is None:
        return width, height
    if width <= height:
        return shorter, max(shorter, int(shorter * height / width))
    return max(shorter, int(shorter * width / height)), shorter


def _resize(image: Image.Image, shorter: int | None) -> Image.Image:
    size = _resized(*image.size, shorter)
    return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)


@dataclass(frozen=True)
class SquarePictures:
    """Stores pictures as squares: resize the shorter side to `size` pixels, then cut the centre."""

    size: int

    def pixels(self, image: Image.Image) -> cache.Pixels:
        image = _resize(_to_rgb(image), self.size)
        left, top = (image.width - self.size) // 2, (image.height - self.size) // 2
        return np.asarray(image.crop((left, top, left + self.size, top + self.size)))

    def create(self, directory: Path, encoded: EncodedPictures) -> cache.Pixels:
        return cache.create_images(directory, (len(encoded.names), self.size, self.size, 3))


@dataclass(frozen=True)
class WholePictures:
    """Stores whole pictures with one shorter side (None: unchanged), so that random crops see all of them."""

    shorter_side: int | None

    def pixels(self, image: Image.Image) -> cache.Pixels:
        return np.asarray(_resize(_to_rgb(image), self.shorter_side))

    def create(self, directory: Path, encoded: EncodedPictures) -> cache.RaggedImages:
        return cache.create_ragged(directory, self.sizes(encoded), channels=3)

    def sizes(self, encoded: EncodedPictures) -> NDArray[np.int32]:
        """Return height and width of every picture from the headers, (N, 2)."""
        with ThreadPoolExecutor(available_cores()) as pool:
            numbers = range(len(encoded.names))
            sizes = list(pool.map(lambda i: _header_size(encoded, i, self.shorter_side), numbers))
        return np.array(sizes, dtype=np.int32).reshape(-1, 2)


def decode(
    directory: Path, encoded: EncodedPictures, form: SquarePictures | WholePictures, progress: Progress | None = None
) -> dict[int, str]:
    """Decode pictures into `directory`; return picture number -> reason for each failure.

    Continue an interrupted call on the same directory. A chunk is marked as done only after its pixels are on disk.
    """
    done_file, count = directory / "done.npy", len(encoded.names)
    images = cache.open_images(directory, "r+") if done_file.exists() else form.create(directory, encoded)
    if not done_file.exists():
        write_whole(done_file, lambda file: np.save(file, np.zeros(count, dtype=bool)))
    done = np.load(done_file, mmap_mode="r+")
    failures: dict[int, str] = {}

    def decode_one(i: int) -> None:
        with encoded.open(i) as image:
            images[i][:] = form.pixels(image)

    def mark_done(chunk: Sequence[int]) -> None:
        _sync(images.pixels if isinstance(images, cache.RaggedImages) else images)
        done[[i for i in chunk if i not in failures]] = True
        done.flush()
        if progress:
            progress(int(done.sum()) + len(failures), count)

    # Write one chunk while the next one is decoded.
    with ThreadPoolExecutor(available_cores()) as pool, ThreadPoolExecutor(1) as writer:
        pending: Future[None] | None = None
        for chunk in _chunks(np.flatnonzero(~done).tolist()):
            reasons = dict(zip(chunk, pool.map(lambda i: _failure_of(partial(decode_one, i)), chunk), strict=True))
            if pending is not None:
                pending.result()
            failures.update({i: reason for i, reason in reasons.items() if reason})
            pending = writer.submit(mark_done, chunk)
        if pending is not None:
            pending.result()
    done_file.unlink()
    return failures


_SKIP = "Replace it, or leave it out: --skip-corrupt of `datasets prepare` and `init`, in sweeps --set data.skip_corrupt=true."


def decoding_error(open_picture: Callable[[], Image.Image]) -> str:
    """Return why a picture does not decode to its end; an empty text if it does. Equal files give equal texts."""

    def read() -> None:
        with open_picture() as image:
            image.draft("RGB", (32, 32))  # a JPEG is read to its end but decoded at an eighth of its size
            image.load()
            if image.mode not in _PLAIN:
                _to_rgb(image)

    return _failure_of(read)


def _failure_of(work: Callable[[], None]) -> str:
    """Return why `work` on a picture fails; an empty text if it succeeds."""
    try:
        work()
    except UnidentifiedImageError:  # its text holds an address in memory
        return "no picture in a known format"
    except Exception as error:  # decoders raise many kinds for broken files
        return f"{type(error).__name__}: {error}"
    return ""


def failure_problems(
    failures: Mapping[int, str], names: Sequence[str], folder: Path | None = None, remedy: str = _SKIP
) -> list[Problem]:
    """Return one problem per picture (a file in `folder`), at most ten, then one that counts the rest."""
    problems = [
        Problem(str(folder / names[i]) if folder else names[i], "the picture must decode", reason, remedy)
        for i, reason in sorted(failures.items())[:_SHOWN]
    ]
    if len(failures) > _SHOWN:
        problems.append(Problem("pictures", f"{len(failures) - _SHOWN} more cannot be decoded"))
    return problems


def find_undecodable(encoded: EncodedPictures, progress: Progress | None = None) -> dict[int, str]:
    """Return picture number -> reason for each picture that does not decode to its end. Store nothing."""
    failures, count = {}, len(encoded.names)
    with ThreadPoolExecutor(available_cores()) as pool:
        for chunk in _chunks(range(count)):
            reasons = pool.map(lambda i: decoding_error(partial(encoded.open, i)), chunk)
            failures.update({i: reason for i, reason in zip(chunk, reasons, strict=True) if reason})
            if progress:
                progress(chunk[-1] + 1, count)
    return failures


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _header_size(encoded: EncodedPictures, i: int, shorter: int | None) -> tuple[int, int]:
    """Return (height, width) after orientation and resizing, from the header; (0, 0) without one."""
    try:
        with encoded.open(i) as image:
            width, height = image.size
            if image.format == "TIFF":  # some Pillow versions orient the size when they open the file
                width, height = image.tag_v2[256], image.tag_v2[257]  # type: ignore[attr-defined]
            if image.getexif().get(0x0112, 1) in (5, 6, 7, 8):  # EXIF orientations that swap the sides
                width, height = height, width
    except Exception:  # decoders raise many kinds for broken files
        return 0, 0
    width, height = _resized(width, height, shorter)
    return height, width


def _sync(pixels: NDArray[np.uint8]) -> None:
    """Write the mapped pixels to disk and release their pages."""
    if not isinstance(pixels, np.memmap) or pixels.filename is None:
        return
    with open(pixels.filename, "rb") as file:
        os.fsync(file.fileno())
    mapped = getattr(pixels, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        # Otherwise the process appears to grow by the size of the data; the page cache keeps the pages.
        mapped.madvise(mmap.MADV_DONTNEED)


def _chunks(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[start : start + _CHUNK] for start in range(0, len(numbers), _CHUNK))
