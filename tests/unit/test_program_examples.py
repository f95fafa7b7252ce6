"""The scripts and files that docs/programs.md shows run as they stand."""

import re
from pathlib import Path

import pytest
from helpers.programs import Ran

from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request

PAGE = (Path(__file__).parents[2] / "docs" / "programs.md").read_text()
SCRIPTS = dict(re.findall(r"### ([^\n]+)\n.*?```python\n(.*?)```", PAGE, re.DOTALL))
KNOBS = {
    "scikit-learn in ten lines": {"C": 0.1},
    "A plain PyTorch loop": {"lr": 0.1},
    "pytorch-metric-learning's trainer": {"margin": 0.1},
}


@pytest.mark.slow
@pytest.mark.parametrize("title", KNOBS)
def test_a_script_of_the_docs_trains(title, tmp_path):
    metric = "val/precision_at_1" if "metric-learning" in title else "val/accuracy"
    ran = Ran(tmp_path, SCRIPTS[title], metric, KNOBS[title])
    assert ran.end.status == "finished", ran.end
    assert 0.6 < ran.end.metrics[metric] <= 1


def test_each_script_of_the_docs_is_tried():
    assert set(SCRIPTS) == set(KNOBS)


def test_the_file_of_the_docs_can_be_planned():
    (file,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    Path("sweep.yaml").write_text(file)
    Path("train.py").touch()
    plan = prepare(Request("sweep.yaml")).plan
    assert len(plan.trials()) == 15
