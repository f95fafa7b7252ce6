"""`tune-dml sync`: compare MLflow with the ledger, update it, and compare again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tune_dml.cli.options import Json, SweepArgument, location_flags, verb
from tune_dml.cli.screen import Lines, show
from tune_dml.planning.request import Session
from tune_dml.text import counted

if TYPE_CHECKING:
    from tune_dml.record.results import Results
    from tune_dml.tracking import Reconciliation

ORDER = 88
_MAX_LINES = 10  # differences on the screen; --json prints all


@verb
def sync(
    sweep_name: SweepArgument,
    *,
    storage: Path,
    tracking_uri: str | None,
    experiment: str | None,
    as_json: Json = False,
) -> None:
    """Compare MLflow with a sweep's ledger; write missing values, compare again, and exit with 3 if they differ."""
    from tune_dml import operations
    from tune_dml.record.results import load_results

    reconciliation = operations.sync(sweep_name, Session(storage, tracking_uri=tracking_uri, experiment=experiment))
    locations = location_flags(storage, tracking_uri, experiment)
    show(_SyncView(load_results(storage, sweep_name), reconciliation, locations), as_json)
    raise typer.Exit(0 if reconciliation.is_equal else 3)


@dataclass(frozen=True)
class _SyncView:
    """A sweep compared with MLflow."""

    results: Results
    reconciliation: Reconciliation
    locations: dict[str, str | None]
    """Location flags of this command, for the commands that the output suggests."""

    def data(self) -> dict[str, object]:
        return {"sweep": self.results.name, "equal": self.reconciliation.is_equal, **asdict(self.reconciliation)}

    def text(self) -> Lines:
        from tune_dml.record.origin.commands import command

        reconciliation, counts, name = self.reconciliation, self.reconciliation.counts, self.results.name
        if reconciliation.error:
            yield f"{name}: MLflow is not up to date ({reconciliation.error}); the ledger keeps everything."
            yield f"  next: {command(self.results, 'sync', options=self.locations)}"
            return
        yield from (f"differed: {line}" for line in reconciliation.before[:_MAX_LINES])
        if len(reconciliation.before) > _MAX_LINES:
            yield f"... and {len(reconciliation.before) - _MAX_LINES} more (--json prints all)"
        yield from (f"still differs: {line}" for line in reconciliation.after[:_MAX_LINES])
        compared = f"{counts.runs} runs, {counts.metrics} metrics and {counts.points} points compared"
        repaired = (
            f"; {counted(len(reconciliation.before), 'run')} brought up to date"
            if reconciliation.before and reconciliation.is_equal
            else ""
        )
        yield f"{name}: MLflow {'agrees with the ledger' if reconciliation.is_equal else 'differs'}: {compared}{repaired}."
        if reconciliation.after:
            yield "MLflow cannot change logged values: delete the run there; then sync logs it again."
