"""`tune-dml open`: the test metrics of a sweep, once and on record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tune_dml.cli.options import Json, SweepArgument, verb
from tune_dml.cli.screen import show
from tune_dml.planning.request import Session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tune_dml.sweep import Sweep

ORDER = 85
EXAMPLES = """
tune-dml open rho1 --selection "our table 2"
"""


@verb
def open(
    sweep_name: SweepArgument,
    *,
    selection: Annotated[str, typer.Option(metavar="TEXT", help="What you selected for; recorded.")] = "",
    storage: Path,
    tracking_uri: str | None,
    experiment: str | None,
    as_json: Json = False,
) -> None:
    """Open the test metrics, once: who, when and the cell that validation selects are recorded; MLflow gets the metrics."""
    from tune_dml.operations import open_test

    session = Session(storage, tracking_uri=tracking_uri, experiment=experiment)
    show(_OpenedSweep(open_test(sweep_name, session, selection=selection)), as_json)


@dataclass(frozen=True)
class _OpenedSweep:
    """A sweep whose test metrics are open."""

    sweep: Sweep

    @property
    def already(self) -> bool:
        """They were before: MLflow was asked for nothing."""
        return self.sweep.tracking is None

    def data(self) -> dict[str, Any]:
        """Everything as JSON."""
        opening, tracking = self.sweep.results.opening, self.sweep.tracking
        refusal = tracking.error if tracking else None
        return {"sweep": self.sweep.name, "already": self.already, **vars(opening), "mlflow_error": refusal}

    def text(self) -> Iterable[RenderableType]:
        """One line where they were open; else what was opened, and where to look."""
        from tune_dml.record.commands import command

        name, opening, tracking = self.sweep.name, self.sweep.results.opening, self.sweep.tracking
        if self.already:
            yield f"{name}: the test metrics have been open before, {opening}. Nothing has changed."
            return
        yield f"{name}: the test metrics were {opening}. Tables, reports and MLflow have them from now on."
        if tracking is not None and tracking.error:
            yield f"MLflow:  away ({tracking.error}): `{command(self.sweep.results, 'sync')}` brings them over"
        yield f"  next: {command(self.sweep.results, 'report')}"
