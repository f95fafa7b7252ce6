"""Everything reaches MLflow once: after replays, kills between two requests, lost answers and deleted runs."""

import json
import shutil
from pathlib import Path

import pytest
from helpers.costly import slow_after
from helpers.stored_runs import StoredRuns
from mlflow.tracking import MlflowClient

from tune_dml.record.judging.judgement import Judgement
from tune_dml.record.state import read_state
from tune_dml.tracking import SyncReport, client, runs
from tune_dml.tracking.tracker import Tracker


def test_replays_change_nothing(driver, tracker, mlflow_has):
    driver.run(*driver.trials[:3])
    driver.started(driver.trials[3])
    driver.row(driver.trials[3], 1)
    tracker().sync()
    before = mlflow_has().snapshot()
    one = tracker()
    assert one.sync().rows == 0
    assert one.sync() == SyncReport()
    (driver.folder / "mlflow.json").unlink()  # as if killed between creating the runs and writing it down
    assert tracker().sync().error is None
    (driver.folder / "mlflow.json").write_text('{"uri": tor')
    tracker().sync()
    assert mlflow_has().snapshot() == before


def test_a_sync_does_not_create_a_moved_folder_again(driver, tracker):
    one = tracker()
    driver.run(driver.trials[0])
    one.sync()
    driver.folder.rename(driver.folder.with_name("moved"))
    one.stop(interrupted=True)
    assert not driver.folder.exists()


@pytest.mark.parametrize("name", ["copy", "toy (copy)"])
def test_a_copy_of_a_sweep_has_its_own_runs(driver, tracker, uri, name):
    """File managers name a copy `toy (copy)`; a copy is extended, the sweep itself stays."""
    driver.run(*driver.trials)
    tracker().stop()
    before = StoredRuns(uri, "toy").snapshot()
    copy = shutil.copytree(driver.folder, driver.folder.with_name(name))
    for _ in range(2):
        assert Tracker(read_state(copy), uri, "toys").stop().error is None
        assert tracker().stop().trials == 0
        assert StoredRuns(uri, "toy").snapshot() == before
        assert len(StoredRuns(uri, name).children) == len(driver.trials)


def test_killed_drivers_do_not_repeat_the_progress_of_the_sweep(driver, tracker, mlflow_has):
    for trial in driver.trials:
        driver.run(trial)
        tracker().sync()  # each is a new process: the previous one was killed
        tracker().sync()
    stored = mlflow_has()
    (parent,) = stored.parents
    steps = [step for step, _, _ in stored.history(parent, "trials_finished")]
    assert steps == list(range(1, len(driver.trials) + 1))


def test_a_copy_of_the_database_alone_has_every_run(driver, tracker, mlflow_has, uri, tmp_path):
    """After the end of a session, and after a report was attached."""
    last = tracker()
    last.start()
    driver.run(*driver.trials)
    assert last.stop().error is None
    for name in ("stopped.db", "attached.db"):
        shutil.copy(uri.removeprefix("sqlite:///"), tmp_path / name)
        copied = StoredRuns(f"sqlite:///{tmp_path / name}")
        assert copied.states() == mlflow_has().states()
        assert len(copied.children) == len(driver.trials)
        assert last.attach(Path(), [], Judgement(("said",), {"best_mean": 1.0}, {}, "", "")) is None
    assert copied.parents[0].data.metrics["best_mean"] == 1.0


@pytest.mark.parametrize("calls", slow_after(3, [4, 10, 16, 1, 7, 13, 19, *range(2, 20, 3), *range(3, 20, 3)]))
def test_a_sync_killed_after_any_request_completes_once(driver, tracker, mlflow_has, monkeypatch, calls):
    for trial in driver.trials[:2]:
        driver.run(trial, rows=1)
    left = [calls]
    make = runs.open_client

    class DyingClient:
        """A client whose process dies after a number of completed writes."""

        def __init__(self, client):
            self._client = client

        def __getattr__(self, name):
            method = getattr(self._client, name)
            if not name.startswith(("create", "log", "set")):
                return method

            def call(*arguments):
                if left[0] == 0:
                    raise ConnectionError("killed")
                left[0] -= 1
                return method(*arguments)

            return call

    monkeypatch.setattr(runs, "open_client", lambda uri: DyingClient(make(uri)))
    first = tracker()
    report = first.sync()
    monkeypatch.setattr(runs, "open_client", make)
    if report.error:
        assert report.error == "killed"
    assert tracker().stop().error is None
    seen = mlflow_has()
    assert len(seen.parents) == 1
    assert len(seen.children) == 2
    for run in seen.children:
        assert run.info.status == "FINISHED"
        assert set(run.data.params) == {*driver.trials[0].cell.settings, "seed"}
        assert [row[0] for row in seen.history(run)] == [1]
    kept = json.loads((driver.folder / "mlflow.json").read_text())["runs"]
    cells = {run.data.tags["tune_dml.cell_key"]: run.info.run_id for run in seen.cells.values()}
    expected = {"parent": seen.parents[0].info.run_id} | {key: run.info.run_id for key, run in seen.by_key.items()}
    assert kept == expected | {f"cell-{key.rpartition('-')[2]}": run_id for key, run_id in cells.items()}


