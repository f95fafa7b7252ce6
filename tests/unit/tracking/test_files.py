"""Files of the runs: the plan, provenance, the report, what trials leave to look at."""

from pathlib import Path

import pytest
from helpers.toys import Driver

from tune_dml.record.state import SweepState
from tune_dml.tracking import runs
from tune_dml.tracking.files import _files_under
from tune_dml.tracking.tracker import _LAST_ATTEMPTS, Tracker


def left(seen):
    """Trial key -> the files in its run, by path."""
    return {key: seen.files(run) for key, run in seen.by_key.items()}


def test_the_plan_and_every_sessions_provenance_are_attached(driver, tracker, mlflow_has):
    tracker().sync()
    driver.session()
    tracker().sync()
    seen = mlflow_has()
    (run,) = seen.parents
    assert {entry.path for entry in seen.client.list_artifacts(run.info.run_id)} == {"plan.json", "sessions"}
    entries = seen.client.list_artifacts(run.info.run_id, "sessions")
    assert [entry.path for entry in entries] == ["sessions/1.json", "sessions/2.json"]


def test_attaching_again_replaces(tmp_path, driver, tracker, mlflow_has):
    for trial in driver.trials:
        driver.run(trial)
    folder = tmp_path / "report"
    (folder / "figures").mkdir(parents=True)
    for name in ("index.html", "figures/one.svg", "figures/two.svg"):
        (folder / name).write_text(name)
    extra = tmp_path / "table.csv"
    extra.write_text("x")
    assert tracker().attach([folder, extra], "report") is None
    assert mlflow_has().parents[0].info.status == "FINISHED"  # nobody else tells this store of the sweep
    (folder / "figures" / "two.svg").unlink()
    (folder / "index.html").write_text("new")
    assert tracker().attach([folder], "report") is None
    seen = mlflow_has()
    run_id = seen.parents[0].info.run_id
    assert sorted(_files_under(seen.client, run_id, "report")) == ["report/figures/one.svg", "report/index.html"]
    place = seen.client.download_artifacts(run_id, "report/index.html", str(tmp_path / "."))
    assert Path(place).read_text() == "new"
    assert seen.client.get_experiment_by_name("toys").artifact_location.startswith(tmp_path.as_uri())


def test_attaching_never_raises(driver, tracker, tmp_path):
    assert "must answer" in str(tracker(uri="http://127.0.0.1:9/").attach([], "report"))
    unborn = Driver(tmp_path / "unborn", driver.plan)
    assert Tracker(SweepState(unborn.folder, unborn.plan), "sqlite:////nowhere/x.db", "toys").attach([], "r")


@pytest.mark.slow
def test_what_trials_leave_is_there_once_whatever_is_replayed(driver, tracker, mlflow_has):
    first, second, third, going = driver.trials
    for trial in (first, second, going):
        driver.leave(trial, evidence="{}", sheet=f"picture of {trial.key}")
    for trial in (first, second, third):
        driver.run(trial)
    driver.started(going)  # what it has left so far is not its last word
    expected = {
        trial.key: {"evidence/evidence.json": "{}", "evidence/sheet.jpg": f"picture of {trial.key}"}
        for trial in (first, second)
    } | {third.key: {}, going.key: {}}
    one = tracker()
    assert one.sync().error is None
    assert left(mlflow_has()) == expected
    one.sync()
    tracker().sync()
    (driver.folder / "mlflow.json").unlink()
    tracker().sync()
    assert left(mlflow_has()) == expected
    driver.ended(going)
    assert tracker().stop().error is None
    assert left(mlflow_has())[going.key]["evidence/sheet.jpg"] == f"picture of {going.key}"


def test_files_are_sent_once(driver, tracker, monkeypatch):
    for trial in driver.trials:
        driver.leave(trial, evidence="{}")
        driver.run(trial)
    tracker().sync()
    one = tracker()
    one.sync()
    monkeypatch.setattr(one._runs.client, "log_artifacts", lambda *arguments: pytest.fail("sent again"))
    driver.session()
    one.sync()
    other = tracker()
    other._runs.client = one._runs.client
    assert other.sync().error is None


@pytest.mark.slow
def test_numbers_do_not_wait_for_files_and_files_are_not_lost(driver, tracker, mlflow_has, monkeypatch):
    for trial in driver.trials[:2]:
        driver.leave(trial, evidence="{}")
        driver.run(trial)
    asked: list[str] = []
    make = runs.open_client

    def opened(uri):
        found = make(uri)

        def refuse(run_id, *rest):
            asked.append(run_id)
            raise ConnectionError("the bucket is away")

        found.log_artifacts = refuse
        return found

    monkeypatch.setattr(runs, "open_client", opened)
    one = tracker()
    report = one.sync()
    assert report.error == "the bucket is away"
    assert report.waiting == 2
    assert one.sync().error is None  # not asked again before the last word
    assert len(asked) == 1
    assert one.stop().error == "the bucket is away"
    assert len(asked) == 1 + _LAST_ATTEMPTS
    seen = mlflow_has()
    assert {run.info.status for run in seen.children} == {"FINISHED"}
    assert left(seen) == {trial.key: {} for trial in driver.trials[:2]}
    monkeypatch.setattr(runs, "open_client", make)
    assert tracker().sync().error is None
    assert all(left(mlflow_has()).values())
