"""A third-party method changes global state of its process: no other trial's numbers change."""

import os
import signal
from pathlib import Path

import pytest
from helpers.packages import write_package
from helpers.sweeps import SweepProcess

from tune_dml.record.results import results_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LEAVES = """

import numpy as np
import torch.nn.functional as F

_RANDOM = np.random.default_rng(0)
_convolve = F.conv2d


class LeavingLoss(ToyMarginLoss):
    '''Draws from a generator of its module, and has replaced a function of torch's.'''

    name = "leaving"

    def __init__(self, *, margin: Annotated[float, Field(description="margin m")] = 0.5):
        super().__init__(margin=margin)
        F.conv2d = lambda *given, **named: 1.01 * _convolve(*given, **named)

    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return super().value(embeddings, labels) * float(_RANDOM.uniform(0.5, 1.5))
"""
SWEEP = """
arms: {{{arms}}}
dataset: digits
seeds: 2
fixed: {{training.steps: 40, training.eval_every: 20}}
"""
ARMS = ["triplet: {loss.name: triplet}", "leaving: {loss.name: leaving}"]


def test_global_state_of_a_method_does_not_reach_other_trials(tmp_path, cache_dir):
    """Run the trials in one slot and in both orders; their numbers must not depend on it."""
    loss = (ROOT / "tests" / "toy_package" / "toy_dml" / "loss.py").read_text()
    write_package(tmp_path / "own", "leaving = own_loss:LeavingLoss", own_loss=loss + LEAVES)
    found = []
    for name, arms in (("first", ARMS), ("last", ARMS[::-1])):
        Path(f"{name}.yaml").write_text(SWEEP.format(arms=", ".join(arms)))
        words = ["sweep", f"{name}.yaml", "--name", name, "--cache-dir", cache_dir, "--max-concurrent", 1]
        sweep = SweepProcess(words, tmp_path / "sweeps" / name, {"PYTHONPATH": f"{tmp_path / 'own'}:{ROOT}"})
        assert sweep.end(seconds=150) == 0, sweep.read_output()
        trials = results_of(sweep.folder).trials
        found.append({(trial.cell.label, trial.seed): dict(trial.metrics) for trial in trials})
        assert len(found[-1]) == 4
        assert [sweep.events("retry"), [trial.status for trial in trials]] == [[], ["finished"] * 4]
    assert found[0] == found[1]


def test_a_method_edited_before_resume_is_reported(tmp_path, cache_dir):
    """Otherwise one curve would silently mix two versions of a method."""
    loss = (ROOT / "tests" / "toy_package" / "toy_dml" / "loss.py").read_text()
    write_package(tmp_path / "own", "toy_margin = own_loss:ToyMarginLoss", own_loss=loss)
    Path("own.yaml").write_text(SWEEP.format(arms="own: {loss.name: toy_margin}, triplet: {loss.name: triplet}"))
    flags = ["--cache-dir", cache_dir, "--max-concurrent", 1]
    path = {"PYTHONPATH": f"{tmp_path / 'own'}:{ROOT}"}
    sweep = SweepProcess(["sweep", "own.yaml", "--name", "own", *flags], tmp_path / "sweeps" / "own", path)
    sweep.wait_until(lambda: sweep.events("ended"))
    os.kill(sweep.pid, signal.SIGINT)
    assert sweep.end() == 130, sweep.read_output()
    (tmp_path / "own" / "own_loss.py").write_text(loss.replace("(1 - similarity)", "(2 - 2 * similarity)"))
    again = SweepProcess(["resume", "own", *flags], sweep.folder, path)
    assert again.end(seconds=150) == 0, again.read_output()
    assert (
        "the code of own_loss was changed while the sweep ran: 1 of 2 trials, first own, seed 1" in again.read_output()
    )
