"""A driver that joins nodes which do not have this project: they are asked before, and one that comes later says so itself."""

import os
import signal
import time
from pathlib import Path

import pytest
from helpers.clusters import PROJECT, Cluster
from helpers.sweeps import Running, sweep_file

from tune_dml.record.results import results_of

pytestmark = pytest.mark.slow


def ends_on_a_late_node(cluster, cpus, flags):
    """A sweep that loses the node it began on and finds one without the project, and its trials' reasons."""
    cluster.add_worker(cpus=cpus, has_project=True)
    cluster.wait_for(2)
    environment = {**cluster.environment, "PYTHONPATH": str(PROJECT)}
    words = ["sweep", sweep_file((0.1, 0.9), steps=4000, every=500), "--name", "toy", *flags]
    sweep = Running(words, Path.cwd() / "sweeps" / "toy", environment)
    sweep.wait_until(lambda: sweep.events("started"))
    cluster.add_worker(cpus=cpus)
    cluster.wait_for(3)
    for pid in cluster.processes(1):
        os.kill(pid, signal.SIGKILL)
    sweep.end()
    return sweep, [trial.reason for trial in results_of(sweep.folder).trials]


def say_so(reasons):
    """Both trials name what the node lacks, and what to do."""
    said = "does not have what the driver has: no tune-dml. `tune-dml submit` brings"
    return [said in reason for reason in reasons] == [True, True]


def test_nodes_without_the_project_are_named_before_and_while_a_sweep_runs(tmp_path, monkeypatch, cache_dir):
    monkeypatch.chdir(tmp_path)
    with Cluster(tmp_path / "cluster", workers=0) as cluster:
        flags = ["--address", cluster.address, "--cache-dir", cache_dir]
        sweep, reasons = ends_on_a_late_node(cluster, 1, flags)
        assert say_so(reasons)
        before = (sweep.folder / "ledger.jsonl").read_bytes()
        began = time.monotonic()
        for words in (["resume", "toy", "--retry-failed"], ["sweep", "toy.yaml", "--name", "other"]):
            refused = cluster.run(*words, *flags, cwd=tmp_path)
            assert refused.returncode == 1
            assert (
                f"--address: every node that runs trials must have what the driver has: {os.uname().nodename} has no tune-dml"
                in refused.stdout
            )
            assert f"`tune-dml submit {cluster.address} -- ...` brings the project" in refused.stdout
        assert time.monotonic() - began < 60
        assert (sweep.folder / "ledger.jsonl").read_bytes() == before
        assert not (tmp_path / "sweeps" / "other").exists()


def test_workers_that_come_to_a_late_node_without_the_project_say_so(tmp_path, monkeypatch, cache_dir):
    monkeypatch.chdir(tmp_path)
    with Cluster(tmp_path / "cluster", workers=0, head_has_project=True) as cluster:
        flags = ["--workers", "2", "--max-concurrent", "1", "--address", cluster.address, "--cache-dir", cache_dir]
        _, reasons = ends_on_a_late_node(cluster, 2, flags)
    assert say_so(reasons)
