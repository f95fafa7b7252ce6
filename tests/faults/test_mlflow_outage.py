"""A tracking server is unreachable during a sweep: no run is lost or doubled, and the sweep does not wait."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from helpers.mlflow_server import Server
from helpers.stored_runs import StoredRuns
from helpers.toys import Driver, plan_of

from tune_dml.record.state import SweepState
from tune_dml.space import Grid, Knob
from tune_dml.tracking import SyncReport, Tracker, background, store_problems

PATIENCE = 2
"""Timeout of a client for the unsteady server, in seconds."""


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
    """Write a trial or a part of it, with a sheet at its end."""
    if end:
        driver.leave(trial, sheet=trial.key)
    driver.run(trial, rows=rows, first=first, end=end)


def contents(uri):
    """Return (status, steps of the metric) by trial key, as read from the server."""
    seen = StoredRuns(uri)
    steps = {key: [step for step, _, _ in seen.history(run)] for key, run in seen.by_key.items()}
    return {key: (status, steps.get(key, [])) for key, status in seen.states().items()}


class Notes:
    """Collect what a tracker says, and set an event when the server goes and when it is back."""

    def __init__(self):
        self.said, self.went_down, self.came_back = [], threading.Event(), threading.Event()

    def __call__(self, text):
        self.said.append(text)
        (self.came_back if "again" in text else self.went_down).set()


@pytest.mark.slow
def test_an_outage_during_a_sweep_loses_nothing_and_doubles_nothing(
    tmp_path, server, driver, capfd, monkeypatch, found
):
    monkeypatch.setattr(background, "_INTERVAL", 0.1)
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # of this reader's downloads
    notes, books = Notes(), driver.folder / "mlflow.json"
    one, two, three, four = driver.trials
    tracker = Tracker(SweepState(driver.folder, driver.plan), server.uri, "toys", say=notes)
    with server:
        assert store_problems(server.uri) == []
        run(driver, one, 3)
        run(driver, two, 2, end=False)
        assert tracker.sync() == SyncReport(trials=2, rows=5)
        tracker.start()
    run(driver, two, 5, first=3)  # the server is gone
    run(driver, three, 2)
    tracker.notify()
    assert notes.went_down.wait(60)
    began = time.perf_counter()
    report = tracker.sync()
    took = time.perf_counter() - began
    assert report.waiting == 2
    assert "the server must answer" in str(report.error)
    assert took < 10  # it refuses at once; never MLflow's own minutes of retries
    with server:  # back, on the same port and store
        since = time.time()
        assert notes.came_back.wait(120)
        seconds = time.time() - since
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
            assert tracker.attach(tmp_path, [text]) is None
        parent = json.loads(books.read_text())["runs"]["parent"]
        address = f"{server.uri}/get-artifact?path=report/index.html&run_uuid={parent}"
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310
            assert answer.read() == b"new"
    row = {"finished": 4, "repeated": 0, "lost": 0, "doubled": 0, "seconds": round(seconds, 1)}
    found("kill -9 of the MLflow server as it writes (four of our own trials' records, no Ray)", row)
    assert len(notes.said) == 2
    assert capfd.readouterr() == ("", "")  # the user's terminal stays clean


def test_a_sweep_without_its_server_ends_and_counts_unsynced_trials(driver):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    tracker = Tracker(SweepState(driver.folder, driver.plan), f"http://127.0.0.1:{port}", "toys")
    tracker.start()
    for trial in driver.trials:
        driver.run(trial, rows=1)
        tracker.notify()
    report = tracker.stop()
    assert report.waiting == 4
    assert "the server must answer" in str(report.error)


class UnsteadyProxy(ThreadingHTTPServer):
    """Proxy of a server that, while unsteady, drops requests and delays or drops responses."""

    daemon_threads = True

    def __init__(self, port):
        super().__init__(("127.0.0.1", 0), _ForwardedRequest)
        self.behind, self.steady, self.fates, self.seen = port, True, random.Random(7), Counter()

    @property
    def uri(self):
        return f"http://127.0.0.1:{self.server_port}"

    def fate(self):
        ways = {"through": 10, "500, not done": 1, "500, but done": 1, "cut, but done": 1, "late": 1}
        (way,) = ("through",) if self.steady else self.fates.choices(list(ways), list(ways.values()))
        self.seen[way] += 1
        return way


class _ForwardedRequest(BaseHTTPRequestHandler):
    def hand_on(self):
        body, way = self.rfile.read(int(self.headers.get("Content-Length", 0))), self.server.fate()
        status, kind, content = 500, "text/plain", b"unsteady"
        if way != "500, not done":
            behind = HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
            behind.request(self.command, self.path, body, dict(self.headers))
            answer = behind.getresponse()
            kind, done = answer.headers.get("Content-Type", kind), answer.read()
            if way != "500, but done":
                status, content = answer.status, done
        if way == "late":
            threading.Event().wait(2 * PATIENCE)
        self.close_connection = True
        if way != "cut, but done":
            with contextlib.suppress(OSError):  # the client has disconnected
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = hand_on  # noqa: N815

    def log_message(self, *words):
        pass


@pytest.mark.slow
def test_an_unsteady_server_doubles_nothing(server, driver, monkeypatch, found):
    """A request without a response may have been executed, and an unexecuted one must be repeated."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", str(PATIENCE))
    with server, UnsteadyProxy(server.port) as between:
        threading.Thread(target=between.serve_forever, daemon=True).start()
        tracker = Tracker(SweepState(driver.folder, driver.plan), between.uri, "toys")
        assert tracker.sync().error is None
        between.steady = False
        failed = 0
        for trial in driver.trials:
            for row in range(1, 6):
                driver.run(trial, rows=row, first=row, end=row == 5)
                failed += tracker.sync().error is not None
        between.steady = True
        assert tracker.stop().error is None
        assert failed > 3
        assert len(between.seen) == 5, between.seen
        steps = [1, 2, 3, 4, 5]
        finished = {trial.key: ("FINISHED", steps) for trial in driver.trials}
        assert contents(server.uri) == {**finished, "parent": ("FINISHED", [])}
        between.shutdown()
    row = {"finished": 4, "repeated": 0, "lost": 0, "doubled": 0, "seconds": 0.0}
    found("the MLflow server answers with errors, late or never, having done it or not (four records, no Ray)", row)


