"""Characters drawn in many typefaces, without a download and within seconds."""

import hashlib
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated

import numpy as np
import PIL
from fontTools.ttLib import TTFont
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features
from pydantic import Field

from trainables.data.base import Contents, DataSet, Progress, digest_of
from trainables.data.formats import cache as disk
from trainables.errors import DataError, Problem, raise_if_any
from trainables.files import sha256_of

_REFERENCE_SIZE = 24  # pixels at which pictures are compared, so that the classes do not depend on `size`
# Measured on the 25 families: pairs that share one drawing (A, Greek and Cyrillic A) coincide in at least 0.42 of their
# common faces, all other pairs in at most 0.25.
_COINCIDE_DISTANCE = 0.02  # squared distance of two pictures over the larger squared norm
_COINCIDE_SHARE = 0.33
_FAMILIES = (
    *("alegreya-sans", "caveat", "comfortaa", "cormorant-garamond", "fira-code", "ibm-plex-serif", "inter"),
    *("jetbrains-mono", "literata", "lobster", "lora", "merriweather", "montserrat", "noto-sans", "oswald"),
    *("pacifico", "playfair-display", "press-start-2p", "pt-serif", "roboto-slab", "rubik", "source-code-pro"),
    *("spectral", "vollkorn", "yanone-kaffeesatz"),
)
"""Unrelated families, because near-duplicates would make retrieval easy."""


@dataclass(frozen=True)
class _Face:
    """The regular, upright style of one family."""

    family: str
    path: Path

    @cached_property
    def characters(self) -> frozenset[int]:
        """Return the code points that this face can draw."""
        with TTFont(self.path, lazy=True) as font:
            return frozenset(font.getBestCmap())

    @cached_property
    def digest(self) -> str:
        return sha256_of(self.path)


def _installed_faces() -> tuple[_Face, ...]:
    """Return one face per installed family, in the order of `_FAMILIES`."""
    return _faces_on(tuple(sys.path))


@cache
def _faces_on(path: tuple[str, ...]) -> tuple[_Face, ...]:
    """Return the faces on an import path, whose metadata take milliseconds to read."""
    faces = []
    for family in _FAMILIES:
        try:
            package = distribution(f"fontpkg-{family}")
        except PackageNotFoundError:
            continue
        files = [file for file in package.files or () if file.suffix in (".ttf", ".otf") and "Italic" not in file.name]
        regular = [file for file in files if "Regular" in file.name] or files  # a variable font has no such name
        paths = [Path(str(package.locate_file(file))) for file in sorted(regular)]
        faces += [_Face(family, path) for path in paths[:1] if path.exists()]
    return tuple(faces)


