"""Read a sweep's runs from an MLflow store."""

from pathlib import Path
from typing import Any

from helpers.toys import METRIC


class StoredRuns:
    """Current runs of a sweep. Raises an error if a trial has two runs."""

    def __init__(self, uri: str, sweep: str = "toy"):
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(uri)
        experiments = [experiment.experiment_id for experiment in self.client.search_experiments()]
        self.runs = list(self.client.search_runs(experiments, f"tags.sweep = '{sweep}'", max_results=1000))
        self.children = [run for run in self.runs if "tune_dml.trial_key" in run.data.tags]
        self.cells = {run.data.tags["cell"]: run for run in self.runs if "tune_dml.cell_key" in run.data.tags}
        self.parents = [run for run in self.runs if "mlflow.parentRunId" not in run.data.tags]
        self.by_key = {run.data.tags["tune_dml.trial_key"].rpartition("-")[2]: run for run in self.children}
        once = {(run.data.tags["tune_dml.sweep_run"], run.data.tags["tune_dml.trial_key"]) for run in self.children}
        assert len(once) == len(self.children), "doubled"

    def history(self, run: Any, name: str = METRIC) -> list[tuple[int, int, float]]:
        """Return (step, timestamp, value) of a metric."""
        points = self.client.get_metric_history(run.info.run_id, name)
        return sorted((point.step, point.timestamp, point.value) for point in points)

    def files(self, run: Any, folder: str = "evidence") -> dict[str, str]:
        """Return the text of a run's files in a folder by path."""
        paths = [entry.path for entry in self.client.list_artifacts(run.info.run_id, folder)]
        return {path: Path(self.client.download_artifacts(run.info.run_id, path)).read_text() for path in paths}

    def states(self) -> dict[str, str]:
        """Return the status by trial key, or `parent`."""
        (parent,) = self.parents
        return {key: run.info.status for key, run in {**self.by_key, "parent": parent}.items()}

    def snapshot(self) -> Any:
        """Return everything a reader can see, for comparison."""
        return sorted(
            (
                *(run.info.run_id, run.info.status, run.info.start_time, run.info.end_time),
                *(run.data.params, run.data.tags, {name: repr(self.history(run, name)) for name in run.data.metrics}),
            )
            for run in self.runs
        )
