"""`tune-dml open`: show the test metrics of a sweep, and record who opened them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_dml.cli.options import Json, SweepArgument, Yes, confirm_or_abort, verb
from tune_dml.cli.screen import Lines, console_for, progress_bar, show
from tune_dml.planning.request import Session

if TYPE_CHECKING:
    from tune_dml.sweep import Sweep

ORDER = 85
EXAMPLES = """
tune-dml open rho1 --selection "our table 2"           # asks first
tune-dml open rho1 --yes
"""


@verb
def open(
    sweep_name: SweepArgument,
    *,
    selection: Annotated[str, typer.Option(metavar="TEXT", help="Purpose of the selection; recorded.")] = "",
    yes: Yes = False,
    storage: Path,
    tracking_uri: str | None,
    experiment: str | None,
    as_json: Json = False,
) -> None:
    """Open the test metrics of a sweep and write them to MLflow; asks first, and records user, time and selected cell."""
    from tune_dml.operations import open_test
    from tune_dml.record.state import load_state

    if not load_state(storage.absolute(), sweep_name).opened:
        confirm_or_abort(f"Open the test metrics of {sweep_name}? This is recorded and cannot be undone.", yes)
    session = Session(storage, tracking_uri=tracking_uri, experiment=experiment)
    with progress_bar(console_for(as_json), "testing heads") as progress:
        opened = open_test(sweep_name, session, selection=selection, progress=progress)
    show(_OpeningView(opened), as_json)


@dataclass(frozen=True)
class _OpeningView:
    """A sweep whose test metrics are open."""

    sweep: Sweep

    @property
    def was_open(self) -> bool:
        """Whether the metrics were open before; MLflow is not called then."""
        return self.sweep.tracking is None

    def data(self) -> dict[str, object]:
        opening, tracking = self.sweep.results.opening, self.sweep.tracking
        refusal = tracking.error if tracking else None
        return {"sweep": self.sweep.name, "already": self.was_open, **vars(opening), "mlflow_error": refusal}

    def text(self) -> Lines:
        from tune_dml.record.origin.commands import command

        name, opening, tracking = self.sweep.name, self.sweep.results.opening, self.sweep.tracking
        if self.was_open:
            yield f"{name}: the test metrics are open already, {opening}. Nothing has changed."
            return
        yield f"{name}: the test metrics were {opening}. Tables, reports and MLflow show them from now on."
        if tracking is not None and tracking.error:
            yield f"MLflow:  not up to date ({tracking.error}). Write them later: `{command(self.sweep.results, 'sync')}`"
        yield f"  next: {command(self.sweep.results, 'report')}"
