"""What a trial left to look at, read back. Its files are written by `trainables.evidence.record`, which says what they mean.

Nothing here is needed for a verdict: files that are missing or damaged are no evidence, and no error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainables.context import EVIDENCE_FILES


@dataclass(frozen=True)
class Norms:
    """A histogram of embeddings' norms in equally wide bins from `low` to `high`."""

    low: float
    high: float
    counts: tuple[int, ...]
    mean: float
    variance: float


@dataclass(frozen=True)
class Shown:
    """One picture of a sheet."""

    picture: int
    name: str
    right: bool | None
    """None for a picture that is only asked about."""


@dataclass(frozen=True)
class Evidence:
    """Of the evaluation that counts."""

    step: int
    part: str
    """The pictures it shows, in words."""
    norms: Norms
    rows: tuple[tuple[Shown | None, ...], ...]
    """What the sheet shows; empty where there is none."""
    sheet: Path | None
    """The sheet itself, a JPEG."""
    files: tuple[Path, ...]
    """Everything that was left."""


def read_evidence(folder: Path) -> Evidence | None:
    """The evidence in a folder; None where it is missing or damaged."""
    words, picture = (folder / name for name in EVIDENCE_FILES)
    try:
        body = json.loads(words.read_text())
        drawn = body["sheet"] is not None and picture.exists()
        rows = tuple(tuple(_shown(tile) for tile in row) for row in body["sheet"]["rows"]) if drawn else ()
        files = (words, picture) if drawn else (words,)
        return Evidence(
            int(body["step"]),
            str(body["part"]),
            _norms(body["norms"]),
            rows,
            picture if drawn else None,
            files,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _norms(raw: Mapping[str, Any]) -> Norms:
    low, high, mean, variance = (float(raw[name]) for name in ("low", "high", "mean", "variance"))
    counts = tuple(int(count) for count in raw["counts"])
    if not low < high or not sum(counts) > 0:
        raise ValueError("not a histogram")
    return Norms(low, high, counts, mean, variance)


def _shown(raw: Mapping[str, Any] | None) -> Shown | None:
    if raw is None:
        return None
    right = raw["right"]
    return Shown(int(raw["picture"]), str(raw["name"]), None if right is None else bool(right))
