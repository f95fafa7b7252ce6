"""`tune-dml spaces`: list the search spaces, with their arms, knobs, citations and published numbers."""

from __future__ import annotations

from dataclasses import dataclass

from tune_dml.cli.options import Json, verb
from tune_dml.cli.screen import WIDTH, Lines, show
from tune_dml.space import Grid, Knob, Space
from tune_dml.text import shortened

ORDER = 10


@verb
def spaces(as_json: Json = False) -> None:
    """List the search spaces, one per line; with --json their arms, knobs, citations and published numbers too."""
    from tune_dml import catalogue

    show(_SpaceList(tuple(catalogue.spaces().values())), as_json)


@dataclass(frozen=True)
class _SpaceList:
    """All search spaces."""

    spaces: tuple[Space, ...]

    def data(self) -> list[dict[str, object]]:
        return [
            {
                "space": space.name,
                "question": space.question or space.title,
                "arms": [arm.name for arm in space.every_arm if arm.name],
                "knobs": {knob.path: _domain(knob) for knob in space.knobs},
                "baseline": space.baseline_name or "",
                "published": [f"{item.paper} table {item.table}, {item.dataset}" for item in space.published],
                "citation": str(space.citation or ""),
            }
            for space in self.spaces
        ]

    def text(self) -> Lines:
        from rich.text import Text

        name_width = max((len(space.name) for space in self.spaces), default=0) + 2
        for space in self.spaces:
            yield Text(f"{space.name:<{name_width}}{shortened(space.title, WIDTH - name_width)}")


def _domain(knob: Knob) -> str:
    if isinstance(knob.domain, Grid):
        return "{" + ", ".join(map(str, knob.domain.values)) + "}"
    return f"[{knob.domain.low:g}, {knob.domain.high:g}] {knob.domain.scale}"
