"""Unreachable, new, deleted and protected stores: nothing is lost or doubled, and no password is stored."""

import contextlib
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest
from helpers.answers import AnsweringServer
from helpers.stored_runs import StoredRuns

from tune_dml.tracking import SyncReport, background, runs, store
from tune_dml.tracking.client import open_client, reason_of


def test_an_outage_loses_nothing_and_is_reported_once(driver, tracker, mlflow_has, monkeypatch):
    said: list[str] = []
    one = tracker(say=said.append)
    driver.run(driver.trials[0])
    one.sync()
    problem = [store._problem("the server must answer", "http://me:hunter2@h", "Start it.")]
    with monkeypatch.context() as outage:
        outage.setattr(runs, "store_problems", lambda uri: problem)
        one._runs.is_connected = False
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


def test_an_unreadable_folder_of_the_sweep_is_reported_and_does_not_end_the_background_thread(
    driver, tracker, monkeypatch
):
    driver.run(driver.trials[0])
    one = tracker()
    with monkeypatch.context() as outage:
        outage.setattr(one._projection.state, "update", lambda: os.stat("gone"))
        assert "No such file" in str(one.sync().error)
    assert one.sync().error is None


def test_the_background_thread_pushes_on_request(driver, tracker, mlflow_has, monkeypatch):
    monkeypatch.setattr(background, "_INTERVAL", 60.0)
    monkeypatch.setattr(background, "_NOTIFY_DELAY", 0.0)
    reports: list[SyncReport] = []
    arrived = threading.Event()
    one = tracker()
    sync = one.sync

    def watched(**how):
        reports.append(sync(**how))
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
    trials = driver.trials
    assert mlflow_has().states() == {trials[0].key: "FINISHED", trials[1].key: "KILLED", "parent": "KILLED"}


MAKING = """
import os, sys
from alembic.operations import Operations
from tune_dml.tracking.client import open_client, quiet_mlflow

made, create = [], Operations.create_table
def dying(self, name, *given, **named):
    made.append(name)
    if len(made) == 12:
        os.kill(os.getpid(), 9)
    return create(self, name, *given, **named)
Operations.create_table = dying
with quiet_mlflow():
    open_client(sys.argv[1])
"""


@pytest.mark.slow
def test_a_database_whose_creator_is_killed_is_created_again(driver, tracker, mlflow_has, tmp_path):
    database = tmp_path / "new" / "mlflow.db"
    uri = f"sqlite:///{database}"
    killed = subprocess.run([sys.executable, "-c", MAKING, uri], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not database.exists()
    driver.run(driver.trials[0])
    assert tracker(uri=uri).sync() == SyncReport(trials=1, rows=2)
    assert len(StoredRuns(uri).children) == 1


@pytest.mark.slow
def test_a_database_that_two_sweeps_create_keeps_the_first_content_and_needs_no_hard_links(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    link = os.link

    def late(new, path):
        monkeypatch.setattr(os, "link", link)
        MlflowClient(uri).create_experiment("the other's")  # of another machine, which does not see our lock
        link(new, path)

    monkeypatch.setattr(os, "link", late)
    assert open_client(uri).get_experiment_by_name("the other's") is not None
    assert not list(tmp_path.glob(".*"))

    def refused(new, path):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert open_client(f"sqlite:///{tmp_path / 'another.db'}").search_experiments()
    assert not list(tmp_path.glob(".*"))


def test_a_deleted_experiment_is_named(driver, tracker, mlflow_has):
    tracker().sync()
    seen = mlflow_has()
    seen.client.delete_experiment(seen.client.get_experiment_by_name("toys").experiment_id)
    report = tracker().sync()
    assert "mlflow experiments restore --experiment-id" in str(report.error)


@pytest.mark.slow
def test_a_new_database_is_created_without_output(tmp_path, driver, tracker, capfd):
    driver.run(driver.trials[0])
    level = logging.getLogger("alembic").level
    assert tracker(uri=f"sqlite:///{tmp_path / 'new' / 'fresh.db'}").stop().error is None
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("alembic").level == level
    text = (tmp_path / "new" / "fresh.db-wal").exists() or (tmp_path / "new" / "fresh.db").read_bytes()[18:20]
    assert text in (True, b"\x02\x02")  # write-ahead log


@pytest.mark.slow
def test_a_database_that_mlflow_cannot_create_is_reported_in_one_line(tmp_path, driver, tracker, capfd, monkeypatch):
    """Its SQL contains the working directory, including quotes."""
    (tmp_path / "a 'b\" c").mkdir()
    monkeypatch.chdir(tmp_path / "a 'b\" c")
    driver.run(driver.trials[0])
    assert "syntax error" in str(tracker(uri="sqlite:///fresh.db").sync().error)  # `stop` tries three times
    assert capfd.readouterr() == ("", "")


def test_no_secret_is_kept(driver, tracker):
    one = tracker(uri="http://me:hunter2@127.0.0.1:9")
    report = one.sync()
    assert report.error
    assert "hunter2" not in report.error + one.ui_command()
    assert not any("hunter2" in path.read_text() for path in driver.folder.glob("*.json"))


def test_the_reason_of_a_locked_database_is_printed():
    """SQLAlchemy's first line may be a hint to programmers."""
    hint = "(raised as a result of Query-invoked autoflush; consider using a session.no_autoflush block)"
    said = reason_of(RuntimeError(f"{hint}\n(sqlite3.OperationalError) database is locked\n[SQL: UPDATE runs]"))
    assert said == "(sqlite3.OperationalError) database is locked"
    assert reason_of(RuntimeError()) == "RuntimeError"
    away = (
        "API request to http://h/api failed with exception HTTPConnectionPool(host='h', port=80): Max retries exceeded"
    )
    assert (
        reason_of(RuntimeError(f"{away} (Caused by ... Read timed out.")) == "the server did not answer: read timed out"
    )


class _CheckedServer(AnsweringServer):
    """Accepts the check before a connection, and answers later requests as chosen."""

    def answer_to(self, path):
        return (404, '{"error_code": "RESOURCE_DOES_NOT_EXIST"}') if path.endswith("runs/log-batch") else self.answer


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, "broken", "the server answered with HTTP status 500"),
        (429, "slow down", "the server answered with HTTP status 429"),
        (403, "Forbidden", "the server answered with HTTP status 403"),
        (200, "<html><form>Sign in</form></html>", "the server answered with a page, such as a login"),
        (200, "{}", "the server answered without an experiment"),
    ],
)
def test_a_server_that_fails_after_its_check_is_reported_in_plain_words(driver, tracker, status, body, said):
    driver.run(driver.trials[0])
    with _CheckedServer((status, body)) as server:
        report = tracker(uri=server.url).sync()
    assert str(report.error).startswith(said)
    assert report.waiting == 1


@pytest.mark.slow
def test_a_database_deleted_without_its_log_is_created_whole(tmp_path):
    """Formerly SQLite replayed the log of a killed driver into the new database, which mixed both or was malformed."""
    path, old = tmp_path / "mlflow.db", tmp_path / "old.db"
    client = open_client(f"sqlite:///{old}")
    with contextlib.closing(sqlite3.connect(old)) as reader:
        reader.execute("SELECT count(*) FROM experiments").fetchone()  # SQLite keeps the log while a reader is there
        for number in range(20):
            client.create_experiment(f"old {number}")
        shutil.copy(f"{old}-wal", f"{path}-wal")
    client = open_client(f"sqlite:///{path}")
    assert [experiment.name for experiment in client.search_experiments()] == ["Default"]
