"""`tune-dml methods`: list the losses and regularizers."""

from collections.abc import Mapping, Sequence
from typing import Any

from tune_dml.cli.options import Json, verb
from tune_dml.cli.screen import WIDTH, Lines, print_result
from tune_dml.text import one_line, shortened

ORDER = 20
EXAMPLES = """
tune-dml methods
tune-dml show triplet                                 # one method: formula, knobs, citation
"""


@verb
def methods(as_json: Json = False) -> None:
    """List the losses and regularizers, one per line; with --json their knobs, defaults and citations too."""
    from trainables.losses import LOSSES
    from trainables.regularizers import REGULARIZERS

    registries: dict[str, Mapping[str, type]] = {"loss": LOSSES, "regularizer": REGULARIZERS}
    rows = [_row(kind, name, cls) for kind, registry in registries.items() for name, cls in registry.items()]
    print_result(rows, _text(rows), as_json)


def _text(rows: Sequence[Mapping[str, Any]]) -> Lines:
    from rich.text import Text

    name_width = max(len(row["name"]) for row in rows) + 2
    for row in rows:
        start = f"{row['kind']:<12} {row['name']:<{name_width}}"
        yield Text(start + shortened(one_line(row["formula"]), WIDTH - len(start)))
    yield "Details: tune-dml show NAME"


def _row(kind: str, name: str, cls: type) -> dict[str, object]:
    from trainables.methods import parameters_of

    return {
        "kind": kind,
        "name": name,
        "formula": (cls.__doc__ or "").strip().partition("\n")[0],
        "knobs": {f"{kind}.{k.name}": "(required)" if k.required else k.default for k in parameters_of(cls)},
        "citation": getattr(cls, "citation", ""),
    }