class Glyphs(DataSet):
    """Characters as classes, typefaces as views.

    Letters, digits and symbols that at least `faces` of 25 unrelated font families draw, white on black, one channel,
    at a common baseline and em size. A class has exactly `faces` pictures, from families that rotate with its code
    point. Characters with the same drawing (Latin, Greek and Cyrillic A) are one class. Font styles (serif, sans, mono,
    script) give each class several local centres.
    """

    name = "glyphs"
    citation = "tune_dml; typefaces of the fontpkg-* packages"
    licence = "OFL-1.1 (the typefaces)"
    source = "pip install 'tune-dml[demo]'"

    def __init__(
        self,
        *,
        cache_dir: Path,
        size: Annotated[int, Field(ge=16, le=256, description="height and width in pixels")] = 24,
        faces: Annotated[int, Field(ge=2, le=25, description="typefaces, and so pictures, per class")] = 20,
    ) -> None:
        super().__init__(cache_dir=cache_dir)
        self.size, self.faces = size, faces

    def check(self) -> list[Problem]:
        installed = len(_installed_faces())
        if installed >= self.faces:
            return []
        rule = f"glyphs with faces={self.faces} needs as many of the 25 font families installed"
        remedy = "Run `pip install 'tune-dml[demo]'`" + (f" or set faces={installed}." if installed > 1 else ".")
        return [Problem("data.faces", rule, f"{installed} families", remedy)]

    def digest(self) -> str:
        fonts = [(face.family, face.digest) for face in _installed_faces()]
        versions = (PIL.__version__, features.version("freetype2"))
        return digest_of(self.name, 1, self.size, self.faces, fonts, versions)

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        """Return half of the classes by a hash of their names, so that both halves mix all scripts."""
        order = sorted(range(len(class_names)), key=lambda c: hashlib.sha256(class_names[c].encode()).digest())
        return tuple(sorted(order[: len(order) // 2]))

    def write(self, directory: Path, progress: Progress | None) -> Contents:
        raise_if_any(self.check(), DataError)
        faces = _installed_faces()
        counts = Counter(point for face in faces for point in face.characters)
        # Letters, numbers, punctuation and symbols that enough faces can draw.
        common = (point for point, count in counts.items() if count >= self.faces)
        drawable = sorted(point for point in common if unicodedata.category(chr(point))[0] in "LNPS")
        points = _drop_duplicates(drawable, faces)
        chosen = [_choose_faces(faces, point, self.faces) for point in points]
        images = disk.create_images(directory, (len(points) * self.faces, self.size, self.size, 1))
        pens = {face: _Pen(face, self.size) for face in faces}
        for c, (point, views) in enumerate(zip(points, chosen, strict=True)):
            for v, face in enumerate(views):
                images[c * self.faces + v, :, :, 0] = pens[face].picture(point)
            if progress:
                progress((c + 1) * self.faces, len(images))
        labels = np.repeat(np.arange(len(points)), self.faces)
        names = tuple(f"U+{point:04X} {chr(point)}" for point in points)
        note = f"{len(drawable) - len(points)} characters that share a drawing with another one were left out"
        return Contents(labels, names, (note,))


class _Pen:
    """Draws the characters of one face at a common em size and baseline."""

    def __init__(self, face: _Face, size: int) -> None:
        self.size = size
        self.font = ImageFont.truetype(str(face.path), round(size * 14 / 24), layout_engine=ImageFont.Layout.BASIC)
        try:
            axes = self.font.get_variation_axes()
        except OSError:  # not a variable font
            return
        # Several families start at their lightest weight; 400 is "regular" for all of them.
        weight = (b"Weight", "Weight")
        self.font.set_variation_by_axes([400 if a["name"] in weight else a["default"] or 0 for a in axes])

    def picture(self, point: int) -> NDArray[np.uint8]:
        picture = Image.new("L", (self.size, self.size))
        baseline = (self.size / 2, self.size * 3 // 4)
        ImageDraw.Draw(picture).text(baseline, chr(point), fill=255, font=self.font, anchor="ms")
        return np.asarray(picture)


def _drop_duplicates(points: Sequence[int], faces: Sequence[_Face]) -> list[int]:
    """Drop points whose pictures coincide with an earlier one's in `_COINCIDE_SHARE` of their common faces.

    Exact: distances of uint8 pictures are integers below 2^53, so float64 products do not round.
    """
    common = np.zeros((len(points), len(points)), dtype=np.int64)
    equal = np.zeros_like(common)
    for face in faces:
        pen = _Pen(face, _REFERENCE_SIZE)
        blank = np.zeros((_REFERENCE_SIZE, _REFERENCE_SIZE), np.uint8)
        pictures = [pen.picture(point) if point in face.characters else blank for point in points]
        flat = np.stack(pictures).reshape(len(points), -1).astype(np.float64)
        dots = flat @ flat.T
        norms = dots.diagonal()
        is_common = (norms > 0)[:, None] & (norms > 0)[None]
        distances = norms[:, None] + norms[None] - 2 * dots
        common += is_common
        equal += is_common & (distances < _COINCIDE_DISTANCE * np.maximum(norms[:, None], norms[None]))
    is_duplicate = (equal >= _COINCIDE_SHARE * common) & (equal > 0)
    kept_rows: list[int] = []
    for i in range(len(points)):
        kept_rows += [] if is_duplicate[i, kept_rows].any() else [i]
    return [points[i] for i in kept_rows]


def _choose_faces(faces: Sequence[_Face], point: int, count: int) -> list[_Face]:
    """Return `count` faces that can draw `point`, starting at one that depends on the point."""
    capable = [face for face in faces if point in face.characters]
    start = point % len(capable)
    return (capable[start:] + capable[:start])[:count]
