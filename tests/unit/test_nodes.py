"""What is said of the answers of a cluster's nodes, without a cluster."""

from pathlib import Path

import pytest

from tune_dml.running.cluster.nodes import _clocks, _count, _each, _pictures, _shared


def answer(**changes):
    """Of a node with which nothing is wrong."""
    sound = {"host": "a", "node_id": "1", "shm": 8.0, "gpus": 4, "usable": 4, "cache": ["digits"], "cache_free": 100.0}
    return {**sound, "skew": 0.1, "storage": "tune-dml", **changes}


def said(offered=4.0, **changes):
    nodes = [{"NodeID": "1", "Resources": {"CPU": 48.0, **({"GPU": offered} if offered else {})}}]
    return list(_each([answer(**changes)], nodes))


def test_of_a_sound_node_its_cache_is_told():
    assert [(fact.found, fact.wrong) for fact in said()] == [("cache 1 entries, 100 GiB free", False)]


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
def test_what_is_wrong_with_a_node_is_named(changes, words, wrong):
    (fact,) = [fact for fact in said(**changes) if words in fact.found]
    assert fact.wrong == wrong


def test_a_head_that_offers_no_gpu_may_have_some_that_torch_cannot_use():
    assert not [fact for fact in said(offered=0, usable=0) if fact.wrong]
    assert not [fact for fact in said(usable=None) if fact.wrong]  # without torch, which its version tells


def test_a_head_that_others_cannot_reach_is_noted():
    """Without a default route Ray takes the address that a machine's own name leads to."""
    alone = _count([{"NodeManagerAddress": "127.0.1.1"}])
    assert (alone.found, alone.wrong) == ("1 alive, at 127.0.1.1, which no other machine reaches", False)
    assert "--node-ip-address=ADDRESS" in alone.remedy
    reached = _count([{"NodeManagerAddress": "10.0.0.7"}, {"NodeManagerAddress": "10.0.0.8"}])
    assert (reached.found, reached.remedy) == ("2 alive", "")


def test_a_clock_that_differs_is_wrong():
    (fact,) = _clocks([answer(), answer(skew=7.0)])
    assert (fact.found, fact.wrong) == ("at most 7.0 s apart", True)


def test_storage_that_a_node_does_not_see_is_named():
    lacking = {key: value for key, value in answer(host="b").items() if key != "storage"}
    (fact,) = _shared([answer(), {**lacking, "storage_error": "No such file or directory"}], Path("/mnt/shared"))
    assert fact.wrong
    assert fact.found == "/mnt/shared on b: No such file or directory"
    (fact,) = _shared([answer(), answer()], Path("/mnt/shared"))
    assert not fact.wrong


def test_pictures_must_be_where_trials_run():
    nodes = [{"NodeID": str(number), "Resources": {"CPU": float(number)}} for number in range(3)]
    head, first, second = (answer(host=name, node_id=str(n), pictures=("/cub", n == 1)) for n, name in enumerate("abc"))
    assert [fact.found for fact in _pictures([head, first, second], nodes) if fact.wrong] == ["/cub is not on c"]
    assert [fact.found for fact in _pictures([head, first], nodes)] == ["/cub: on 1 that run trials"]
    assert not list(_pictures([answer(pictures=None)], nodes))
