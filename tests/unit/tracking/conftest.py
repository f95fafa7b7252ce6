"""A sweep on disk and an MLflow store to project it into."""

import pytest
from helpers.stored_runs import StoredRuns
from helpers.toys import Driver, plan_of, space_of

from tune_dml.record.state import SweepState
from tune_dml.space import Citation, Grid, Knob
from tune_dml.tracking.tracker import Tracker


@pytest.fixture
def plan():
    """Two cells by two seeds."""
    margin = Knob("loss.margin", Grid((0.1, 1.0)), "m")
    citation = Citation("A. Author", "A Title", "ICML", 2020, "table 3")
    milestones = {"optim.lr_schedule": "milestones", "optim.lr_milestones": [1, 2]}
    return plan_of(space=space_of(margin, name="toy_margin", citation=citation, fixed=milestones))


@pytest.fixture
def driver(tmp_path, plan):
    driver = Driver(tmp_path / "sweeps" / "toy", plan)
    driver.session()
    return driver


@pytest.fixture
def uri(tmp_path, new_database):
    return new_database(tmp_path)


@pytest.fixture
def tracker(driver, uri):
    """Return a new process's tracker of the same sweep at each call."""

    def make(**options):
        return Tracker(SweepState(driver.folder, driver.plan), options.pop("uri", uri), "toys", **options)

    return make


@pytest.fixture
def mlflow_has(uri):
    """Return a function that reads the store as it is now."""
    return lambda: StoredRuns(uri)
