"""What a trial leaves to look at, as it is kept: how long its embeddings are, and what they find. Small and bounded.

    evidence/evidence.json    the histogram of norms, and in words what the sheet shows      a few kB
    evidence/sheet.jpg        a few pictures and what the network holds for their nearest    at most 60 kB (see `sheet.py`)
    evidence/maps.jpg         their most active feature maps, where asked for                at most 60 kB

Both show the evaluation that counts, on the pictures that validate: test pictures only where `paper_test_selection` makes them
validate, and never sealed data. `from_embeddings.py` has the figures. No verdict needs them: files that are missing or damaged
are no evidence, and no error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import TypeAdapter

from trainables.context import EVIDENCE_FILES

if TYPE_CHECKING:
    from trainables.data.base import Pictures


@dataclass(frozen=True)
class Histogram:
    """How many values lie in each of equally wide bins from `low` to `high`; the last bin holds `high` too."""

    low: float
    high: float
    counts: tuple[int, ...]
    mean: float
    variance: float
    """Biased."""


@dataclass(frozen=True)
class Look:
    """One look at the watched training pictures; see `watched.py`."""

    step: int
    norms: tuple[float, ...]
    """Of the raw embeddings of those that are followed."""
    turns: Histogram | None
    """How far the directions of all of them have turned since the look before; None at the first."""


@dataclass(frozen=True)
class WatchedPictures:
    """What became of the same training pictures while the trial ran."""

    pictures: tuple[int, ...]
    """Numbers in the data set of those that are followed."""
    looks: tuple[Look, ...]


@dataclass(frozen=True)
class Tile:
    """One picture of a sheet."""

    picture: int
    """Its number in the data set."""
    name: str
    """Its class."""
    right: bool | None = None
    """Whether it belongs where the network puts it; None for a picture that is only asked about."""
    similarity: float | None = None
    """Cosine to the picture it is compared with."""


@dataclass(frozen=True)
class Sheet:
    """Rows of tiles; a column of None is a gap."""

    titles: tuple[tuple[int, str], ...]
    """(column, what stands in it and to the right)."""
    rows: tuple[tuple[Tile | None, ...], ...]
    pictures: Pictures | None = field(default=None, repr=False, compare=False)
    """What it is drawn from; not kept."""


@dataclass(frozen=True)
class Evidence:
    """Of one evaluation."""

    part: str
    """The pictures it shows, in words."""
    norms: Histogram
    """Of the norms of the raw embeddings."""
    sheet: Sheet | None = None
    step: int = 0
    clustering: str = ""
    """The program that made the clusters behind NMI and F1, its version and settings; empty where none did."""
    watched: WatchedPictures | None = None
    """Up to the evaluation; None in trials that were too short to be looked at."""
    files: tuple[Path, ...] = field(default=(), compare=False)
    """Where it is kept: evidence.json, then sheet.jpg and maps.jpg where they were drawn; empty before it is."""

    @property
    def rows(self) -> tuple[tuple[Tile | None, ...], ...]:
        """What the sheet shows; empty where there is none."""
        return self.sheet.rows if self.sheet else ()

    @property
    def drawn(self) -> Path | None:
        """The sheet as a JPEG."""
        return next((file for file in self.files if file.name == EVIDENCE_FILES[1]), None)

    @property
    def maps(self) -> Path | None:
        """The feature maps of the sheet's queries as a JPEG."""
        return next((file for file in self.files if file.name == EVIDENCE_FILES[2]), None)

    def text(self) -> str:
        """As JSON."""
        sheet = None
        if self.sheet is not None:
            rows = [[tile and asdict(tile) for tile in row] for row in self.sheet.rows]
            sheet = {"titles": self.sheet.titles, "rows": rows}
        body: dict[str, Any] = {"version": 1, "step": self.step, "part": self.part, "norms": asdict(self.norms)}
        body["sheet"] = sheet
        if self.clustering:
            body["clustering"] = self.clustering
        if self.watched:
            body["watched"] = asdict(self.watched)
        return json.dumps(body, separators=(",", ":")) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The evidence kept in a folder; None where it is missing or damaged."""
        words, picture, maps = (folder / name for name in EVIDENCE_FILES)
        try:
            body = json.loads(words.read_text())
            sheet = _sheet(body["sheet"]) if body["sheet"] is not None and picture.exists() else None
            files = (words, *([picture] if sheet else []), *([maps] if sheet and maps.exists() else []))
            clustering = str(body.get("clustering", ""))
            watched = TypeAdapter(WatchedPictures | None).validate_python(body.get("watched"))
            norms = _histogram(body["norms"])
            return cls(str(body["part"]), norms, sheet, int(body["step"]), clustering, watched, files)
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _histogram(raw: object) -> Histogram:
    norms = TypeAdapter(Histogram).validate_python(raw)
    if not norms.low < norms.high or not sum(norms.counts) > 0:
        raise ValueError("not a histogram")
    return norms


def _sheet(raw: Mapping[str, Any]) -> Sheet:
    titles = TypeAdapter(tuple[tuple[int, str], ...]).validate_python(raw["titles"])
    return Sheet(titles, TypeAdapter(tuple[tuple[Tile | None, ...], ...]).validate_python(raw["rows"]))
