"""`tune-dml sync`: compare MLflow with the ledger, update it, and compare again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tune_dml.cli.options import Json, SweepArgument, places_given, verb
from tune_dml.cli.screen import Lines, show
from tune_dml.planning.request import Session
from tune_dml.text import counted

if TYPE_CHECKING:
    from tune_dml.record.results import Results
    from tune_dml.tracking import Reconciliation

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
    """Compare MLflow with a sweep's ledger; write what is missing, compare again, and exit with 3 unless they are equal."""
    from tune_dml import operations
    from tune_dml.record.results import load_results

    reconciliation = operations.sync(sweep_name, Session(storage, tracking_uri=tracking_uri, experiment=experiment))
    places = places_given(storage, tracking_uri, experiment)
    show(_SyncedSweep(load_results(storage, sweep_name), reconciliation, places), as_json)
    raise typer.Exit(0 if reconciliation.is_equal else 3)


@dataclass(frozen=True)
class _SyncedSweep:
    """A sweep compared with MLflow."""

    results: Results
    reconciliation: Reconciliation
    places: dict[str, str | None]
    """Location flags of this command, for the commands that it advises."""

    def data(self) -> dict[str, object]:
        return {"sweep": self.results.name, "equal": self.reconciliation.is_equal, **asdict(self.reconciliation)}

    def text(self) -> Lines:
        from tune_dml.record.origin.commands import command

        reconciliation, counts, name = self.reconciliation, self.reconciliation.counts, self.results.name
        if reconciliation.error:
            yield f"{name}: MLflow is not up to date ({reconciliation.error}); the ledger keeps everything."
            yield f"  next: {command(self.results, 'sync', options=self.places)}"
            return
        yield from (f"differed: {line}" for line in reconciliation.before[:_SHOWN])
        if len(reconciliation.before) > _SHOWN:
            yield f"... and {len(reconciliation.before) - _SHOWN} more (--json has all)"
        yield from (f"still: {line}" for line in reconciliation.after[:_SHOWN])
        compared = f"{counts.runs} runs, {counts.metrics} metrics and {counts.points} points compared"
        repaired = (
            f"; {counted(len(reconciliation.before), 'run')} brought up to date"
            if reconciliation.before and reconciliation.is_equal
            else ""
        )
        yield f"{name}: MLflow {'shows what the ledger has' if reconciliation.is_equal else 'differs'}: {compared}{repaired}."
        if reconciliation.after:
            yield "MLflow cannot change logged values: delete the run there, and sync logs it again."
