"""A cluster whose nodes lack this project: nodes are checked before the start, late ones when a trial starts."""

import os
import signal
import time
from pathlib import Path

import pytest
from helpers.clusters import BARE, PROJECT, Cluster
from helpers.sweeps import SweepProcess, sweep_file

from tune_dml.record.results import results_of

pytestmark = pytest.mark.slow

NO_PROJECT = "the driver has: no tune-dml. `tune-dml submit` brings"
WITHOUT_PANDAS = """
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

sys.meta_path.insert(0, Missing())
"""


def ends_on_a_late_node(cluster, cpus, flags, within=()):
    """Run a sweep that loses its node and gets one that lacks something; return its trials' reasons."""
    cluster.add_worker(cpus=cpus, has_project=True)
    cluster.wait_for(2)
    environment = {**cluster.environment, "PYTHONPATH": str(PROJECT)}
    words = ["sweep", sweep_file((0.1, 0.9), steps=4000, every=500), "--name", "toy", *flags]
    sweep = SweepProcess(words, Path.cwd() / "sweeps" / "toy", environment)
    sweep.wait_until(lambda: sweep.events("started"))
    cluster.add_worker(cpus=cpus, within=within)
    cluster.wait_for(3)
    for pid in cluster.processes(1):
        os.kill(pid, signal.SIGKILL)
    sweep.end()
    return sweep, [trial.reason for trial in results_of(sweep.folder).trials]


def say_so(reasons, lacks=NO_PROJECT):
    """Check that both trials name the missing package and the remedy."""
    return [f"does not have what {lacks}" in reason for reason in reasons] == [True, True]


def test_nodes_without_the_project_are_named_before_and_during_a_sweep(tmp_path, cache_dir):
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


def test_workers_on_a_late_node_without_the_project_fail_with_a_reason(tmp_path, cache_dir):
    with Cluster(tmp_path / "cluster", workers=0, head_has_project=True) as cluster:
        flags = ["--workers", "2", "--max-concurrent", "1", "--address", cluster.address, "--cache-dir", cache_dir]
        _, reasons = ends_on_a_late_node(cluster, 2, flags)
    assert say_so(reasons)


def test_a_late_node_without_ray_tunes_imports_is_named(tmp_path, cache_dir):
    """No trial process can start there to report it."""
    (tmp_path / "lacks").mkdir()
    (tmp_path / "lacks" / "sitecustomize.py").write_text(BARE + WITHOUT_PANDAS)
    with Cluster(tmp_path / "cluster", workers=0) as cluster:
        flags = ["--address", cluster.address, "--cache-dir", cache_dir]
        within = ["env", f"PYTHONPATH={tmp_path / 'lacks'}"]
        _, reasons = ends_on_a_late_node(cluster, 1, flags, within)
        assert say_so(reasons, "the driver has: No module named 'pandas'. Install it there.")
        refused = cluster.run("resume", "toy", "--retry-failed", *flags, cwd=tmp_path)
        assert refused.returncode == 1
        assert f"{os.uname().nodename} has no pandas. Install the project's dependencies on every node." in " ".join(
            refused.stdout.split()
        )
