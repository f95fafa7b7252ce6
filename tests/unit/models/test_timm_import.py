"""timm's import without the extra, and with builds of torch and torchvision that do not match."""

import sys

import pytest
from helpers.processes import printed_by

from trainables.errors import ConfigError
from trainables.models import BACKBONES, build_model
from trainables.models.timm_backbone import _import_timm


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    (problem,) = BACKBONES["timm"].file_problems(architecture="resnet50")
    assert "pip install 'tune-dml[vision]'" in problem.remedy
    with pytest.raises(ConfigError, match="tune-dml\\[vision\\]") as caught:
        build_model(backbone="timm", image_size=64)
    assert len(caught.value.problems) == 1


FAKE = """
import torch
if not hasattr(torch.ops.torchvision, "nms"):
    torch.library.register_fake("torchvision::nms")(lambda *_: None)  # raises as torchvision's import does
assert hasattr(torch.ops.torchvision, "qnms")
torch.library.register_fake("torchvision::nms")(lambda *_: None)
"""


@pytest.mark.slow
def test_missing_operators_of_torchvision_are_declared(tmp_path):
    (tmp_path / "timm.py").write_text(FAKE)
    code = "from trainables.models.timm_backbone import _import_timm; print(_import_timm().__file__)"
    assert printed_by(code, env={"PYTHONPATH": str(tmp_path)}).strip() == str(tmp_path / "timm.py")


@pytest.mark.parametrize("error", [RuntimeError("something else"), OSError("disk")])
def test_other_failures_are_not_hidden(monkeypatch, error):
    def fail(name):
        raise error

    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(type(error), match=str(error)):
        _import_timm()
