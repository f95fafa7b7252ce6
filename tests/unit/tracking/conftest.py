"""A sweep on disk and an MLflow store to project it into."""

import shutil
from types import SimpleNamespace

import pytest
from toy_sweep import Driver, make_plan

from tune_dml.record.state import SweepState
from tune_dml.tracking.tracker import Tracker


@pytest.fixture
def plan():
    return make_plan()


@pytest.fixture
def driver(tmp_path, plan):
    found = Driver(tmp_path / "sweeps" / "toy", plan)
    found.session()
    return found


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """Made once: MLflow takes seconds to make its tables."""
    from tune_dml.tracking.client import open_client, quiet_mlflow

    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    with quiet_mlflow():
        open_client(f"sqlite:///{path}")
    return path


@pytest.fixture
def uri(tmp_path, empty_database):
    for file in empty_database.parent.glob("mlflow.db*"):
        shutil.copy(file, tmp_path / file.name)
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def tracker(driver, uri):
    """Each call is a new process's tracker of the same sweep."""

    def make(**options):
        return Tracker(SweepState(driver.folder, driver.plan), options.pop("uri", uri), "toys", **options)

    return make


@pytest.fixture
def mlflow_has(uri):
    """What a reader of the store sees."""
    from mlflow.tracking import MlflowClient

    def look():
        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("toys")
        runs = client.search_runs([experiment.experiment_id]) if experiment else []
        children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
        parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        by_key = {run.data.tags["tune_dml.trial_key"].rpartition("-")[2]: run for run in children}
        return SimpleNamespace(
            client=client, experiment=experiment, parents=parents, children=children, by_key=by_key, runs=runs
        )

    return look
