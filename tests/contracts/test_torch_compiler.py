"""A process that compiles nothing does not load torch's compiler, which takes a second."""

import pytest
from helpers.processes import printed_by

pytestmark = pytest.mark.slow

TRIAL = """
import sys
from pathlib import Path
import torch
from trainables.context import TrialContext
from trainables.optimizers import OPTIMIZERS
from trainables.resolve import read_settings
from trainables.training import train

for name in OPTIMIZERS:
    settings = {
        "data.name": "digits", "batch.batch_size": 6, "batch.instances_per_class": 2, "optim.name": name,
        "training.steps": 2, "training.eval_every": 2,
    }
    assert train(read_settings(settings), TrialContext(Path(name), torch.device("cpu"))).metrics
    print(name, "loads", [module for module in ("torch._dynamo", "torch._inductor", "sympy") if module in sys.modules])
"""


def test_a_trial_does_not_load_the_compiler(tmp_path):
    lines = printed_by(TRIAL, cwd=tmp_path).splitlines()
    assert len(lines) == 4
    assert all(line.endswith("loads []") for line in lines), lines
