"""`tune-dml sync`: MLflow is compared with the ledger, brought up to date, and compared again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tune_dml.cli.options import Json, SweepArgument, verb
from tune_dml.cli.screen import show
from tune_dml.planning.request import Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tune_dml.tracking import Reconciled

ORDER = 88
_SHOWN = 10  # differences on the screen; --json has all


@verb
def sync(
    sweep_name: SweepArgument,
    *,
    storage: Path,
    tracking_uri: str | None,
    experiment: str | None,
    as_json: Json = False,
) -> None:
    """Compare MLflow with the sweep's ledger, bring over what is missing, compare again; exit 3 unless they are equal."""
    from tune_dml import api

    found = api.sync(sweep_name, Session(storage, tracking_uri=tracking_uri, experiment=experiment))
    show(_Synced(sweep_name, found), as_json)
    raise typer.Exit(0 if found.equal else 3)


@dataclass(frozen=True)
class _Synced:
    """A sweep and what MLflow has of it."""

    sweep: str
    found: Reconciled

    def data(self) -> dict[str, Any]:
        """Everything as JSON."""
        return {"sweep": self.sweep, "equal": self.found.equal, **asdict(self.found)}

    def text(self) -> Iterable[RenderableType]:
        """What was missing, and whether it is there now."""
        found, counts = self.found, self.found.counts
        if found.error:
            yield f"{self.sweep}: MLflow is away ({found.error}); the ledger keeps everything."
            yield f"  next: tune-dml sync {self.sweep}"
            return
        yield from (f"was missing: {line}" for line in found.before[:_SHOWN])
        if len(found.before) > _SHOWN:
            yield f"... and {len(found.before) - _SHOWN} more (--json has all)"
        yield from (f"still: {line}" for line in found.after[:_SHOWN])
        compared = f"{counts.runs} runs, {counts.metrics} metrics and {counts.points} points compared"
        repaired = f"; {len(found.before)} runs were brought up to date" if found.before and found.equal else ""
        yield f"{self.sweep}: MLflow {'shows what the ledger has' if found.equal else 'differs'}: {compared}{repaired}."
