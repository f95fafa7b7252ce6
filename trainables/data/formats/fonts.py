"""Font faces installed as fontpkg-* packages, and which characters each can draw."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np

FAMILIES = (
    "alegreya-sans",
    "caveat",
    "comfortaa",
    "cormorant-garamond",
    "fira-code",
    "ibm-plex-serif",
    "inter",
    "jetbrains-mono",
    "literata",
    "lobster",
    "lora",
    "merriweather",
    "montserrat",
    "noto-sans",
    "oswald",
    "pacifico",
    "playfair-display",
    "press-start-2p",
    "pt-serif",
    "roboto-slab",
    "rubik",
    "source-code-pro",
    "spectral",
    "vollkorn",
    "yanone-kaffeesatz",
)
"""Unrelated families (near-duplicates would make retrieval easy): serif, sans, mono, script and pixel faces."""


@dataclass(frozen=True)
class Face:
    """The regular, upright style of one family."""

    family: str
    path: Path

    @cached_property
    def characters(self) -> frozenset[int]:
        """The code points this face can draw."""
        return _code_points(self.path.read_bytes())


def installed_faces() -> tuple[Face, ...]:
    """One face per installed family of `FAMILIES`, in that order."""
    faces = []
    for family in FAMILIES:
        try:
            package = distribution(f"fontpkg-{family}")
        except PackageNotFoundError:
            continue
        files = [file for file in package.files or () if file.suffix in (".ttf", ".otf") and "Italic" not in file.name]
        regular = [file for file in files if "Regular" in file.name] or files  # a variable font has no such name
        paths = [Path(str(package.locate_file(file))) for file in sorted(regular)]
        faces += [Face(family, path) for path in paths[:1] if path.exists()]
    return tuple(faces)


def _code_points(font: bytes) -> frozenset[int]:
    """Code points of the `cmap` table (OpenType 1.9): format 12 where present, else format 4, for Unicode encodings."""
    tables = struct.unpack_from(">H", font, 4)[0]
    records = (struct.unpack_from(">4sLLL", font, 12 + 16 * i) for i in range(tables))
    start = next(offset for tag, _, offset, _ in records if tag == b"cmap")
    count = struct.unpack_from(">H", font, start + 2)[0]
    found: dict[int, int] = {}
    for i in range(count):
        platform, encoding, offset = struct.unpack_from(">HHL", font, start + 4 + 8 * i)
        if platform == 0 or (platform == 3 and encoding in (1, 10)):
            found[struct.unpack_from(">H", font, start + offset)[0]] = start + offset
    if 12 in found:
        return _format_12(font, found[12])
    return _format_4(font, found[4]) if 4 in found else frozenset()


def _format_12(font: bytes, at: int) -> frozenset[int]:
    groups = struct.unpack_from(">L", font, at + 12)[0]
    points: set[int] = set()
    for i in range(groups):
        first, last, glyph = struct.unpack_from(">LLL", font, at + 16 + 12 * i)
        points.update(range(first + (glyph == 0), last + 1))  # glyph 0 is "missing"
    return frozenset(points)


def _format_4(font: bytes, at: int) -> frozenset[int]:
    segments = struct.unpack_from(">H", font, at + 6)[0] // 2

    def words(skip: int, kind: str = ">u2") -> list[int]:
        return [int(word) for word in np.frombuffer(font, kind, segments, at + 14 + skip)]

    ends, starts = words(0), words(2 * segments + 2)
    deltas, offsets = words(4 * segments + 2, ">i2"), words(6 * segments + 2)
    points: set[int] = set()
    for i, (first, last, delta, offset) in enumerate(zip(starts, ends, deltas, offsets, strict=True)):
        for point in range(first, min(last, 0xFFFE) + 1):
            glyph = point
            if offset:  # an offset in bytes from its own place in the table
                place = at + 14 + 6 * segments + 2 + 2 * i + offset + 2 * (point - first)
                glyph = struct.unpack_from(">H", font, place)[0]
                if glyph == 0:
                    continue
            if (glyph + delta) % 0x10000:
                points.add(point)
    return frozenset(points)
