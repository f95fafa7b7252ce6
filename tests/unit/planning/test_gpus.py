"""Which GPUs of a machine CUDA_VISIBLE_DEVICES leaves."""

import pytest

from tune_dml.planning.checks import gpus
from tune_dml.planning.checks.gpus import visibility_problems, visible_gpus
from tune_dml.planning.request import Resources
from tune_dml.running.cluster import cluster
from tune_dml.running.cluster.cluster import resource_problems


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """As the driver lists them."""
    for number, uuid in (("0000:00:06.0", "GPU-24aa"), ("0000:00:07.0", "GPU-99bb")):
        (tmp_path / number).mkdir()
        (tmp_path / number / "information").write_text(f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}-6a45\nIRQ: 41\n")
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("named", "count", "absent"),
    [
        (None, 2, ""),
        ("", 0, ""),
        ("-1", 0, ""),
        ("0", 1, ""),
        ("1,0", 2, ""),
        (" 0 , 1 ", 2, ""),
        ("0,-1,1", 1, ""),
        ("GPU-99", 1, ""),
        ("MIG-7a", 1, ""),
        ("7", 0, "'7'"),
        ("0,7", 1, "'7'"),  # as CUDA has it: those before the first that is not there
        ("7,0", 0, "'7'"),
        ("GPU-deadbeef", 0, "'GPU-deadbeef'"),
        ("all", 0, "'all'"),
    ],
)
def test_what_is_named_and_there_is_counted_and_what_is_not_there_is_said(monkeypatch, named, count, absent):
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == count
    said = [str(problem) for problem in visibility_problems()]
    assert bool(said) == bool(absent)
    if said:
        assert said == [str(problem) for problem in resource_problems(Resources())], "a sweep would begin on the CPU"
        assert absent in said[0]
        assert "which has 0, 1" in said[0]


def test_where_the_driver_lists_nothing_names_are_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "none")
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    (tmp_path / "dxg").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert (visible_gpus(), visibility_problems()) == (2, [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus() == 0


@pytest.mark.parametrize(
    ("named", "problems"), [("0", 1), ("0,GPU-99", 1), ("MIG-7a", 1), ("", 0), ("-1", 0), (None, 0)]
)
def test_a_machine_without_a_gpu_is_told_of_one_that_is_named(tmp_path, monkeypatch, named, problems):
    """A word left over from another machine: Ray counts none, and the sweep was refused only after Ray had begun."""
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "none")
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    monkeypatch.setattr(cluster, "_is_there", lambda: False)  # a Ray that another test has left
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == 0
    said = [str(problem) for problem in resource_problems(Resources())]
    assert said == [str(problem) for problem in visibility_problems()]
    assert len(said) == problems
    assert all("which has none" in each and "(empty) trains on the CPU" in each for each in said)
