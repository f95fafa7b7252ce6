"""`ray drain-node`: nodes are taken away with notice, one after another, during one trial of engine `train`."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from equivalence.processes import run_ranks
from helpers.clusters import PROJECT, Cluster, command_of
from helpers.sweeps import SweepProcess

from trainables import distributed
from trainables.context import TrialContext
from trainables.training import train
from tune_dml.record.ledger import read_history
from tune_dml.record.results import results_of

SWEEP = """
method: grid
parameters: {regularizer.rho: {values: [0.5, 0.9]}}
dataset: digits
seeds: 1
fixed:
  regularizer.name: sec
  regularizer.eta: 0.5
  training.precision: float64
  training.steps: 1500
  training.eval_every: 50
"""
NOTICE = 2.0


def take_away(cluster, number):
    """Drain a node; at its end Ray Train abandons the process group of workers that still train there."""
    node = command_of(cluster.raylet(number)).split("--node_id=")[1].split()[0]
    words = ["ray", "drain-node", "--address", cluster.address, "--node-id", node]
    words += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a spot machine ends"]
    words += ["--deadline-remaining-seconds", f"{NOTICE:g}"]
    subprocess.run(words, env=cluster.environment, check=True, capture_output=True)
    time.sleep(NOTICE + 1.5)
    for pid in cluster.processes(number):
        os.kill(pid, signal.SIGKILL)
    return time.time()


def train_in_peace(rank, folder, config, cache_dir):
    """Train with as many workers, undisturbed: with one worker, rounding differs after 1,500 steps."""
    rows = []
    with distributed.process_group(rank=rank, world_size=2, init_method=f"file://{folder}/meet"):
        context = TrialContext(folder / "peace", torch.device("cpu"), rank=rank, world_size=2, sink=rows.append)
        train(config, context, cache_dir=cache_dir)
    if rank == 0:
        (folder / "peace.json").write_text(json.dumps(rows))


def without_clock(row):
    return {name: value for name, value in row.items() if "time" not in name and "second" not in name}


@pytest.mark.slow
def test_three_drained_nodes_do_not_change_a_trial(tmp_path, cache_dir):
    Path("toy.yaml").write_text(SWEEP)
    with Cluster(tmp_path / "cluster", workers=0, head_has_project=True) as cluster:
        cluster.add_worker(cpus=2, has_project=True)
        cluster.wait_for(2)
        words = ["sweep", "toy.yaml", "--workers", 2, "--max-concurrent", 1]  # the other trial must not end first
        words += ["--address", cluster.address, "--cache-dir", cache_dir]
        sweep = SweepProcess(words, tmp_path / "sweeps" / "toy", {**cluster.environment, "PYTHONPATH": str(PROJECT)})
        since = 0.0

        def trains():
            return any(file.stat().st_mtime > since for file in sweep.folder.glob("trials/*/checkpoint*.pt"))

        for number in (1, 2, 3):
            sweep.wait_until(trains)
            cluster.add_worker(cpus=2, has_project=True)
            cluster.wait_for(3)
            since = take_away(cluster, number)
        sweep.wait_until(lambda: sweep.events("ended"))
        assert not sweep.events("retry")
        sweep.stop()  # its other trial is of no interest
    trial = results_of(sweep.folder).trials[0]
    assert trial.status == "finished", trial.reason
    run_ranks(train_in_peace, 2, tmp_path, trial.cell.config, cache_dir)
    rows, peace = read_history(sweep.folder, trial.key), json.loads((tmp_path / "peace.json").read_text())
    assert [row["step"] for row in rows] == [row["step"] for row in peace]
    for row, other in zip(rows, peace, strict=True):
        assert without_clock(row) == without_clock(other)
