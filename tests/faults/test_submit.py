"""`tune-dml submit` to a real cluster: a head without CPU and two raylets in other folders, without a checkout."""

import json
import os
import signal
import time
from functools import partial

import pytest
from helpers.clusters import Cluster
from helpers.stored_runs import StoredRuns
from helpers.sweeps import sweep_file

from tune_dml.record.ledger import read_events, read_history
from tune_dml.record.results import results_of


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A laptop's folder as the working directory."""
    place = tmp_path / "laptop"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.mark.slow
def test_a_sweep_runs_on_the_cluster_and_reports_from_it(cluster, here, tmp_path):
    storage, file, run = tmp_path / "shared", sweep_file((0.01, 0.5), seeds=2, steps=40), cluster.run
    flags = ("--storage", storage, "--name", "there", "--cache-dir", tmp_path / "cache", "--gpu-hours", "2")
    asked = [run("submit", cluster.http, "--json", "--", "sweep", file, *flags) for _ in range(2)]
    first, second = (json.loads(done.stdout) for done in asked)
    assert first["job"] == second["job"] == "there@1"
    assert first["new"]
    assert not second["new"]
    assert 0 < first["upload"]["bytes"] < 5_000_000
    assert first["upload"]["ceiling"].startswith("Ceiling: 2 worker-hours")

    followed = run("logs", cluster.http, "there", "--follow")
    assert followed.returncode == 0, followed.stdout
    assert "4/4 done" in followed.stdout
    results = results_of(storage / "there")
    assert {trial.status for trial in results.trials} == {"finished"}
    stored = StoredRuns(
        f"sqlite:///{storage}/mlflow.db", "there"
    )  # which the job's own folder would have taken with it
    assert set(stored.by_key) == {trial.key for trial in results.trials}

    asked = ("submit", cluster.http, "--", "doctor", "--json", "--storage", storage, "--cache-dir", tmp_path / "cache")
    for pictures, code, told in ((here, 0, ": on 2 that run trials"), (tmp_path / "nowhere", 1, " is not on ")):
        seen = run(*asked, "--data-root", pictures)
        assert seen.returncode == code, seen.stdout
        found = {finding["subject"]: finding["found"] for finding in json.loads(seen.stdout)["findings"]}
        assert found["shared storage"] == f"{storage}: written on one node, read on 3"
        assert found["pictures"].startswith(f"{pictures}{told}")

    status = run("submit", cluster.http, "--", "status", "there", "--storage", storage)
    assert status.returncode == 0, status.stdout
    assert "4 of 4 trials finished" in status.stdout
    report = run("submit", cluster.http, "--", "report", "there", "--storage", storage)
    assert report.returncode == 0, report.stdout
    assert (storage / "there" / "report" / "report.html").exists()
    unknown = run("submit", cluster.http, "--", "status", "nothing", "--storage", storage)
    assert unknown.returncode == 1
    assert "unknown sweep" in unknown.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("here")
def test_a_node_dies_and_a_cancelled_sweep_is_resumed(cluster, tmp_path, found):
    storage, folder = tmp_path / "shared", tmp_path / "shared" / "there"
    file, run = sweep_file((0.01, 0.3, 0.5, 0.9), seeds=2, steps=200), partial(cluster.run, timeout=400)

    def ended():
        return [event for event in read_events(folder) if event.kind == "ended"]

    def wait_until(condition):
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, run("logs", cluster.http, "there").stdout
            time.sleep(0.2)

    flags = ("--storage", storage, "--cache-dir", tmp_path / "cache")
    began = run("submit", cluster.http, "--", "sweep", file, "--name", "there", *flags)
    assert began.returncode == 0, began.stdout
    assert began.stdout.index("Uploads") < began.stdout.index("Ceiling") < began.stdout.index("there@1 submitted")
    wait_until(lambda: len(ended()) >= 2)
    for pid in cluster.processes(2):
        os.kill(pid, signal.SIGKILL)
    since, known = time.time(), len(ended())
    wait_until(lambda: len(ended()) >= known + 2)
    stopped = run("cancel", cluster.http, "there")
    assert "there@1: stopped" in stopped.stdout
    again = run("submit", cluster.http, "--json", "--", "resume", "there", *flags)
    assert json.loads(again.stdout)["job"] == "there@2"
    followed = run("logs", cluster.http, "there", "--follow")
    assert followed.returncode == 0, followed.stdout

    results, events = results_of(folder), read_events(folder)
    assert {trial.status for trial in results.trials} == {"finished"}
    for trial in results.trials:
        steps = [row["step"] for row in read_history(folder, trial.key)]
        assert steps == sorted({*range(20, 201, 20), *range(25, 201, 25)})
    begun = [event.key for event in events if event.kind == "started"]
    ends = [event.key for event in events if event.kind == "ended"]
    assert len(ends) == len(set(ends)) == 8
    alive = [event.time for event in events if event.time > since and event.kind in {"started", "ended"}]
    row = {
        "finished": len(ends),
        "lost": 0,
        "doubled": 0,
        "repeated": len(begun) - 8,
        "seconds": round(min(alive) - since, 1),
    }
    found("kill -9 of a worker node of three, then cancel, then resume (eight trials, submitted)", row)