def test_a_run_created_twice_by_a_lost_answer_is_kept_once(driver, tracker, mlflow_has):
    driver.run(driver.trials[0])
    tracker().sync()
    seen = mlflow_has()
    run, parent = seen.by_key[driver.trials[0].key], seen.parents[0]
    for twin in (run, parent):
        seen.client.create_run(seen.parents[0].info.experiment_id, twin.info.start_time, twin.data.tags)
    assert tracker().sync().error is None
    seen = mlflow_has()
    assert [one.info.run_id for one in seen.children] == [run.info.run_id]
    assert [one.info.run_id for one in seen.parents] == [parent.info.run_id]


def test_only_changes_are_pushed(driver, tracker, monkeypatch):
    one = tracker()
    driver.run(*driver.trials)
    one.sync()
    searches: list[str] = []
    monkeypatch.setattr(runs, "search_runs", lambda *given: searches.append(given[2]) or client.search_runs(*given))
    driver.event("reset", driver.trials[0].key)
    driver.started(driver.trials[0])
    driver.row(driver.trials[0], 3)
    assert one.sync() == SyncReport(trials=1, rows=1)
    assert not searches
    other = tracker()  # a new process looks once, however many trials there are, and pushes nothing
    assert other.sync().rows == 0
    assert len(searches) == 3


def test_another_process_writes_nothing_twice(driver, tracker, mlflow_has, monkeypatch):
    *before, last = driver.trials
    driver.run(*before)
    tracker().stop()
    driver.session()
    driver.started(last)
    written = []
    log_batch = MlflowClient.log_batch
    monkeypatch.setattr(MlflowClient, "log_batch", lambda *given: written.append(given[1]) or log_batch(*given))
    assert tracker().sync().error is None
    seen = mlflow_has()
    assert set(written) <= {seen.by_key[last.key].info.run_id, seen.parents[0].info.run_id}
    steps = [row[0] for row in seen.history(seen.parents[0], "trials_finished")]
    assert len(steps) == len(set(steps))


def test_another_store_gets_everything(tmp_path, driver, tracker, uri, mlflow_has):
    shutil.copy(uri.removeprefix("sqlite:///"), tmp_path / "other.db")
    driver.run(driver.trials[0])
    tracker(uri=f"sqlite:///{tmp_path / 'other.db'}").sync()
    assert not mlflow_has().runs
    assert tracker().sync() == SyncReport(trials=1, rows=2)
    assert len(mlflow_has().runs) == 3


def test_a_run_deleted_by_hand_comes_back_whole(driver, tracker, mlflow_has):
    driver.run(*driver.trials[:2])
    one = tracker()
    one.sync()
    seen = mlflow_has()
    seen.client.delete_run(seen.by_key[driver.trials[0].key].info.run_id)
    driver.event("reset", driver.trials[0].key)
    driver.run(driver.trials[0])
    report = one.sync()
    assert "deleted" in str(report.error)
    assert report.waiting == 1
    assert one.sync().error is None
    seen = mlflow_has()
    assert [row[0] for row in seen.history(seen.by_key[driver.trials[0].key])] == [1, 2]
    assert len(seen.children) == 2


@pytest.mark.slow
@pytest.mark.parametrize("level", ["the sweep's alone", "all"])
def test_a_deleted_run_of_a_sweep_is_restored_without_duplicates(driver, tracker, mlflow_has, level):
    """Formerly the runs below it were created a second time."""
    driver.run(*driver.trials)
    tracker().stop()
    seen = mlflow_has()
    before = seen.snapshot()
    for run in seen.parents if level != "all" else seen.runs:
        seen.client.delete_run(run.info.run_id)
    assert tracker().stop().error is None
    after = mlflow_has()
    assert [run.info.run_id for run in after.parents] == [run.info.run_id for run in seen.parents]
    assert len(after.by_key) == len(driver.trials)
    assert len(after.runs) == len(seen.runs)
    if level != "all":
        assert after.snapshot() == before


def test_an_experiment_that_was_renamed_keeps_its_sweep(driver, tracker, mlflow_has):
    driver.run(driver.trials[0])
    tracker().sync()
    client = mlflow_has().client
    client.rename_experiment(client.get_experiment_by_name("toys").experiment_id, "ours")
    driver.run(driver.trials[1])
    assert tracker().sync() == SyncReport(trials=1, rows=2)
    assert sorted(item.name for item in client.search_experiments()) == ["Default", "ours"]


def test_an_old_state_file_has_no_evidence(driver, tracker, mlflow_has):
    driver.leave(driver.trials[0], evidence="{}")
    driver.run(driver.trials[0])
    tracker().sync()
    path = driver.folder / "mlflow.json"
    stored = json.loads(path.read_text())
    del stored["evidence"]
    path.write_text(json.dumps(stored))
    before = mlflow_has().snapshot()
    assert tracker().sync() == SyncReport()
    assert mlflow_has().snapshot() == before
