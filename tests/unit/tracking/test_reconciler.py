"""`sync` on an edited store: it expects everything in the ledger, and nothing else under the same names."""

import math

import pytest
from helpers.stored_runs import StoredRuns
from helpers.toys import METRIC

from tune_dml.record.judging.judgement import Judgement
from tune_dml.record.state import SweepState
from tune_dml.tracking.tracker import Tracker


@pytest.fixture
def store(driver, tracker, uri):
    """The runs of a finished sweep, one without finite numbers, and MLflow's client to edit them."""
    driver.started(driver.trials[0])
    driver.row(
        driver.trials[0],
        1,
        **{"train/loss": math.nan, "train/top": math.inf, "train/low": -math.inf, "train/zero": -0.0},
    )
    driver.run(*driver.trials)
    assert tracker().stop().error is None
    assert tracker().reconcile(None).before == ()
    return StoredRuns(uri)


@pytest.fixture
def edited(store, driver):
    """The id of the run of the first trial, which tests edit."""
    return store.by_key[driver.trials[0].key].info.run_id


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 7])
def test_an_added_point_makes_a_run_unequal_until_it_is_deleted(store, edited, tracker, step):
    store.client.log_metric(edited, METRIC, 99.9, step=step)
    found = tracker().reconcile(Judgement((), {}, {}, "", ""))
    assert not found.is_equal
    assert found.before == found.after
    assert found.after[0].endswith("seed 0): 1 point beside the ledger's")
    store.client.delete_run(edited)
    found = tracker().reconcile(None)
    assert found.is_equal
    assert found.before
    assert tracker().reconcile(None).before == ()


def test_metrics_and_tags_added_by_users_are_ignored(store, edited, tracker):
    store.client.log_metric(edited, "my/score", 1.0)
    store.client.set_tag(edited, "reviewed", "yes")
    assert tracker().reconcile(None).before == ()


@pytest.mark.slow
def test_changed_tags_of_the_ledger_are_restored(store, edited, tracker, uri):
    store.client.set_tag(edited, "tune_dml.status", "failed")
    store.client.delete_tag(edited, "mlflow.parentRunId")
    store.client.set_tag(store.parents[0].info.run_id, "tune_dml.trials", "9")
    found = tracker().reconcile(None)
    assert found.is_equal
    sweep, trial = found.before
    assert sweep == "the sweep's run: other tags tune_dml.trials"
    assert trial.endswith(": other tags mlflow.parentRunId, tune_dml.status")
    assert StoredRuns(uri).snapshot() == store.snapshot()


@pytest.mark.slow
def test_a_sweep_that_has_grown_shows_its_values_in_a_tag(store, driver, uri):
    """Its run has the first values as a parameter, which MLflow does not change."""
    driver.plan = driver.plan.extend(values={"loss.margin": [3.0]})
    driver.run(*driver.trials[-2:])
    grown = Tracker(SweepState(driver.folder, driver.plan), uri, "toys")
    assert grown.reconcile(None).is_equal
    assert grown.reconcile(None).before == ()
    (sweep,) = StoredRuns(uri).parents
    assert sweep.data.params["loss.margin"] == "[0.1, 1.0]"
    assert sweep.data.tags["tune_dml.values.loss.margin"] == "[0.1, 1.0, 3.0]"


@pytest.mark.slow
def test_metrics_of_an_earlier_attempt_are_expected(store, driver, tracker, edited):
    """The attempt failed with a metric that no row has, and a second one finished."""
    trial = driver.trials[0]
    driver.ended(trial, "failed", reason="a disk is full", step=2, metrics={"val/late": 5.0})
    assert tracker().stop().error is None
    driver.started(trial)
    driver.row(trial, 3)
    driver.ended(trial, step=3, metrics={"val/late": 6.0})
    assert tracker().stop().error is None
    assert len(store.client.get_metric_history(edited, "val/late")) == 2
    assert tracker().reconcile(None).before == ()
