"""`tune-dml methods`: what can be trained, with knobs, defaults and citations."""

from __future__ import annotations

from typing import Any

from tune_dml.cli.options import Json, verb
from tune_dml.cli.screen import Listing, show

ORDER = 20


@verb
def methods(as_json: Json = False) -> None:
    """The losses and regularizers with their knobs, defaults and citations."""
    from trainables.losses import LOSSES
    from trainables.regularizers import REGULARIZERS

    losses = [_row("loss", name, cls) for name, cls in LOSSES.items()]
    regularizers = [_row("regularizer", name, cls) for name, cls in REGULARIZERS.items()]
    show(Listing("Methods", (*losses, *regularizers)), as_json)


def _row(kind: str, name: str, cls: type) -> dict[str, Any]:
    from trainables.methods import parameters_of

    return {
        "kind": kind,
        "name": name,
        "formula": (cls.__doc__ or "").strip().partition("\n")[0],
        "knobs": {f"{kind}.{k.name}": "(required)" if k.required else k.default for k in parameters_of(cls)},
        "citation": getattr(cls, "citation", ""),
    }
