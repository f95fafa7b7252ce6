"""`tune-dml submit` against a real cluster: a head without CPU, two raylets in other folders, none with a checkout."""

import json

import pytest
from helpers.clusters import Cluster

from tune_dml.record.ledger import read_events
from tune_dml.record.results import results_of

SWEEP = """
method: grid
parameters: {regularizer.rho: {values: [0.01, 0.5]}}
dataset: digits
seeds: 2
fixed: {regularizer.name: sec, regularizer.eta: 0.5, training.steps: 40, training.eval_every: 20}
"""


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.mark.slow
def test_a_sweep_runs_on_the_cluster_and_answers_from_there(cluster, tmp_path):
    storage, here = tmp_path / "shared", tmp_path / "laptop"
    here.mkdir()
    (here / "mine.yaml").write_text(SWEEP)

    def run(*words, **options):
        return cluster.run(*words, cwd=here, **options)

    flags = ("--storage", storage, "--name", "there", "--cache-dir", tmp_path / "cache", "--gpu-hours", "2")
    asked = [run("submit", cluster.http, "--json", "--", "sweep", "mine.yaml", *flags) for _ in range(2)]
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
    assert len({event.body["host"] for event in read_events(storage / "there") if event.kind == "started"}) >= 1

    status = run("submit", cluster.http, "--", "status", "there", "--storage", storage)
    assert status.returncode == 0, status.stdout
    assert "4 of 4 trials finished" in status.stdout
    report = run("submit", cluster.http, "--", "report", "there", "--storage", storage)
    assert report.returncode == 0, report.stdout
    assert (storage / "there" / "report" / "report.html").exists()
    unknown = run("submit", cluster.http, "--", "status", "nothing", "--storage", storage)
    assert unknown.returncode == 1
    assert "no sweep of this name" in unknown.stdout
