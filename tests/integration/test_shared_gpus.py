"""The GPUs of a cluster, in name alone: a worker gets one, or a share whose gain is measured on the node that offers it."""

import pytest
from helpers.clusters import Cluster
from helpers.sweeps import sweep_file

from tune_dml.record.ledger import read_events
from tune_dml.record.results import results_of


@pytest.fixture
def run(tmp_path, monkeypatch, cache_dir):
    """A sweep on a cluster whose one worker has two CPUs and a GPU; what it said."""
    monkeypatch.chdir(tmp_path)
    with Cluster(tmp_path / "cluster", workers=0) as cluster:
        cluster.add_worker(cpus=2, gpus=1, has_project=True)
        cluster.wait_for(2)

        def sweep(*flags):
            words = ["sweep", sweep_file((0.1, 0.9), steps=40), "--name", "toy", "--cache-dir", cache_dir, *flags]
            done = cluster.run(*words, "--address", cluster.address, cwd=tmp_path)
            assert done.returncode == 0, done.stdout
            assert results_of(tmp_path / "sweeps" / "toy").count("finished") == 2
            return done.stdout

        yield sweep


@pytest.mark.slow
def test_a_worker_gets_a_gpu_of_the_cluster_although_this_machine_has_none(run, tmp_path):
    said = run()
    events = read_events(tmp_path / "sweeps" / "toy")
    (session,) = [event for event in events if event.kind == "session"]
    assert session.body()["resources"]["gpus_per_worker"] == 1.0
    assert [event.kind for event in events if event.kind in {"started", "ended"}] == ["started", "ended"] * 2
    assert "was given a GPU, but torch finds no CUDA device there" in said


@pytest.mark.slow
def test_a_share_is_measured_on_a_gpu_of_the_cluster(run):
    assert "2 trials share a GPU" in run("--gpus-per-worker", "0.5")
