"""A tracking server that goes away during a sweep and comes back: nothing is lost, nothing is doubled, nobody waits."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tune_dml.planning.cells import Cell
from tune_dml.planning.plan import Plan, Search
from tune_dml.record.ledger import Ledger, trial_folder
from tune_dml.record.state import SweepState
from tune_dml.space import Grid, Knob, Space
from tune_dml.tracking import SyncReport, Tracker, background, check

METRIC = "val/recall_at_1"


class Server:
    """`mlflow server` on the loopback with a SQLite store; `with` starts it, and it can be started again."""

    def __init__(self, folder):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--backend-store-uri", f"sqlite:///{self.folder / 'mlflow.db'}"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        environment = os.environ | {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        with (self.folder / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self._wait_until_healthy()
        return self

    def __exit__(self, kind, error, trace):
        os.killpg(self.process.pid, signal.SIGKILL)  # its workers too; as hard as an outage can be
        self.process.wait()

    def _wait_until_healthy(self):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=1) as answer:  # noqa: S310
                    if answer.status == 200:
                        return
            except OSError:
                threading.Event().wait(0.1)  # a poll's pause, not a guess of how long a start takes
        raise AssertionError((self.folder / "server.log").read_text())


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    return Server(folder)


def make_plan():
    space = Space("toy", "Toy", "Does it matter?", None, (Knob("loss.gamma", Grid((0.1, 1.0))),), {})
    cells = tuple(Cell(i, f"γ={i}", {"loss.gamma": i}, {"loss.gamma": i, "note": ""}, f"d{i}") for i in range(2))
    return Plan("toy", space, "glyphs", (0, 1), cells, Search(), {"data.name": "glyphs"}, {}, "data0")


def run(ledger, trial, steps, *, end=True):
    if steps.start == 1:
        ledger.append("started", trial.key, host="node1")
    for step in steps:
        ledger.report(trial.key, {"step": step, "time": 1.7e9 + step, METRIC: float(step), "train/loss": float("nan")})
    if end:
        left = trial_folder(ledger.sweep, trial.key) / "evidence" / "sheet.jpg"
        left.parent.mkdir(parents=True)
        left.write_text(trial.key)
        body = {"status": "finished", "reason": "", "step": steps[-1], "metrics": {METRIC: float(steps[-1])}}
        ledger.append("ended", trial.key, **body)


def contents(uri):
    """Trial key -> (status, steps of the metric), as a reader of the server sees it."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("toys")
    runs = client.search_runs([experiment.experiment_id])
    found: dict[str, Any] = {}
    for one in runs:
        key = one.data.tags.get("tune_dml.trial_key", "parent").rpartition("-")[2]
        assert key not in found, "doubled"
        history = client.get_metric_history(one.info.run_id, METRIC) if one.data.metrics else []
        found[key] = (one.info.status, sorted(point.step for point in history))
    return found


def pictures(uri, folder):
    """Trial key -> what its run has under `evidence`, path -> text."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    runs = json.loads((folder / "mlflow.json").read_text())["runs"]
    return {
        key: {
            entry.path: Path(client.download_artifacts(run_id, entry.path)).read_text()
            for entry in client.list_artifacts(run_id, "evidence")
        }
        for key, run_id in runs.items()
        if key != "parent"
    }


@pytest.mark.slow
def test_an_outage_during_a_sweep_loses_nothing_and_doubles_nothing(tmp_path, server, capfd, monkeypatch):
    monkeypatch.setattr(background, "INTERVAL", 0.1)
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # of this reader's downloads
    plan, folder, said = make_plan(), tmp_path / "sweeps" / "toy", list[str]()
    one, two, three, four = plan.trials()
    went_down, came_back = threading.Event(), threading.Event()

    def say(text):
        said.append(text)
        (came_back if "again" in text else went_down).set()

    with Ledger(folder) as ledger:
        plan.save(folder / "plan.json")
        ledger.append("session", provenance={"git": {"commit": "c0ffee"}})
        tracker = Tracker(SweepState(folder, plan), server.uri, "toys", say=say)
        with server:
            assert check(server.uri) == []
            run(ledger, one, range(1, 4))
            run(ledger, two, range(1, 3), end=False)
            assert tracker.sync() == SyncReport(trials=2, rows=5)
            tracker.start()
        run(ledger, two, range(3, 6))  # the server is gone
        run(ledger, three, range(1, 3))
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
            run(ledger, four, range(1, 2))
            assert tracker.stop().error is None
            finished = {
                **{one.key: ("FINISHED", [1, 2, 3]), two.key: ("FINISHED", [1, 2, 3, 4, 5])},
                **{three.key: ("FINISHED", [1, 2]), four.key: ("FINISHED", [1]), "parent": ("FINISHED", [])},
            }
            assert contents(server.uri) == finished
            (folder / "mlflow.json").unlink()  # a replay of everything, over the wire
            assert Tracker(SweepState(folder, plan), server.uri, "toys").stop().error is None
            assert contents(server.uri) == finished
            assert pictures(server.uri, folder) == {t.key: {"evidence/sheet.jpg": t.key} for t in plan.trials()}
            text = tmp_path / "index.html"
            for body in ("old", "new"):
                text.write_text(body)
                assert tracker.attach([text], "report") is None
            runs = json.loads((folder / "mlflow.json").read_text())["runs"]
            address = f"{server.uri}/get-artifact?path=report/index.html&run_uuid={runs['parent']}"
            with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310
                assert answer.read() == b"new"
    assert len(said) == 2
    assert capfd.readouterr() == ("", "")  # the user's terminal stays clean


def test_a_sweep_that_never_sees_its_server_ends_and_says_what_waits(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    plan, folder = make_plan(), tmp_path / "toy"
    with Ledger(folder) as ledger:
        ledger.append("session")
        tracker = Tracker(SweepState(folder, plan), f"http://127.0.0.1:{port}", "toys")
        tracker.start()
        for trial in plan.trials():
            run(ledger, trial, range(1, 2))
            tracker.notify()
        report = tracker.stop()
    assert report.waiting == 4
    assert "the server must answer" in str(report.error)
