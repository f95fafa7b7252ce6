"""A trial that breaks its GPU ends its process; the next trial starts in another and does not fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.packages import write_package

from tune_dml.record.results import results_of

SICK = '''
"""As an index out of range on a GPU: from then on every call fails in this process, and what gives memory back ends it."""

import os
import sys
from typing import Annotated

from pydantic import Field

from trainables.losses.base import Loss
from tune_dml.running.trials import trial


WORDS = "CUDA error: device-side assert triggered"
IN_TRIAL = "default_worker" in sys.argv[0]  # plans take a step, too


def sick(device):
    return RuntimeError(WORDS)


class Pinned:
    """Memory that torch gives back to the device."""

    def __del__(self):
        if getattr(trial, "cuda_error", None) is sick:
            os.abort()


class Sick(Loss):
    name = "sick"
    citation = "A. Author, A Toy, 2020"
    section = "1"

    def __init__(self, *, index: Annotated[int, Field(ge=0, description="index")] = 0):
        super().__init__()
        self.index = index

    def value(self, embeddings, labels):
        pinned = Pinned()
        if IN_TRIAL and self.index == 9 or getattr(trial, "cuda_error", None) is sick:
            trial.cuda_error = sick
            raise RuntimeError(WORDS)
        return embeddings.square().mean() + 0 * len(vars(pinned))
'''
SWEEP = """
method: grid
parameters: {loss.index: {values: [9, 0, 1]}}
dataset: digits
seeds: 1
fixed: {loss.name: sick, training.steps: 4, training.eval_every: 2}
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "train"])
def test_trials_after_a_spent_process_finish(tmp_path, cache_dir, engine):
    write_package(tmp_path, "sick = sick_loss:Sick", sick_loss=SICK)
    Path("sick.yaml").write_text(SWEEP)
    command = [sys.executable, "-m", "tune_dml.cli", "sweep", "sick.yaml", "--name", "sick", "--engine", engine]
    command += ["--max-concurrent", "1", "--cache-dir", str(cache_dir)]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH"), *sys.path])])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 3, done.stdout + done.stderr
    results = results_of(tmp_path / "sweeps" / "sick")
    assert [results.count(status) for status in ("failed", "finished")] == [1, 2], done.stdout
    assert "retrying" not in done.stdout, "nothing was lost"
    (failed,) = (trial for trial in results.trials if trial.status == "failed")
    assert failed.reason.startswith("error: RuntimeError: CUDA error: device-side assert triggered")
