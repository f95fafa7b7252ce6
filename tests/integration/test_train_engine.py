"""Engine `train`: a trial as a Ray Train TorchTrainer with two gloo workers gives the losses of one worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainables.context import FolderContext
from trainables.training import train
from tune_dml.ledger import read_history
from tune_dml.results import results_of

SWEEP = """
method: grid
parameters: {regularizer.rho: {values: [0.1]}}
dataset: digits
seeds: 1
fixed:
  regularizer.name: sec
  regularizer.eta: 0.5
  training.precision: float64
  training.steps: 12
  training.eval_every: 6
"""


@pytest.mark.timeout(300)
def test_two_workers_give_the_losses_of_one(cache_dir):
    Path("one_cell.yaml").write_text(SWEEP)
    command = [sys.executable, "-m", "tune_dml.cli", "sweep", "one_cell.yaml", "--workers", "2"]
    command += ["--name", "two", "--cache-dir", str(cache_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = results_of(Path("sweeps/two"))
    (trial,) = results.trials
    assert trial.status == "finished"
    two = read_history(results.folder, trial.key)

    one = []
    context = FolderContext(Path("alone"), torch.device("cpu"), sink=one.append)
    train(results.plan.cells[0].config(0), context, cache_dir=cache_dir)

    assert [row["step"] for row in one] == [row["step"] for row in two] == [6, 12]
    for alone, shared in zip(one, two, strict=True):
        for name in alone.keys() - {"time"}:
            if not name.startswith("time/"):
                assert shared[name] == pytest.approx(alone[name], rel=1e-10, abs=1e-10), name
