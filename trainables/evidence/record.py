"""Define a trial's evidence on disk, of bounded size: norms of embeddings, and pictures with their nearest neighbours.

    evidence/evidence.json    histogram of norms, and the content of the sheet as text        a few kB
    evidence/sheet.jpg        a few pictures with their nearest neighbours                   at most 60 kB (see `sheet.py`)
    evidence/maps.jpg         their most active feature maps, if configured                  at most 60 kB

They show the final evaluation on the validation pictures. These are test pictures only under `paper_test_selection`;
sealed data are never shown. No verdict needs evidence, so missing or damaged files are not an error.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, TypeAdapter

from trainables.context import EVIDENCE_FILES

if TYPE_CHECKING:
    from trainables.data.base import Pictures


@dataclass(frozen=True)
class Histogram:
    """Counts of values in equally wide bins from `low` to `high`; the last bin includes `high`."""

    low: float
    high: float
    counts: tuple[int, ...]
    mean: float
    variance: float  # the biased variance


@dataclass(frozen=True)
class Snapshot:
    """The watched training pictures at one step; see `watched.py`."""

    step: int
    norms: tuple[float, ...]  # norms of the raw embeddings of the followed pictures
    turns: Histogram | None
    """Turns of the directions of all watched pictures since the last snapshot; None at the first."""


@dataclass(frozen=True)
class WatchedPictures:
    """Snapshots of the watched training pictures during a trial."""

    pictures: tuple[int, ...]  # indices in the data set of the followed pictures, whose norms are stored
    snapshots: Annotated[tuple[Snapshot, ...], Field(alias="looks")]


@dataclass(frozen=True)
class Tile:
    """One picture of a sheet."""

    picture: int  # index in the data set
    name: str  # name of the class
    right: bool | None = None  # whether the network's decision on the picture is right; None for a query
    similarity: float | None = None  # cosine to the query, or to the other picture of a pair


@dataclass(frozen=True)
class Sheet:
    """Rows of tiles; a column of None is a gap."""

    titles: tuple[tuple[int, str], ...]  # (column, title of this column and those to its right)
    rows: tuple[tuple[Tile | None, ...], ...]
    pictures: Pictures | None = field(default=None, repr=False, compare=False)  # source of the drawing; not stored


_TITLES = TypeAdapter(tuple[tuple[int, str], ...])
_ROWS = TypeAdapter(tuple[tuple[Tile | None, ...], ...])


@dataclass(frozen=True)
class Evidence:
    """Evidence of one evaluation."""

    part: str  # description of the pictures shown
    norms: Histogram  # histogram of the norms of the raw embeddings
    sheet: Sheet | None = None
    step: int = 0
    clustering: str = ""  # program, version and settings of the clusters behind NMI and F1; empty without clustering
    watched: WatchedPictures | None = None  # snapshots up to the evaluation; None if the trial was too short for one
    files: tuple[Path, ...] = field(default=(), compare=False)
    """Stored files: evidence.json, then sheet.jpg and maps.jpg if drawn; empty before storing."""

    @property
    def rows(self) -> tuple[tuple[Tile | None, ...], ...]:
        """Rows of the sheet; empty without a sheet."""
        return self.sheet.rows if self.sheet else ()

    @property
    def drawn(self) -> Path | None:
        """File of the sheet."""
        return next((file for file in self.files if file.name == EVIDENCE_FILES[1]), None)

    @property
    def maps(self) -> Path | None:
        """File of the feature maps of the sheet's queries."""
        return next((file for file in self.files if file.name == EVIDENCE_FILES[2]), None)

    def text(self) -> str:
        """Return the evidence as JSON."""
        sheet = self.sheet and {"titles": self.sheet.titles, "rows": _ROWS.dump_python(self.sheet.rows)}
        body = {"version": 1, "step": self.step, "part": self.part, "norms": asdict(self.norms), "sheet": sheet}
        body |= {"clustering": self.clustering} if self.clustering else {}
        if self.watched:
            body["watched"] = TypeAdapter(WatchedPictures).dump_python(self.watched, by_alias=True)
        return json.dumps(body, separators=(",", ":")) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the evidence in a folder; None if it is missing or damaged."""
        words, picture, maps = (folder / name for name in EVIDENCE_FILES)
        try:
            body = json.loads(words.read_text())
            raw = body["sheet"] if picture.exists() else None
            sheet = raw and Sheet(_TITLES.validate_python(raw["titles"]), _ROWS.validate_python(raw["rows"]))
            files = (words, *([picture] if sheet else []), *([maps] if sheet and maps.exists() else []))
            clustering = str(body.get("clustering", ""))
            watched = TypeAdapter(WatchedPictures | None).validate_python(body.get("watched"))
            norms = TypeAdapter(Histogram).validate_python(body["norms"])
            if not norms.low < norms.high or not sum(norms.counts) > 0:
                return None
            return cls(str(body["part"]), norms, sheet, int(body["step"]), clustering, watched, files)
        except (OSError, ValueError, KeyError, TypeError):
            return None
