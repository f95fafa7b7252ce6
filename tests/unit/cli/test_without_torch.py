"""Commands that train nothing run without torch, with the same output."""

import json
import os

import pytest
from helpers.processes import printed_by
from torch import hub

from trainables.models.weights import _checkpoint_folder

PLANS = """
import json, sys
from pathlib import Path
from tune_dml.cli._without_torch import without_torch

def planned(name, dataset):
    from trainables.errors import ConfigError
    from tune_dml.planning.checks.prepare import prepare
    from tune_dml.planning.request import Request

    try:
        checked = prepare(Request(name, dataset=dataset, seeds=2), decode=False)
    except ConfigError as error:
        return str(error)
    checked.plan.save(Path("plan.json"))
    return [Path("plan.json").read_text(), checked.notes, checked.cautions]

def plans():
    from tune_dml.catalogue import spaces

    return {name: planned(name, "glyphs") for name in spaces()}

with without_torch(["plan", "all"]):
    answer = plans()
print(json.dumps({"torch": hasattr(sys.modules["torch"], "__version__"), "plans": answer}))
"""
CALLS_TORCH = """
import os, sys
from tune_dml.cli._without_torch import without_torch

def start_again(program, words, environment):
    print(words[1:], environment["TUNE_DML_WITH_TORCH"])

os.execve = start_again
with without_torch(["plan", "sec_rho"]):
    import torch

    class Network(torch.nn.Module):
        @torch.no_grad()
        def size(self) -> torch.Tensor:
            return torch.zeros(2)

    assert not isinstance(1, torch.Tensor)
    Network()
    print("not reached")
"""


@pytest.mark.slow  # plans every space twice
def test_every_plan_is_the_same_without_torch(tmp_path):
    without = json.loads(printed_by(PLANS, cwd=tmp_path))
    with_torch = json.loads(printed_by(PLANS, cwd=tmp_path, env={**os.environ, "TUNE_DML_WITH_TORCH": "1"}))
    assert (with_torch["torch"], without["torch"]) == (True, False)
    assert all(isinstance(plan, list) for plan in without["plans"].values())
    assert without["plans"] == with_torch["plans"]


def test_a_command_that_calls_torch_starts_again_with_it(tmp_path):
    assert printed_by(CALLS_TORCH, cwd=tmp_path) == f"{['-c', CALLS_TORCH]} 1\n"


def test_the_folder_of_checkpoints_is_that_of_torch(monkeypatch, tmp_path):
    def same():
        return str(_checkpoint_folder()) == os.path.join(hub.get_dir(), "checkpoints")

    monkeypatch.delenv("TORCH_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert same()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert same()
    monkeypatch.setenv("TORCH_HOME", "~/here")
    assert same()
