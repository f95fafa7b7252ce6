"""Font faces of the fontpkg-* packages and the characters they can draw."""

import sys
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from fontTools.ttLib import TTFont

from trainables.files import sha256_of

FAMILIES = (
    *("alegreya-sans", "caveat", "comfortaa", "cormorant-garamond", "fira-code", "ibm-plex-serif", "inter"),
    *("jetbrains-mono", "literata", "lobster", "lora", "merriweather", "montserrat", "noto-sans", "oswald"),
    *("pacifico", "playfair-display", "press-start-2p", "pt-serif", "roboto-slab", "rubik", "source-code-pro"),
    *("spectral", "vollkorn", "yanone-kaffeesatz"),
)
"""Unrelated families, because near-duplicates would make retrieval easy."""


@dataclass(frozen=True)
class Face:
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


def installed_faces() -> tuple[Face, ...]:
    """Return one face per installed family, in the order of `FAMILIES`."""
    return _faces_on(tuple(sys.path))


@cache
def _faces_on(path: tuple[str, ...]) -> tuple[Face, ...]:
    """Return the faces on an import path, whose metadata take milliseconds to read."""
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
