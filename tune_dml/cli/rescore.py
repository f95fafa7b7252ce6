"""`tune-dml rescore`: compute further metrics of trials that have stored their embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_dml.cli.options import Json, SweepArgument, location_flags, verb
from tune_dml.cli.screen import Lines, show, table
from tune_dml.planning.request import Session

if TYPE_CHECKING:
    from tune_dml.record.held_out.rescore import RescoredSweep
    from tune_dml.record.results import Results

ORDER = 87


@verb
def rescore(
    sweep_name: SweepArgument,
    *,
    metric: Annotated[list[str], typer.Option("--metric", metavar="NAME", help="Such as recall_at_10; repeatable.")],
    storage: Path,
    tracking_uri: str | None,
    experiment: str | None,
    as_json: Json = False,
) -> None:
    """Compute further metrics from stored embeddings; nothing is trained, and test metrics stay sealed.

    The sweep must have run with `--set evaluation.keep=embeddings`.
    """
    from tune_dml.operations import rescore as compute
    from tune_dml.record.results import load_results

    session = Session(storage, tracking_uri=tracking_uri, experiment=experiment)
    rescored, refusal = compute(sweep_name, session, metrics=metric)
    locations = location_flags(storage, tracking_uri, experiment)
    show(_RescoringView(load_results(storage, sweep_name), rescored, refusal, locations), as_json)


@dataclass(frozen=True)
class _RescoringView:
    """The new metrics of a sweep."""

    results: Results
    rescored: RescoredSweep
    refusal: str | None
    """Reason why MLflow lacks the metrics; None if it has them."""
    locations: dict[str, str | None]
    """Location flags of this command, for the commands that the output suggests."""

    def data(self) -> dict[str, object]:
        trials = [vars(trial) for trial in self.rescored.trials]
        return {
            "sweep": self.results.name,
            "trials": trials,
            "without": self.rescored.without_embeddings,
            "mlflow_error": self.refusal,
        }

    def text(self) -> Lines:
        from tune_dml.record.origin.commands import command

        names = list(self.rescored.trials[0].metrics)
        rows = ((t.label, t.seed, *(f"{t.metrics[name]:.2f}" for name in names)) for t in self.rescored.trials)
        yield table("", ("cell", "seed", *names), rows, right=("seed", *names))
        if self.rescored.without_embeddings:
            yield f"{self.rescored.without_embeddings} finished trials stored no embeddings and are left out."
        difference = max(trial.rounding for trial in self.rescored.trials)
        yield f"Computed from half-precision embeddings: MAP@R differs by at most {difference:.2g} points."
        yield "The test metrics are sealed with the others; they are shown if the sweep has been opened."
        if self.refusal:
            sync_command = command(self.results, "sync", options=self.locations)
            yield f"MLflow:  not up to date ({self.refusal}). Write them later: `{sync_command}`"
        yield f"  next: {command(self.results, 'report', options=self.locations)}"
