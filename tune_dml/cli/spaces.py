"""`tune-dml spaces`: the declared studies, with their knobs, citations and published numbers."""

from __future__ import annotations

from typing import Any

from tune_dml.cli.options import Json, verb
from tune_dml.cli.screen import Listing, show
from tune_dml.space import Grid, Knob, Space

ORDER = 10


@verb
def spaces(as_json: Json = False) -> None:
    """The search spaces: knob, grid, citation and published numbers."""
    from tune_dml import catalogue

    show(Listing("Search spaces", tuple(_row(space) for space in catalogue.spaces().values())), as_json)


def _row(space: Space) -> dict[str, Any]:
    return {
        "space": space.name,
        "question": space.question or space.title,
        "knobs": {knob.path: _domain(knob) for knob in space.knobs},
        "arms": [arm.name for arm in space.arms],
        "baseline": space.baseline_name or "",
        "published": [f"{item.paper} table {item.table}, {item.dataset}" for item in space.published],
        "citation": str(space.citation or ""),
    }


def _domain(knob: Knob) -> str:
    if isinstance(knob.domain, Grid):
        return "{" + ", ".join(map(str, knob.domain.values)) + "}"
    return f"[{knob.domain.low:g}, {knob.domain.high:g}] {knob.domain.scale}"
