"""What a node is asked before trials run on it, without Ray's processes."""

import platform
import subprocess
import sys
from importlib import metadata

import pytest
import ray.cloudpickle
from helpers.clusters import BARE
from packaging.requirements import Requirement

from tune_dml.planning.request import Resources
from tune_dml.running.cluster import versions
from tune_dml.running.cluster.versions import (
    _BESIDE,
    _differences,
    missing_data_problems,
    versions_here,
    with_node_check,
)

OURS = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0+cpu", "tune-dml": "0.1.0 (2702c54b)"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"torch": "2.13.0+cu124", "python": "3.11.9"}, []),
        ({"tune-dml": "none (2702c54b)"}, []),
        ({"tune-dml": "none"}, ["no tune-dml"]),
        ({"torch": "none"}, ["no torch"]),
        ({"tune-dml": "0.1.0 (00000000)"}, ["tune-dml 0.1.0 (00000000), not 0.1.0 (2702c54b)"]),
        ({"tune-dml": "none", "torch": "2.9.1"}, ["no tune-dml", "torch 2.9.1, not 2.13.0+cpu"]),
        ({"pandas": "none", "pyarrow": "none"}, ["no pandas", "no pyarrow"]),
    ],
)
def test_what_differs_is_said_and_what_cannot_matter_is_not(change, said):
    assert _differences(OURS, {**OURS, **change}) == said


@pytest.mark.slow
def test_the_question_and_a_trial_travel_to_a_node_without_the_project(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BARE)
    (tmp_path / "asked").write_bytes(ray.cloudpickle.dumps((versions_here, with_node_check(print))))
    code = "import ray.cloudpickle as p; ask, run = p.load(open('asked', 'rb')); print(ask()['tune-dml']); run({})"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout == "none\n", answer.stderr
    assert "does not have what the driver has: no tune-dml. `tune-dml submit` brings the project" in answer.stderr


@pytest.mark.slow
def test_all_that_a_trial_imports_before_it_can_speak_is_asked_for():
    """Of what the project and Ray's parts need, and a node that has begun need not have; what a newer Ray wants shows here."""
    code = "import sys, tune_dml.running.trials.preload, ray.train.torch; print(*{m.partition('.')[0] for m in sys.modules})"
    imported = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    needed = {
        *requirements("tune-dml", ""),
        *requirements("ray", "tune"),
        *requirements("ray", "train"),
    } - requirements("ray", "")
    places = {
        name for name, sources in metadata.packages_distributions().items() if needed & {s.lower() for s in sources}
    }
    assert (imported & places) - {"ray", "torch", "torchgen", "functorch"} == set(_BESIDE)


def requirements(distribution, extra):
    """Names of what a distribution needs, with an extra."""
    found = map(Requirement, metadata.requires(distribution) or ())
    return {each.name.lower() for each in found if each.marker is None or each.marker.evaluate({"extra": extra})}


def test_a_package_that_is_not_there_is_found_out(monkeypatch):
    assert "pandas" not in versions_here()
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert versions_here()["pandas"] == "none"


def test_a_node_without_the_pictures_says_so_unless_it_has_them_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "versions_here", lambda: OURS)
    folder, decoded = tmp_path / "CUB", tmp_path / "decoded"
    trial = with_node_check(lambda config: config["told"].append(1), [(str(folder), str(decoded))])
    with pytest.raises(RuntimeError, match=rf"the driver has: no folder {folder}. Copy or mount it there"):
        trial({})
    for there in (decoded, folder):
        there.mkdir()
        told = []
        trial({"told": told})
        assert told == [1]
        there.rmdir()


def test_nodes_are_asked_for_the_pictures_before_a_trial_begins(ray_session, tmp_path):
    assert not missing_data_problems([], Resources())
    assert not missing_data_problems([(str(tmp_path), "/nowhere")], Resources())
    (problem,) = missing_data_problems([("/nowhere/CUB", "/nowhere"), (str(tmp_path), "")], Resources())
    assert (problem.place, problem.value) == ("data_root", "/nowhere/CUB")
    assert platform.node() in problem.rule


def test_where_nothing_differs_trials_run(monkeypatch):
    monkeypatch.setattr(versions, "versions_here", lambda: OURS)
    told = []
    trial = with_node_check(lambda config: config["told"].append(config["key"]))
    for key in "ab":
        trial({"key": key, "told": told})
    assert told == ["a", "b"]
