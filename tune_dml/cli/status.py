"""`tune-dml status`: the matrix of cells and seeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tune_dml.cli.view import table
from tune_dml.record.results import Results, TrialResult

if TYPE_CHECKING:
    from rich.console import RenderableType


STATUSES = ("finished", "running", "diverged", "failed", "missing")


@dataclass(frozen=True)
class Status:
    """Where a sweep stands."""

    results: Results
    list_trials: bool = False

    def data(self) -> dict[str, Any]:
        """Counts and one entry a trial."""
        return {
            "sweep": self.results.name,
            "dataset": self.results.plan.dataset,
            "counts": {status: self.results.count(status) for status in STATUSES},  # type: ignore[arg-type]
            "notes": list(self.results.notes),
            "trials": [
                {
                    "trial": trial.key,
                    "cell": trial.cell.label,
                    "seed": trial.seed,
                    "status": trial.status,
                    "reason": trial.reason,
                    "attempts": trial.attempts,
                    "seconds": trial.seconds,
                    "metric": trial.metrics.get(self.results.plan.metric),
                    "run_id": trial.run_id,
                }
                for trial in self.results.trials
            ],
        }

    def text(self) -> Iterable[RenderableType]:
        """The matrix, the notes and what to do next."""
        from tune_dml.cli.status_table import status_table

        yield status_table(self.results)
        if self.list_trials:
            columns = (
                "trial",
                "cell",
                "seed",
                "status",
                self.results.plan.metric,
                "seconds",
                "MLflow run",
                "reason",
            )
            yield table("", columns, (_row(trial, self.results.plan.metric) for trial in self.results.trials))
        yield from self.results.notes
        left = self.results.count("running") + self.results.count("missing")
        broken = self.results.count("failed") + self.results.count("diverged")
        if left:
            yield f"{left} trials to go: tune-dml resume {self.results.name}"
        elif broken:
            yield f"{broken} trials failed or diverged; to try them again: tune-dml resume {self.results.name} --retry-failed"
        else:
            yield f"Complete: tune-dml report {self.results.name}"


def _row(trial: TrialResult, metric: str) -> tuple[object, ...]:
    value = trial.metrics.get(metric)
    shown = "" if value is None else f"{value:.2f}"
    seconds = f"{trial.seconds:.0f}" if trial.seconds else ""
    return trial.key, trial.cell.label, trial.seed, trial.status, shown, seconds, trial.run_id, trial.reason
