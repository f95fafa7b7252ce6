"""A tracking server that goes away during a sweep and comes back: nothing is lost, nothing is doubled, nobody waits."""

import json
import socket
import threading
import time
import urllib.request

import pytest
from helpers.mlflow_server import Server
from helpers.stored_runs import StoredRuns
from helpers.toys import Driver, plan_of

from tune_dml.record.state import SweepState
from tune_dml.space import Grid, Knob
from tune_dml.tracking import SyncReport, Tracker, background, check


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    return Server(folder)


@pytest.fixture
def driver(tmp_path):
    driver = Driver(tmp_path / "sweeps" / "toy", plan_of(Knob("loss.margin", Grid((0.1, 1.0)))))
    driver.session()
    return driver


def run(driver, trial, rows, *, first=1, end=True):
    """A trial, or a part of it, with the sheet that it leaves at its end."""
    if end:
        driver.leave(trial, sheet=trial.key)
    driver.run(trial, rows, first=first, end=end)


def contents(uri):
    """Trial key -> (status, steps of the metric), as a reader of the server sees it."""
    seen = StoredRuns(uri)
    steps = {key: [step for step, _, _ in seen.history(run)] for key, run in seen.by_key.items()}
    return {key: (status, steps.get(key, [])) for key, status in seen.states().items()}


@pytest.mark.slow
def test_an_outage_during_a_sweep_loses_nothing_and_doubles_nothing(tmp_path, server, driver, capfd, monkeypatch):
    monkeypatch.setattr(background, "INTERVAL", 0.1)
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # of this reader's downloads
    said, books = [], driver.folder / "mlflow.json"
    one, two, three, four = driver.trials
    went_down, came_back = threading.Event(), threading.Event()

    def say(text):
        said.append(text)
        (came_back if "again" in text else went_down).set()

    tracker = Tracker(SweepState(driver.folder, driver.plan), server.uri, "toys", say=say)
    with server:
        assert check(server.uri) == []
        run(driver, one, 3)
        run(driver, two, 2, end=False)
        assert tracker.sync() == SyncReport(trials=2, rows=5)
        tracker.start()
    run(driver, two, 5, first=3)  # the server is gone
    run(driver, three, 2)
    tracker.notify()
    assert went_down.wait(60)
    began = time.perf_counter()
    report = tracker.sync()
    took = time.perf_counter() - began
    assert report.waiting == 2
    assert "the server must answer" in str(report.error)
    assert took < 10  # it refuses at once; never MLflow's own minutes of retries
    with server:  # back, on the same port and store
        assert came_back.wait(120)
        run(driver, four, 1)
        assert tracker.stop().error is None
        finished = {
            **{one.key: ("FINISHED", [1, 2, 3]), two.key: ("FINISHED", [1, 2, 3, 4, 5])},
            **{three.key: ("FINISHED", [1, 2]), four.key: ("FINISHED", [1]), "parent": ("FINISHED", [])},
        }
        assert contents(server.uri) == finished
        books.unlink()  # a replay of everything, over the wire
        assert Tracker(SweepState(driver.folder, driver.plan), server.uri, "toys").stop().error is None
        assert contents(server.uri) == finished
        seen = StoredRuns(server.uri)
        for key, stored in seen.by_key.items():
            assert seen.files(stored) == {"evidence/sheet.jpg": key}
        text = tmp_path / "index.html"
        for body in ("old", "new"):
            text.write_text(body)
            assert tracker.attach([text], "report") is None
        parent = json.loads(books.read_text())["runs"]["parent"]
        address = f"{server.uri}/get-artifact?path=report/index.html&run_uuid={parent}"
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310
            assert answer.read() == b"new"
    assert len(said) == 2
    assert capfd.readouterr() == ("", "")  # the user's terminal stays clean


def test_a_sweep_that_never_sees_its_server_ends_and_says_what_waits(driver):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    tracker = Tracker(SweepState(driver.folder, driver.plan), f"http://127.0.0.1:{port}", "toys")
    tracker.start()
    for trial in driver.trials:
        driver.run(trial, 1)
        tracker.notify()
    report = tracker.stop()
    assert report.waiting == 4
    assert "the server must answer" in str(report.error)
