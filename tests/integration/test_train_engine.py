"""Engine `train`: a trial as a Ray Train TorchTrainer with two gloo workers gives the losses of one worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
    rows = {}
    for workers in (1, 2):
        name = f"workers{workers}"
        command = [
            sys.executable,
            "-m",
            "tune_dml.cli",
            "sweep",
            "one_cell.yaml",
            "--workers",
            workers,
            "--name",
            name,
        ]
        command = [*map(str, command), "--cache-dir", str(cache_dir)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        folder = Path("sweeps") / name
        results = results_of(folder)
        assert [trial.status for trial in results.trials] == ["finished"]
        rows[workers] = read_history(folder, results.trials[0].key)
    assert [row["step"] for row in rows[1]] == [row["step"] for row in rows[2]] == [6, 12]
    for one, two in zip(rows[1], rows[2], strict=True):
        for name in one.keys() - {"time"}:
            if not name.startswith("time/"):
                assert two[name] == pytest.approx(one[name], rel=1e-10, abs=1e-10), name
