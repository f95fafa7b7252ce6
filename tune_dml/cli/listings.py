"""`tune-dml spaces | datasets | methods`: what is there, with citations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tune_dml.cli.view import table
from tune_dml.space import Grid, Knob, Space

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Listing:
    """Rows of one kind of thing."""

    title: str
    rows: tuple[dict[str, Any], ...]

    def data(self) -> list[dict[str, Any]]:
        """The rows."""
        return list(self.rows)

    def text(self) -> Iterable[RenderableType]:
        """One table."""
        columns = list(self.rows[0]) if self.rows else []
        yield table(self.title, columns, ([_plain(row[name]) for name in columns] for row in self.rows))


@dataclass(frozen=True)
class DataSets(Listing):
    """Data sets, whose addresses want whole lines: they are there to be copied."""

    def text(self) -> Iterable[RenderableType]:
        """A paragraph each."""
        for row in self.rows:
            expected = ", ".join(f"{count} {key.replace('_', ' ')}" for key, count in row["expected"].items())
            lines = [
                f"{row['data set']}: {row['citation']}",
                f"  Expected: {expected}" if expected else "",
                f"  Licence:  {row['licence']}",
                f"  Get it:   {row['source']}",
                f"  Dead or unreliable: {row['dead']}" if row["dead"] else "",
            ]
            yield "\n".join(filter(None, lines)) + "\n"
        yield "Your copy: tune-dml datasets verify NAME --root DIR; then tune-dml datasets prepare NAME --root DIR."


def spaces() -> Listing:
    """The search spaces."""
    from tune_dml.catalogue import spaces as known

    return Listing("Search spaces", tuple(_space_row(space) for space in known().values()))


def _space_row(space: Space) -> dict[str, Any]:
    return {
        "space": space.name,
        "question": space.question or space.title,
        "knobs": {knob.path: _domain(knob) for knob in space.knobs},
        "baseline": space.baseline.label if space.baseline else "",
        "published": [f"{item.paper} table {item.table}, {item.dataset}" for item in space.published],
        "citation": str(space.citation or ""),
    }


def _domain(knob: Knob) -> str:
    if isinstance(knob.domain, Grid):
        return "{" + ", ".join(map(str, knob.domain.values)) + "}"
    return f"[{knob.domain.low:g}, {knob.domain.high:g}] {knob.domain.scale}"


def datasets() -> Listing:
    """The data sets."""
    from trainables.data import DATASETS

    rows = (
        {
            "data set": name,
            "expected": dict(cls.expected),
            "licence": cls.licence,
            "source": cls.source,
            "dead": cls.dead,
            "citation": cls.citation,
        }
        for name, cls in DATASETS.items()
    )
    return DataSets("Data sets", tuple(rows))


def methods() -> Listing:
    """Losses and regularizers with their knobs."""
    from trainables.losses import LOSSES
    from trainables.methods import parameters_of
    from trainables.regularizers import REGULARIZERS

    rows = []
    for kind, registry in (("loss", LOSSES), ("regularizer", REGULARIZERS)):
        for name, cls in registry.items():
            knobs = {
                f"{kind}.{knob.name}": "(required)" if knob.required else knob.default for knob in parameters_of(cls)
            }
            summary = (cls.__doc__ or "").strip().partition("\n")[0]
            citation = getattr(cls, "citation", "")
            rows.append({"kind": kind, "name": name, "formula": summary, "knobs": knobs, "citation": citation})
    return Listing("Methods", tuple(rows))


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key} = {item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return str(value)
