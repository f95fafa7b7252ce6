"""Trials that share a GPU of a cluster: what they gain is measured there, on the GPU that its node offers."""

import pytest
from helpers.clusters import Cluster
from helpers.sweeps import sweep_file

from tune_dml.record.results import results_of


@pytest.mark.slow
def test_a_share_is_measured_on_a_gpu_of_the_cluster(tmp_path, monkeypatch, cache_dir):
    monkeypatch.chdir(tmp_path)
    with Cluster(tmp_path / "cluster", workers=0) as cluster:
        cluster.add_worker(cpus=2, gpus=1, has_project=True)
        cluster.wait_for(2)
        words = ["sweep", sweep_file((0.1, 0.9), steps=40), "--name", "toy", "--gpus-per-worker", "0.5"]
        done = cluster.run(*words, "--address", cluster.address, "--cache-dir", cache_dir, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "2 trials share a GPU" in done.stdout
    assert results_of(tmp_path / "sweeps" / "toy").count("finished") == 2
