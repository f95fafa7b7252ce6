"""`tune-dml spaces`: list the search spaces, with their arms, knobs, citations and published numbers."""

from tune_dml.cli.options import Json, verb
from tune_dml.cli.screen import WIDTH, print_result
from tune_dml.space import Grid, Knob, Space
from tune_dml.text import shortened

ORDER = 10


@verb
def spaces(as_json: Json = False) -> None:
    """List the search spaces, one per line; with --json their arms, knobs, citations and published numbers too."""
    from rich.text import Text

    from tune_dml import catalogue

    spaces = catalogue.spaces().values()
    name_width = max((len(space.name) for space in spaces), default=0) + 2
    lines = (Text(f"{space.name:<{name_width}}{shortened(space.title, WIDTH - name_width)}") for space in spaces)
    print_result([_data(space) for space in spaces], lines, as_json)


def _data(space: Space) -> dict[str, object]:
    from tune_dml import catalogue

    return {
        "space": space.name,
        "question": space.question or space.title,
        "arms": [arm.name for arm in space.every_arm if arm.name],
        "knobs": catalogue.tried_values(space, _domain),
        "baseline": space.baseline_name or "",
        "published": [f"{item.paper} table {item.table}, {item.dataset}" for item in space.published],
        "citation": str(space.citation or ""),
    }


def _domain(knob: Knob) -> str:
    if isinstance(knob.domain, Grid):
        return "{" + ", ".join(map(str, knob.domain.values)) + "}"
    return f"[{knob.domain.low:g}, {knob.domain.high:g}] {knob.domain.scale}"
