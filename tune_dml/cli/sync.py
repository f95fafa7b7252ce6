"""`tune-dml sync`: compare MLflow with the ledger, update it, and compare again."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from tune_dml.cli.options import Json, Stores, SweepArgument, location_flags, verb
from tune_dml.cli.screen import Lines, print_result
from tune_dml.text import counted

if TYPE_CHECKING:
    from tune_dml.record.results import Results
    from tune_dml.tracking import Reconciliation

ORDER = 88
_MAX_LINES = 10  # differences on the screen; --json prints all


@verb
def sync(sweep_name: SweepArgument, *, session: Stores, as_json: Json = False) -> None:
    """Compare MLflow with a sweep's ledger; write missing values, compare again, and exit with 3 if they differ."""
    from tune_dml import operations
    from tune_dml.record.results import load_results

    reconciliation = operations.sync(sweep_name, session)
    results = load_results(session.sweeps, sweep_name)
    data = {"sweep": results.name, "equal": reconciliation.is_equal, **asdict(reconciliation)}
    print_result(data, _text(results, reconciliation, location_flags(session)), as_json)
    raise typer.Exit(0 if reconciliation.is_equal else 3)


def _text(results: Results, reconciliation: Reconciliation, locations: dict[str, str | None]) -> Lines:
    from tune_dml.record.origin.commands import command

    name, counts, before, after = results.name, reconciliation.counts, reconciliation.before, reconciliation.after
    if reconciliation.error:
        yield f"{name}: MLflow is not up to date ({reconciliation.error}); the ledger keeps everything."
        yield f"  next: {command(results, 'sync', options=locations)}"
        return
    yield from (f"differed: {line}" for line in before[:_MAX_LINES])
    if len(before) > _MAX_LINES:
        yield f"... and {len(before) - _MAX_LINES} more (--json prints all)"
    yield from (f"still differs: {line}" for line in after[:_MAX_LINES])
    compared = f"{counts.runs} runs, {counts.metrics} metrics and {counts.points} points compared"
    is_equal = reconciliation.is_equal
    repaired = f"; {counted(len(before), 'run')} brought up to date" if before and is_equal else ""
    yield f"{name}: MLflow {'agrees with the ledger' if is_equal else 'differs'}: {compared}{repaired}."
    if after:
        yield "MLflow cannot change logged values: delete the run there; then sync logs it again."