@pytest.fixture
def postgres(tmp_path):
    """PostgreSQL on loopback, from Debian's packages; it refuses root, so root runs it as user postgres."""
    pytest.importorskip("psycopg2", reason="MLflow speaks to PostgreSQL through psycopg2 (pip install psycopg2-binary)")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not programs:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    place = Path(tempfile.mkdtemp(prefix="pg"))  # its socket's path must be short, and its own user must reach it
    as_owner = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    if as_owner:
        shutil.chown(place, "postgres")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    data, programs = place / "data", programs[-1].parent
    subprocess.run(
        [*as_owner, programs / "initdb", "-D", data, "-U", "mlflow", "-A", "trust"],
        check=True,
        capture_output=True,
        cwd=place,
    )
    started = [*as_owner, programs / "postgres", "-D", data, "-p", str(port), "-k", place, "-h", "127.0.0.1"]

    def start():
        if (lock := data / "postmaster.pid").exists():  # of one that was killed: until it is gone a second is refused
            gone = Path("/proc") / lock.read_text().split()[0]
            while gone.exists():
                threading.Event().wait(0.1)
        with (place.with_suffix(".log")).open("a") as log:
            server = subprocess.Popen(started, cwd=place, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 60
        ready = [programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
        while subprocess.run(ready, capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, place.with_suffix(".log").read_text()
            threading.Event().wait(0.1)
        return server

    yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/postgres", start
    shutil.rmtree(place)
    place.with_suffix(".log").unlink()


@pytest.mark.slow
def test_postgresql_dies_and_restarts_under_the_server(server, postgres, driver, monkeypatch, found):
    monkeypatch.setattr(background, "_INTERVAL", 0.1)
    one, two, three, _ = driver.trials
    server.store, start = postgres
    notes, database = Notes(), start()
    try:
        with server:
            tracker = Tracker(SweepState(driver.folder, driver.plan), server.uri, "toys", say=notes)
            run(driver, one, 3)
            run(driver, two, 2, end=False)
            assert tracker.sync() == SyncReport(trials=2, rows=5)
            os.killpg(database.pid, signal.SIGKILL)
            database.wait()
            tracker.start()
            run(driver, two, 5, first=3)
            run(driver, three, 2)
            tracker.notify()
            assert notes.went_down.wait(90)
            since = time.time()
            database = start()
            assert notes.came_back.wait(120), notes.said
            seconds = time.time() - since
            assert tracker.stop().error is None
            stored = contents(server.uri)
        assert stored[one.key] == ("FINISHED", [1, 2, 3])
        assert stored[two.key] == ("FINISHED", [1, 2, 3, 4, 5])
        assert stored[three.key] == ("FINISHED", [1, 2])
        row = {"finished": 3, "repeated": 0, "lost": 0, "doubled": 0, "seconds": round(seconds, 1)}
        found("kill -9 of PostgreSQL under the MLflow server (three of our own trials' records, no Ray)", row)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(database.pid, signal.SIGKILL)
        database.wait()
