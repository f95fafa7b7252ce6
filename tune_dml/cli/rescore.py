"""`tune-dml rescore`: compute further metrics of trials that have stored their embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tune_dml.cli.options import Json, Stores, SweepArgument, location_flags, verb
from tune_dml.cli.screen import Lines, print_result, table

if TYPE_CHECKING:
    from tune_dml.record.held_out.rescore import RescoredSweep
    from tune_dml.record.results import Results

ORDER = 87


@verb
def rescore(
    sweep_name: SweepArgument,
    *,
    metric: Annotated[list[str], typer.Option("--metric", metavar="NAME", help="Such as recall_at_10; repeatable.")],
    session: Stores,
    as_json: Json = False,
) -> None:
    """Compute further metrics from stored embeddings; nothing is trained, and test metrics stay sealed.

    The sweep must have run with `--set evaluation.keep=embeddings`.
    """
    from tune_dml.operations import rescore as compute
    from tune_dml.record.results import load_results

    rescored, refusal = compute(sweep_name, session, metrics=metric)
    results = load_results(session.sweeps, sweep_name)
    trials, without = [vars(trial) for trial in rescored.trials], rescored.without_embeddings
    data = {"sweep": results.name, "trials": trials, "without": without, "mlflow_error": refusal}
    print_result(data, _text(results, rescored, refusal, location_flags(session)), as_json)


def _text(results: Results, rescored: RescoredSweep, refusal: str | None, locations: dict[str, str | None]) -> Lines:
    from tune_dml.record.origin.commands import command

    names = list(rescored.trials[0].metrics)
    rows = ((t.label, t.seed, *(f"{t.metrics[name]:.2f}" for name in names)) for t in rescored.trials)
    yield table("", ("cell", "seed", *names), rows, right=("seed", *names))
    if rescored.without_embeddings:
        yield f"{rescored.without_embeddings} finished trials stored no embeddings and are left out."
    difference = max(trial.rounding for trial in rescored.trials)
    yield f"Computed from half-precision embeddings: MAP@R differs by at most {difference:.2g} points."
    yield "The test metrics are sealed with the others; they are shown if the sweep has been opened."
    if refusal:
        sync_command = command(results, "sync", options=locations)
        yield f"MLflow:  not up to date ({refusal}). Write them later: `{sync_command}`"
    yield f"  next: {command(results, 'report', options=locations)}"
