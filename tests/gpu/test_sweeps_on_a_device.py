"""Sweeps whose trials have or share a CUDA device, with Ray and MLflow."""

import os
import subprocess
import sys

import pytest
import torch
from helpers.cuda import DEVICE, ON_DEVICE, write_pictures
from helpers.packages import write_package

pytest.importorskip("ray")
from helpers.sweeps import sweep_file

from tune_dml.record.results import results_of

pytestmark = [*ON_DEVICE, pytest.mark.timeout(600)]
TABLE = '''
"""A loss that asks a table of four for an entry that may not be there."""

from typing import Annotated

import torch
from pydantic import Field

from trainables.losses.base import Loss


class Table(Loss):
    name = "table"
    citation = "A. Author, A Toy, 2020"
    section = "1"

    def __init__(self, *, index: Annotated[int, Field(ge=0, description="index")] = 0):
        super().__init__()
        self.index = index

    def value(self, embeddings, labels):
        weights = torch.ones(4, device=embeddings.device)[torch.full_like(labels, self.index)]
        return (embeddings.square().sum(1) * weights).mean()
'''
SICK = """
method: grid
parameters: {loss.index: {values: [9, 0, 1]}}
dataset: digits
seeds: 1
fixed: {loss.name: table, training.steps: 60, training.eval_every: 20}
"""
LARGE = """
method: grid
parameters: {loss.margin: {values: [0.1, 0.2]}}
dataset: image_folder
seeds: 1
fixed: {loss.name: triplet, data.size: 32, model.backbone: resnet18, model.freeze_bn: true,
  augment.name: crop_flip, augment.crop: 512, augment.resize: 512,
  batch.batch_size: 200, batch.sampler: random, training.steps: 2, training.eval_every: 2}
"""


def tune_dml(*words):
    """Run a command and return its exit status and output."""
    done = subprocess.run(
        [sys.executable, "-m", "tune_dml.cli", *words], capture_output=True, text=True, check=False, timeout=500
    )
    return done.returncode, done.stdout + done.stderr


def statuses(sweep):
    found = results_of(sweep)
    return {status: found.count(status) for status in ("finished", "failed") if found.count(status)}


def test_trials_use_the_device_and_record_its_name(tmp_path):
    status, said = tune_dml("sweep", sweep_file(steps=60), "--name", "one")
    assert status == 0, said
    assert statuses(tmp_path / "sweeps" / "one") == {"finished": 4}
    if DEVICE.type == "cuda":
        kept = "".join(path.read_text() for path in (tmp_path / "sweeps" / "one").rglob("*.json*"))
        assert torch.cuda.get_device_name() in kept


def test_small_trials_share_a_device_and_the_gain_is_reported(tmp_path):
    status, said = tune_dml("sweep", sweep_file(steps=60), "--name", "four", "--gpus-per-worker", "0.25")
    assert status == 0, said
    assert "4 trials share a GPU" in said
    assert statuses(tmp_path / "sweeps" / "four") == {"finished": 4}


def test_a_batch_too_large_for_the_device_is_reported_and_trains_in_parts(tmp_path):
    """A trial that needs more memory than the GPU has, and then the same batch, fewer pictures at a time."""
    (tmp_path / "pictures").mkdir()
    write_pictures(tmp_path / "pictures", each=60)
    (tmp_path / "large.yaml").write_text(LARGE)
    words = ("sweep", "large.yaml", "--name", "large", "--data-root", "pictures")
    status, said = tune_dml(*words, "--gpus-per-worker", "0.5")
    assert status == 1, said
    assert "out of memory" in said
    assert "--micro-batch" in said
    assert not (tmp_path / "sweeps" / "large").exists()
    status, said = tune_dml(*words, "--gpus-per-worker", "1")
    assert statuses(tmp_path / "sweeps" / "large") == {"failed": 2}, said
    assert "out of memory" in said
    status, said = tune_dml("resume", "large", "--retry-failed", "--micro-batch", "4")
    assert status == 0, said
    assert statuses(tmp_path / "sweeps" / "large") == {"finished": 2}
    assert {trial.micro_batch for trial in results_of(tmp_path / "sweeps" / "large").trials} == {4}


@pytest.mark.parametrize("engine", ["local", "train"])
def test_a_trial_that_breaks_the_device_fails_alone(tmp_path, monkeypatch, engine):
    """Every later call of its process fails, and torch ends the process when pinned memory is freed."""
    write_package(tmp_path, "table = table_loss:Table", table_loss=TABLE)
    (tmp_path / "sick.yaml").write_text(SICK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    status, said = tune_dml("sweep", "sick.yaml", "--name", "sick", "--engine", engine)
    assert status == 3, said
    assert statuses(tmp_path / "sweeps" / "sick") == {"finished": 2, "failed": 1}
    assert "retrying" not in said
    (failed,) = (trial for trial in results_of(tmp_path / "sweeps" / "sick").trials if trial.status == "failed")
    assert "device-side assert" in failed.reason
    assert "CUDA_LAUNCH_BLOCKING" in failed.reason


def test_a_trial_without_requested_gpu_gets_none(tmp_path):
    status, said = tune_dml(
        "sweep", sweep_file(steps=60), "--name", "none", "--set", "training.precision=fp16", "--gpus-per-worker", "0"
    )
    assert status == 3, said
    assert "fp16 needs a CUDA device" in said
