"""MPA's Table 1, as measured by benchmarks/mpa_gradients.py."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).parents[3] / "benchmarks" / "mpa_gradients.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("mpa_gradients", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its data classes look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("name", ["proxy_nca", "proxy_anchor", "soft_triple", "mpa", "mpa_dw", "mpa_ap"])
def test_identity_71_types_of_gradients_are_as_printed(study, name):
    assert study.measured(name) == study.PRINTED[name]
    assert name in study.PRINTED


def test_identity_71_influence_is_the_second_derivative(study):
    """Of SoftTriple, one cross entropy a sample: la^2 / B (diag(p) - p p^T) within a sample, 0 across."""
    similarity, labels = study.toy()
    loss = study.toy_loss("soft_triple")
    table = study.influence(loss, similarity, labels)
    margin = torch.nn.functional.one_hot(labels, similarity.shape[1]) * loss.delta
    p = torch.softmax(loss.la * (similarity - margin), dim=1)
    for i, row in enumerate(p):
        expected = loss.la**2 / len(p) * (torch.diag(row) - torch.outer(row, row))
        torch.testing.assert_close(table[i, :, i], expected, rtol=1e-5, atol=1e-8)
        assert table[i][:, torch.arange(len(p)) != i].abs().max() < 1e-8


@pytest.mark.slow
def test_the_figure_is_drawn_the_same_every_time(study, tmp_path):
    """The names of clipping paths apart: the layout's last digit is in them, which depends on where things lie in memory."""
    drawn = []
    for name in ("first.svg", "second.svg"):
        study.draw(tmp_path / name)
        drawn.append(re.sub(r'(#|id=")p[0-9a-f]{10}', r"\1", (tmp_path / name).read_text()))
    assert drawn[0] == drawn[1]
    assert drawn[0].count("<path") > 50
