"""Engine `train`: a trial as a Ray Train TorchTrainer with two gloo workers gives the losses of one worker."""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from helpers.toys import Driver

import tune_dml
from trainables.context import EVIDENCE, FolderContext
from trainables.evidence.record import Evidence
from trainables.training import train
from tune_dml.planning.checks import prepare
from tune_dml.planning.request import Request, Resources
from tune_dml.record.ledger import read_history
from tune_dml.record.results import results_of

SWEEP = """
method: grid
parameters: {regularizer.rho: {values: [0.1]}}
baseline: {label: no SEC, settings: {regularizer.name: none}}
dataset: digits
seeds: 1
fixed:
  regularizer.name: sec
  regularizer.eta: 0.5
  training.precision: float64
  training.steps: 12
  training.eval_every: 6
"""


@pytest.mark.usefixtures("ray_session")
def test_two_workers_give_the_losses_of_one(cache_dir, new_database):
    new_database(Path.cwd())
    Path("one_value.yaml").write_text(SWEEP)
    plan = prepare(Request("one_value.yaml"), cache_dir=cache_dir).plan
    driver = Driver(Path("sweeps/one_value"), plan)
    driver.event("session", provenance={}, resources=asdict(Resources(workers=2, engine="train")))
    driver.run(plan.trials()[0])  # the baseline is on record: a start of two workers takes long
    done = tune_dml.resume_sweep("one_value", cache_dir=cache_dir)
    assert_as_alone(done.results, cache_dir)


@pytest.mark.slow
def test_the_command_line_starts_what_two_workers_need(cache_dir):
    Path("one_value.yaml").write_text(SWEEP)
    command = [sys.executable, "-m", "tune_dml.cli", "sweep", "one_value.yaml", "--workers", "2"]
    command += ["--name", "two", "--cache-dir", str(cache_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_as_alone(results_of(Path("sweeps/two")), cache_dir)


def assert_as_alone(results, cache_dir):
    """A trial has the rows of the same trial trained here, by one worker, without Ray."""
    trial = next(trial for trial in results.trials if not trial.cell.baseline)
    assert trial.status == "finished", trial.reason
    two = read_history(results.folder, trial.key)
    one = []
    context = FolderContext(Path("alone"), torch.device("cpu"), sink=one.append)
    train(trial.cell.config, context, cache_dir=cache_dir)

    assert [row["step"] for row in one] == [row["step"] for row in two] == [6, 12]
    for alone, shared in zip(one, two, strict=True):
        for name in alone.keys() - {"time"}:
            if not name.startswith("time/"):
                assert shared[name] == pytest.approx(alone[name], rel=1e-10, abs=1e-10), name
    shown, alone = results.evidence(trial.key), Evidence.read(Path("alone") / EVIDENCE)
    for shared, single in zip(sum(shown.rows, ()), sum(alone.rows, ()), strict=True):
        assert shared.similarity == pytest.approx(single.similarity, abs=1e-9)
        assert replace(shared, similarity=None) == replace(single, similarity=None)
    assert shown.norms.counts == alone.norms.counts
