"""MLflow shows what the ledger has: everything, once, and its true state."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy_sweep import Driver, history, make_plan

from tune_dml.planning.plan import Trial
from tune_dml.record.ledger import trial_folder
from tune_dml.tracking import store as tracking_store
from tune_dml.tracking import tracker as tracking
from tune_dml.tracking.tracker import SyncReport, Tracker

Look = Callable[[], SimpleNamespace]
Make = Callable[..., Tracker]


def snapshot(seen: SimpleNamespace) -> Any:
    """All that a reader can see, for comparison."""
    return sorted(
        (
            run.info.run_id,
            run.info.status,
            run.info.start_time,
            run.info.end_time,
            run.data.params,
            run.data.tags,
            {name: history(seen.client, run, name) for name in run.data.metrics},
        )
        for run in seen.runs
    )


def test_the_shape(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    for trial in driver.trials:
        driver.run(trial)
    assert tracker().stop() == SyncReport(trials=4, rows=8)
    seen = mlflow_has()
    (parent,) = seen.parents
    assert set(seen.by_key) == {trial.key for trial in driver.trials}
    trial = driver.trials[0]
    run = seen.by_key[trial.key]
    assert run.info.run_name == "γ=0.1, seed 0"
    expected = {
        "mlflow.parentRunId": parent.info.run_id,
        "tune_dml.trial_key": f"toy-{driver.plan.identity()}-{trial.key}",
        **{"sweep": "toy", "cell": "γ=0.1", "seed": "0", "dataset": "glyphs", "git_commit": "c0ffee"},
        **{"paper": "A. Author, A Title, ICML 2020", "table": "table 3"},
        **{"tune_dml.status": "finished", "tune_dml.attempts": "1", "tune_dml.host": "node1"},
    }
    assert expected.items() <= run.data.tags.items()
    assert parent.info.run_name == "toy"
    assert parent.data.tags["tune_dml.sweep_id"] == f"toy-{driver.plan.identity()}"
    assert parent.data.tags["tune_dml.finished"] == "4"
    assert parent.info.status == "FINISHED"


def test_parameters_are_flat_dotted_and_complete(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    driver.run(driver.trials[0])
    tracker().sync()
    run = mlflow_has().by_key[driver.trials[0].key]
    assert run.data.params == {
        "loss.name": "toy",
        "data.name": "glyphs",
        "optim.lr_milestones": "[1, 2]",
        "loss.note": "short",
        "loss.gamma": "0.1",
        "seed": "0",
    }
    assert mlflow_has().parents[0].data.params["loss.gamma"] == "[0.1, 1.0]"


def test_long_parameters_are_cut_and_say_so(tmp_path: Path, tracker: Make, mlflow_has: Look, driver: Driver) -> None:
    driver.plan = make_plan(long="x" * 9000)
    driver.run(driver.plan.trials()[0])
    assert tracker().sync().error is None
    value = mlflow_has().children[0].data.params["loss.note"]
    assert len(value) == 500
    assert value.endswith("x… (9000 characters)")


def test_metrics_keep_their_step_and_time_and_test_metrics_their_name(
    driver: Driver, tracker: Make, mlflow_has: Look
) -> None:
    trial = driver.trials[0]
    driver.started(trial)
    driver.row(trial, 100, **{"train/loss": 0.5, "test/recall_at_1": 41.0, "odd name!": 1.0, "note": "words"})
    tracker().sync()
    seen = mlflow_has()
    run = seen.by_key[trial.key]
    assert run.data.metrics == {
        **{"val/recall_at_1": 150.0, "train/loss": 0.5, "test/recall_at_1": 41.0, "odd name_": 1.0}
    }
    assert history(seen.client, run) == [(100, 1_700_000_100_000, 150.0)]


def test_non_finite_metrics_arrive_once(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    trial = driver.trials[0]
    driver.started(trial)
    for step, value in enumerate((math.nan, math.inf, -math.inf)):
        driver.row(trial, step, **{"train/loss": value})
    for _ in range(2):
        (driver.folder / "mlflow.json").unlink(missing_ok=True)
        assert tracker().sync().error is None
    seen = mlflow_has()
    values = [value for _, _, value in history(seen.client, seen.by_key[trial.key], "train/loss")]
    assert math.isnan(values[0])
    assert values[1] > 1e300  # MLflow clips infinities to the largest number
    assert values[2] < -1e300
    assert len(values) == 3


def test_many_metrics_go_in_batches(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    trial = driver.trials[0]
    driver.started(trial)
    driver.row(trial, 1, **{f"train/m{number}": float(number) for number in range(2500)})
    assert tracker().sync() == SyncReport(trials=1, rows=1)
    assert len(mlflow_has().by_key[trial.key].data.metrics) == 2501


def test_what_only_the_end_tells_is_shown_at_the_judged_step(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    first, second = driver.trials[:2]
    driver.ended(first, step=7, metrics={"val/recall_at_1": 9.0})
    driver.started(second)
    driver.row(second, 1, **{"test/seen": 1.0})
    driver.row(second, 2)
    metrics = {"val/recall_at_1": 51.0, "test/seen": 1.0, "test/recall_at_1": 41.0}
    driver.ended(second, step=1, metrics=metrics)
    for _ in range(2):
        (driver.folder / "mlflow.json").unlink(missing_ok=True)
        tracker().sync()
    seen = mlflow_has()
    assert [row[0::2] for row in history(seen.client, seen.by_key[first.key])] == [(7, 9.0)]
    run = seen.by_key[second.key]
    assert [row[0::2] for row in history(seen.client, run)] == [(1, 51.0), (2, 52.0)]
    assert [row[0::2] for row in history(seen.client, run, "test/recall_at_1")] == [(1, 41.0)]
    assert len(history(seen.client, run, "test/seen")) == 1


def test_replays_change_nothing(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    for trial in driver.trials[:3]:
        driver.run(trial)
    driver.started(driver.trials[3])
    driver.row(driver.trials[3], 1)
    tracker().sync()
    before = snapshot(mlflow_has())
    one = tracker()
    assert one.sync().rows == 0
    assert one.sync() == SyncReport()
    (driver.folder / "mlflow.json").unlink()  # as if killed between creating the runs and writing it down
    assert tracker().sync().error is None
    (driver.folder / "mlflow.json").write_text('{"uri": tor')
    tracker().sync()
    assert snapshot(mlflow_has()) == before


@pytest.mark.parametrize("calls", range(1, 14))
def test_killed_after_any_request_it_is_completed_once(
    driver: Driver, tracker: Make, mlflow_has: Look, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    for trial in driver.trials[:2]:
        driver.run(trial, rows=1)
    left = [calls]
    make = tracking._client

    class Dying:
        """A client whose process dies after a number of writes that arrived."""

        def __init__(self, client: Any):
            self._client = client

        def __getattr__(self, name: str) -> Any:
            method = getattr(self._client, name)
            if not name.startswith(("create", "log", "set")):
                return method

            def call(*arguments: Any) -> Any:
                if left[0] == 0:
                    raise ConnectionError("killed")
                left[0] -= 1
                return method(*arguments)

            return call

    monkeypatch.setattr(tracking, "_client", lambda uri: Dying(make(uri)))
    first = tracker()
    report = first.sync()
    monkeypatch.setattr(tracking, "_client", make)
    if report.error:
        assert report.error == "killed"
    assert tracker().stop().error is None
    seen = mlflow_has()
    assert len(seen.parents) == 1
    assert len(seen.children) == 2
    for run in seen.children:
        assert run.info.status == "FINISHED"
        assert len(run.data.params) == 6
        assert [row[0] for row in history(seen.client, run)] == [1]
    runs = json.loads((driver.folder / "mlflow.json").read_text())["runs"]
    assert runs == {"parent": seen.parents[0].info.run_id} | {key: run.info.run_id for key, run in seen.by_key.items()}


def test_a_run_created_twice_by_a_lost_answer_is_kept_once(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    driver.run(driver.trials[0])
    tracker().sync()
    seen = mlflow_has()
    run, parent = seen.by_key[driver.trials[0].key], seen.parents[0]
    for twin in (run, parent):
        seen.client.create_run(seen.experiment.experiment_id, twin.info.start_time, twin.data.tags)
    assert tracker().sync().error is None
    seen = mlflow_has()
    assert [one.info.run_id for one in seen.children] == [run.info.run_id]
    assert [one.info.run_id for one in seen.parents] == [parent.info.run_id]


def test_only_the_news_is_pushed(driver: Driver, tracker: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tracker()
    for trial in driver.trials:
        driver.run(trial)
    one.sync()
    searches: list[str] = []
    monkeypatch.setattr(
        tracking,
        "search_runs",
        lambda *arguments: searches.append(arguments[2]) or tracking_store.search_runs(*arguments),
    )
    driver.event("reset", driver.trials[0].key)
    driver.started(driver.trials[0])
    driver.row(driver.trials[0], 3)
    assert one.sync() == SyncReport(trials=1, rows=1)
    assert not searches
    other = tracker()  # a new process looks once, however many trials there are, and pushes nothing
    assert other.sync().rows == 0
    assert len(searches) == 2


def test_true_states(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    finished, diverged, failed, running = driver.trials
    driver.run(finished)
    for trial in (diverged, failed, running):
        driver.started(trial)
    driver.ended(diverged, "diverged", reason="the loss is nan", step=3)
    driver.ended(failed, "failed", reason="out of memory: CUDA", kind="out_of_memory")
    one = tracker()
    one.sync()

    def states() -> dict[str, str]:
        seen = mlflow_has()
        return {key: run.info.status for key, run in seen.by_key.items()} | {"parent": seen.parents[0].info.status}

    while_running = {
        **{finished.key: "FINISHED", diverged.key: "FAILED", failed.key: "FAILED"},
        **{running.key: "RUNNING", "parent": "RUNNING"},
    }
    assert states() == while_running
    tags = mlflow_has().by_key[failed.key].data.tags
    assert tags["tune_dml.reason"] == "out of memory: CUDA"
    assert tags["tune_dml.kind"] == "out_of_memory"
    assert one.stop().error is None
    assert states() == while_running | {running.key: "KILLED", "parent": "KILLED"}
    assert mlflow_has().by_key[running.key].data.tags["tune_dml.status"] == "interrupted"
    driver.session()  # resumed
    two = tracker()
    two.sync()
    assert states() == while_running | {running.key: "KILLED"}
    driver.started(running)
    two.sync()
    assert states() == while_running
    assert mlflow_has().by_key[running.key].data.tags["tune_dml.attempts"] == "2"
    driver.ended(running)
    two.stop()
    assert states() == while_running | {running.key: "FINISHED", "parent": "FAILED"}
    driver.session()  # failed ones are tried again
    driver.event("reset", failed.key)
    driver.started(failed)
    driver.ended(failed)
    tracker().stop()
    assert states()[failed.key] == "FINISHED"
    assert states()["parent"] == "FINISHED"  # a diverged trial is a result
    assert not mlflow_has().by_key[failed.key].data.tags["tune_dml.reason"]


def test_a_driver_that_was_killed_leaves_no_run_running(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    driver.started(driver.trials[0])
    tracker().sync()  # and then kill -9
    driver.session()
    tracker().sync()
    assert mlflow_has().by_key[driver.trials[0].key].info.status == "KILLED"


def test_an_interrupted_search_is_killed_though_its_known_trials_ended(
    driver: Driver, tracker: Make, mlflow_has: Look
) -> None:
    for trial in driver.trials:
        driver.run(trial)
    tracker().stop(interrupted=True)
    assert mlflow_has().parents[0].info.status == "KILLED"


def test_proposed_cells_and_further_seeds_join_the_same_parent(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    driver.run(driver.trials[0])
    tracker().stop()
    parent = mlflow_has().parents[0]
    driver.plan = make_plan(seeds=(0, 1, 2))  # another identity
    driver.session()
    cell = {
        "index": 2,
        "label": "γ=5",
        "knobs": {"loss.gamma": 5.0},
        "settings": {"loss.gamma": 5.0},
        "digest": "d2",
    }
    driver.event("cell", cell=cell)
    from tune_dml.planning.cells import Cell

    proposed = driver.plan.trial(Cell(**cell), 2)
    driver.run(proposed)
    (driver.folder / "mlflow.json").unlink()
    assert tracker().stop().error is None
    seen = mlflow_has()
    assert [run.info.run_id for run in seen.parents] == [parent.info.run_id]
    assert seen.parents[0].data.tags["tune_dml.sweep_id"] == f"toy-{driver.plan.identity()}"
    assert seen.parents[0].data.tags["tune_dml.trials"] == "9"
    assert seen.by_key[proposed.key].info.run_name == "γ=5, seed 2"
    assert len(seen.children) == 2


def test_a_sweep_begun_anew_under_its_old_name_is_another_sweep(
    tmp_path: Path, driver: Driver, tracker: Make, uri: str, mlflow_has: Look
) -> None:
    driver.run(driver.trials[0])
    tracker().stop()
    again = Driver(tmp_path / "elsewhere" / "toy", driver.plan)
    again.session()
    again.run(again.trials[0])
    assert Tracker(again.folder, again.plan, uri, "toys").stop().error is None
    assert len(mlflow_has().parents) == 2
    assert len(mlflow_has().children) == 2


def test_another_store_gets_everything(
    tmp_path: Path, driver: Driver, tracker: Make, uri: str, mlflow_has: Look
) -> None:
    import shutil

    shutil.copy(uri.removeprefix("sqlite:///"), tmp_path / "other.db")
    driver.run(driver.trials[0])
    tracker(uri=f"sqlite:///{tmp_path / 'other.db'}").sync()
    assert not mlflow_has().runs
    assert tracker().sync() == SyncReport(trials=1, rows=2)
    assert len(mlflow_has().runs) == 2


def test_a_run_deleted_by_hand_comes_back_whole(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    for trial in driver.trials[:2]:
        driver.run(trial)
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
    assert [row[0] for row in history(seen.client, seen.by_key[driver.trials[0].key])] == [1, 2]
    assert len(seen.children) == 2


def test_a_torn_last_line_waits_for_the_rest(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    trial = driver.trials[0]
    driver.started(trial)
    driver.row(trial, 1)
    path = trial_folder(driver.folder, trial.key) / "history.jsonl"
    with path.open("a") as file:
        file.write('{"step": 2, "val/rec')
    one = tracker()
    assert one.sync().rows == 1
    driver.row(trial, 2)  # the writer cuts the torn line off
    assert one.sync().rows == 1
    seen = mlflow_has()
    assert [row[0] for row in history(seen.client, seen.by_key[trial.key])] == [1, 2]


def test_an_outage_loses_nothing_and_is_said_once(
    driver: Driver, tracker: Make, mlflow_has: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    one = tracker(say=said.append)
    driver.run(driver.trials[0])
    one.sync()
    problem = [tracking_store._problem("the server must answer", "http://me:hunter2@h", "Start it.")]
    with monkeypatch.context() as outage:
        outage.setattr(tracking, "check", lambda uri: problem)
        one._connected = False
        for trial in driver.trials[1:3]:
            driver.run(trial)
            report = one.sync()
    assert report.waiting == 2
    assert "the server must answer" in str(report.error)
    assert "hunter2" not in str(report.error)
    assert len(said) == 1
    assert one.sync() == SyncReport(trials=2, rows=4)
    assert said[1:] == ["MLflow is up to date again"]
    assert len(mlflow_has().children) == 3


def test_the_background_thread_pushes_when_told(
    driver: Driver, tracker: Make, mlflow_has: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "INTERVAL", 60.0)
    monkeypatch.setattr(tracking, "SPACING", 0.0)
    reports: list[SyncReport] = []
    arrived = threading.Event()
    one = tracker()
    sync = one.sync

    def watched() -> SyncReport:
        reports.append(sync())
        if sum(report.rows for report in reports) == 2:
            arrived.set()
        return reports[-1]

    monkeypatch.setattr(one, "sync", watched)
    one.start()
    one.start()  # twice is once
    assert threading.active_count() >= 2
    driver.run(driver.trials[0])
    one.notify()
    assert arrived.wait(60)
    driver.started(driver.trials[1])
    report = one.stop()
    assert report.error is None
    states = {key: run.info.status for key, run in mlflow_has().by_key.items()}
    assert states == {driver.trials[0].key: "FINISHED", driver.trials[1].key: "KILLED"}


def test_the_plan_and_every_sessions_provenance_are_attached(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    tracker().sync()
    driver.session()
    tracker().sync()
    seen = mlflow_has()
    (run,) = seen.parents
    assert {entry.path for entry in seen.client.list_artifacts(run.info.run_id)} == {"plan.json", "sessions"}
    entries = seen.client.list_artifacts(run.info.run_id, "sessions")
    assert [entry.path for entry in entries] == ["sessions/1.json", "sessions/2.json"]


def test_attaching_again_replaces(tmp_path: Path, driver: Driver, tracker: Make, mlflow_has: Look) -> None:
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
    assert sorted(tracking_store._files(seen.client, run_id, "report")) == [
        "report/figures/one.svg",
        "report/index.html",
    ]
    place = seen.client.download_artifacts(run_id, "report/index.html", str(tmp_path / "."))
    assert Path(place).read_text() == "new"
    assert seen.experiment.artifact_location.startswith(tmp_path.as_uri())


def test_attaching_never_raises(driver: Driver, tracker: Make, tmp_path: Path) -> None:
    assert "must answer" in str(tracker(uri="http://127.0.0.1:9/").attach([], "report"))
    unborn = Driver(tmp_path / "unborn", driver.plan)
    assert Tracker(unborn.folder, unborn.plan, "sqlite:////nowhere/x.db", "toys").attach([], "r")


def test_before_the_sweep_begins_there_is_nothing_to_show(
    tmp_path: Path, driver: Driver, uri: str, mlflow_has: Look
) -> None:
    assert Tracker(tmp_path / "none", driver.plan, uri, "toys").stop() == SyncReport()
    assert mlflow_has().experiment is None


def test_a_deleted_experiment_is_named(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    tracker().sync()
    seen = mlflow_has()
    seen.client.delete_experiment(seen.experiment.experiment_id)
    report = tracker().sync()
    assert "mlflow experiments restore --experiment-id" in str(report.error)


def test_a_new_database_is_made_quietly(
    tmp_path: Path, driver: Driver, tracker: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    driver.run(driver.trials[0])
    level = logging.getLogger("alembic").level
    assert tracker(uri=f"sqlite:///{tmp_path / 'new' / 'fresh.db'}").stop().error is None
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("alembic").level == level
    text = (tmp_path / "new" / "fresh.db-wal").exists() or (tmp_path / "new" / "fresh.db").read_bytes()[18:20]
    assert text in (True, b"\x02\x02")  # write-ahead log


def test_no_secret_is_kept(driver: Driver, tracker: Make) -> None:
    one = tracker(uri="http://me:hunter2@127.0.0.1:9")
    report = one.sync()
    assert report.error
    assert "hunter2" not in report.error + one.ui_command()
    assert not any("hunter2" in path.read_text() for path in driver.folder.glob("*.json"))


def leave(driver: Driver, trial: Trial, **files: str) -> None:
    """What a trial leaves in its folder to look at."""
    folder = trial_folder(driver.folder, trial.key) / "evidence"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)


def left(seen: SimpleNamespace) -> dict[str, dict[str, str]]:
    """Trial key -> the files in its run, by path."""
    found = {}
    for key, run in seen.by_key.items():
        entries = seen.client.list_artifacts(run.info.run_id, "evidence")
        paths = [seen.client.download_artifacts(run.info.run_id, entry.path) for entry in entries]
        found[key] = {f"evidence/{Path(path).name}": Path(path).read_text() for path in paths}
    return found


def test_what_trials_leave_is_there_once_whatever_is_replayed(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    first, second, third, going = driver.trials
    for trial in (first, second, going):
        leave(driver, trial, evidence_json="{}", sheet_jpg=f"picture of {trial.key}")
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


def test_files_are_sent_once(driver: Driver, tracker: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for trial in driver.trials:
        leave(driver, trial, evidence_json="{}")
        driver.run(trial)
    tracker().sync()
    one = tracker()
    one.sync()
    monkeypatch.setattr(one._client, "log_artifacts", lambda *arguments: pytest.fail("sent again"))
    driver.session()
    one.sync()
    other = tracker()
    other._client = one._client
    assert other.sync().error is None


def test_numbers_do_not_wait_for_files_and_files_are_not_lost(
    driver: Driver, tracker: Make, mlflow_has: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    for trial in driver.trials[:2]:
        leave(driver, trial, evidence_json="{}")
        driver.run(trial)
    asked: list[str] = []
    make = tracking._client

    def client(uri: str) -> Any:
        found = make(uri)

        def refuse(run_id: str, *rest: str) -> None:
            asked.append(run_id)
            raise ConnectionError("the bucket is away")

        found.log_artifacts = refuse
        return found

    monkeypatch.setattr(tracking, "_client", client)
    one = tracker()
    report = one.sync()
    assert report.error == "the bucket is away"
    assert report.waiting == 2
    assert one.sync().error is None  # not asked again before the last word
    assert len(asked) == 1
    assert one.stop().error == "the bucket is away"
    assert len(asked) == 1 + tracking.LAST_ATTEMPTS
    seen = mlflow_has()
    assert {run.info.status for run in seen.children} == {"FINISHED"}
    assert left(seen) == {trial.key: {} for trial in driver.trials[:2]}
    monkeypatch.setattr(tracking, "_client", make)
    assert tracker().sync().error is None
    assert all(left(mlflow_has()).values())


def test_older_books_know_of_no_files(driver: Driver, tracker: Make, mlflow_has: Look) -> None:
    leave(driver, driver.trials[0], evidence_json="{}")
    driver.run(driver.trials[0])
    tracker().sync()
    path = driver.folder / "mlflow.json"
    books = json.loads(path.read_text())
    del books["evidence"]
    path.write_text(json.dumps(books))
    before = snapshot(mlflow_has())
    assert tracker().sync() == SyncReport()
    assert snapshot(mlflow_has()) == before
