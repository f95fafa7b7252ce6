"""Checks of a node before trials run on it, and their messages, without Ray's processes."""

import platform
import sys
from importlib import metadata
from pathlib import Path

import pytest
import ray
from helpers.processes import printed_by
from packaging.requirements import Requirement

from tune_dml.planning.request import Resources
from tune_dml.running.cluster import nodes, versions
from tune_dml.running.cluster.nodes import (
    _check_clocks,
    _check_each,
    _check_folder,
    _check_pictures,
    _count_nodes,
)
from tune_dml.running.cluster.versions import (
    _EARLY_IMPORTS,
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
def test_only_relevant_version_differences_are_reported(change, said):
    assert _differences(OURS, {**OURS, **change}) == said


@pytest.mark.slow
def test_imports_of_a_trial_are_checked_on_nodes():
    """Imports of the project and of Ray's parts that a running node may lack; a newer Ray may need more."""
    code = "import sys, tune_dml.running.trials.preload, ray.train.torch; print(*{m.partition('.')[0] for m in sys.modules})"
    imported = set(printed_by(code).split())
    needed = requirements("tune-dml", "") | requirements("ray", "tune") | requirements("ray", "train")
    needed -= requirements("ray", "")
    sources = metadata.packages_distributions()
    places = {name for name, own in sources.items() if needed & {source.lower() for source in own}}
    assert (imported & places) - {"ray", "torch", "torchgen", "functorch"} == set(_EARLY_IMPORTS)


def requirements(distribution, extra):
    """Return the names of a distribution's requirements, with an extra."""
    found = map(Requirement, metadata.requires(distribution) or ())
    return {each.name.lower() for each in found if each.marker is None or each.marker.evaluate({"extra": extra})}


def test_a_missing_package_is_detected(monkeypatch):
    assert "pandas" not in versions_here()
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert versions_here()["pandas"] == "none"


def test_a_node_without_pictures_is_reported_unless_they_are_decoded(tmp_path, monkeypatch):
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


def test_nodes_are_checked_for_pictures_before_trials(ray_session, tmp_path):
    assert not missing_data_problems([], Resources())
    assert not missing_data_problems([(str(tmp_path), "/nowhere")], Resources())
    (problem,) = missing_data_problems([("/nowhere/CUB", "/nowhere"), (str(tmp_path), "")], Resources())
    assert (problem.place, problem.value) == ("data_root", "/nowhere/CUB")
    assert platform.node() in problem.rule


def answer(**changes):
    """Return the answer of a healthy node."""
    sound = {"host": "a", "node_id": "1", "shm": 8.0, "gpus": 4, "usable": 4, "cache": ["digits"], "cache_free": 100.0}
    return {**sound, "skew": 0.1, "storage": "tune-dml", **changes}


def said(offered=4.0, **changes):
    nodes = [{"NodeID": "1", "Resources": {"CPU": 48.0, **({"GPU": offered} if offered else {})}}]
    return list(_check_each([answer(**changes)], nodes))


def test_a_healthy_node_is_listed_with_its_cache():
    assert [(fact.found, fact.level) for fact in said()] == [("cache 1 entries, 100 GiB free", "ok")]


@pytest.mark.parametrize(
    ("changes", "words", "wrong"),
    [
        ({"usable": 0}, "torch can use 0 of the 4 GPUs", True),  # a driver that is older than torch's CUDA
        ({"gpus": 0, "usable": 0}, "torch can use 0 of the 4 GPUs", True),
        ({"gpus": 0, "usable": 0}, "0 GPUs in it, 4 offered to Ray", False),
        ({"shm": 0.1}, "0.1 GiB of shared memory", True),
        ({"cache": None}, "cache not there yet", False),
    ],
)
def test_problems_of_a_node_are_named(changes, words, wrong):
    (fact,) = [fact for fact in said(**changes) if words in fact.found]
    assert (fact.level == "problem") == wrong


def test_gpus_of_a_head_without_offered_gpus_are_not_checked():
    assert not [fact for fact in said(offered=0, usable=0) if fact.level != "ok"]
    assert not [fact for fact in said(usable=None) if fact.level != "ok"]  # without torch, which its version shows


def test_a_head_that_others_cannot_reach_is_noted():
    """Without a default route Ray uses the address of the machine's host name."""
    alone = _count_nodes([{"NodeManagerAddress": "127.0.1.1"}])
    assert (alone.found, alone.level) == ("1 alive, at 127.0.1.1, which no other machine reaches", "ok")
    assert "--node-ip-address=ADDRESS" in alone.remedy
    reached = _count_nodes([{"NodeManagerAddress": "10.0.0.7"}, {"NodeManagerAddress": "10.0.0.8"}])
    assert (reached.found, reached.remedy) == ("2 alive", "")


def test_without_any_answer_nothing_else_is_reported(monkeypatch, tmp_path):
    """Storage, versions and bucket counted as fine, "read on 0"."""
    node = {
        "NodeID": "ab",
        "Alive": True,
        "NodeManagerHostname": "n1",
        "NodeManagerAddress": "10.0.0.7",
        "Resources": {},
    }
    monkeypatch.setattr(ray, "nodes", lambda: [node])

    def hang(*question, **how):
        raise TimeoutError("no answer in time")

    monkeypatch.setattr(nodes, "_ask", hang)
    found = [(finding.subject, finding.level) for finding in nodes.check_nodes(tmp_path, tmp_path)]
    assert found == [("nodes", "ok"), ("node n1", "problem")]


def test_a_differing_clock_is_a_problem():
    (fact,) = _check_clocks([answer(), answer(skew=7.0)])
    assert (fact.found, fact.level) == ("at most 7.0 s apart", "problem")


def test_storage_invisible_to_a_node_is_named():
    lacking = {key: value for key, value in answer(host="b").items() if key != "storage"}
    lacking["storage_error"] = "No such file or directory"
    (fact,) = _check_folder([answer(), lacking], Path("/mnt/shared"))
    assert fact.level == "problem"
    assert fact.found == "/mnt/shared on b: No such file or directory"
    (fact,) = _check_folder([answer(), answer()], Path("/mnt/shared"))
    assert fact.level == "ok"


def test_nodes_that_run_trials_need_the_pictures():
    nodes = [{"NodeID": str(number), "Resources": {"CPU": float(number)}} for number in range(3)]
    head, first, second = (answer(host=name, node_id=str(n), pictures=("/cub", n == 1)) for n, name in enumerate("abc"))
    assert [fact.found for fact in _check_pictures([head, first, second], nodes) if fact.level != "ok"] == [
        "/cub is not on c"
    ]
    assert [fact.found for fact in _check_pictures([head, first], nodes)] == ["/cub: on 1 that run trials"]
    assert not list(_check_pictures([answer(pictures=None)], nodes))
