"""A sweep's connection to Ray: opened during imports, closed in the same thread, and told of a lost node."""

import gc
import os
import socket
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import ray
import ray.train

from trainables import distributed
from trainables.errors import ConfigError
from tune_dml.planning.request import Resources
from tune_dml.running import ray_internals
from tune_dml.running.cluster import cluster
from tune_dml.running.cluster.cluster import Capacity, Connection
from tune_dml.running.process import RELAXED_THRESHOLD, relaxed_gc
from tune_dml.running.trials import rendezvous

FOUR = Capacity(({"CPU": 4, "GPU": 0},))


@pytest.fixture
def connections(monkeypatch):
    """The events of connections: (event, thread, whether processes import modules of trials)."""
    happened = []

    @contextmanager
    def connect(address, *, engine, preload=False):
        happened.append(("joined", threading.current_thread(), preload))
        if address == "away":
            raise ConnectionError("nobody answers")
        yield FOUR
        happened.append(("left", threading.current_thread(), preload))

    monkeypatch.setattr(cluster, "connect", connect)
    monkeypatch.setattr(cluster, "local_capacity", lambda: FOUR)
    return happened


def test_a_connection_opens_and_closes_in_one_thread(connections):
    with Connection(None, Resources()):
        pass
    assert connections == []
    with Connection(None, Resources()) as connection:
        connection.begin(4)
        assert connection.capacity().total("CPU") == 4
        connection.end()
    (joined, thread, _), (left, other, _) = connections
    assert (joined, left) == ("joined", "left")
    assert thread is other is not threading.current_thread()


@pytest.mark.parametrize(
    ("trials", "resources", "all_are_needed"),
    [
        (4, Resources(), True),
        (3, Resources(), False),
        (9, Resources(cpus_per_worker=2), False),
        (9, Resources(workers=2, engine="train"), False),
    ],
)
def test_processes_import_modules_of_trials_in_advance(connections, trials, resources, all_are_needed):
    with Connection(None, resources) as connection:
        connection.begin(trials)
    assert [preload for _, _, preload in connections] == [all_are_needed] * 2


def test_an_unreachable_cluster_is_reported_by_its_caller(connections):
    with Connection("away", Resources()) as connection, pytest.raises(ConnectionError):
        connection.capacity()


@pytest.mark.parametrize(
    ("answers", "lost"),
    [([True] * 20, None), ([True, False], 2), ([None] * 20, 9), (([None] * 8 + [True]) * 3, None)],
    ids=["alive", "taken for dead", "the head is silent", "the head is slow"],
)
def test_a_node_is_lost_if_reported_dead_or_long_silent(monkeypatch, tmp_path, answers, lost):
    place = tmp_path / "s"
    told = iter(answers)
    monkeypatch.setattr(ray_internals, "raylet_socket", lambda: str(place))
    monkeypatch.setattr(ray_internals, "is_node_alive", lambda seconds: next(told))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    node = cluster.NodeWatch()
    with socket.socket(socket.AF_UNIX) as raylet:
        raylet.bind(str(place))
        raylet.listen(100)
        looks = [node.is_lost() for _ in answers]
    assert (looks.index(True) + 1 if True in looks else None) == lost
    assert node.is_lost()  # no process listens any more


@pytest.mark.parametrize(
    ("address", "ray_tmpdir", "said", "rule", "remedies"),
    [
        ("head:6379", "", "It is away.\nA long story", "must be reachable (It is away.)", ["correct the address"]),
        (None, "/full", "It timed out.\nThis could", "must start (It timed out.", ["/full/ray/session_latest/logs"]),
        # In an unusable TMPDIR, which Ray uses and Python skips.
        (None, "", "Read-only", "must start (Read-only", ["/read-only/ray/session_latest/logs", "RAY_TMPDIR"]),
    ],
)
def test_a_ray_that_fails_is_one_problem_with_its_logs(monkeypatch, address, ray_tmpdir, said, rule, remedies):
    def fail(**arguments):
        raise RuntimeError(said)

    monkeypatch.setenv("RAY_TMPDIR", ray_tmpdir)
    monkeypatch.setenv("TMPDIR", "/read-only")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    with Connection(address, Resources()) as connection, pytest.raises(ConfigError) as refusal:
        connection.capacity()
    (problem,) = refusal.value.problems
    assert rule in problem.rule
    assert [words for words in remedies if words not in problem.remedy] == []


@pytest.fixture
def threshold():
    before = gc.get_threshold()
    yield gc.set_threshold
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("given", "meanwhile"), [(700, RELAXED_THRESHOLD), (2 * RELAXED_THRESHOLD, 2 * RELAXED_THRESHOLD), (0, 0)]
)
def test_garbage_collection_stays_rare_or_disabled(threshold, given, meanwhile):
    threshold(given, 10, 10)
    with relaxed_gc():
        assert gc.get_threshold() == (meanwhile, 10, 10)
    assert gc.get_threshold() == (given, 10, 10)


class Context:
    def get_world_rank(self):
        return 1

    def get_world_size(self):
        return 2

    get_local_rank, get_local_world_size = get_world_rank, get_world_size


@pytest.mark.parametrize("named", [None, "eth7"])
@pytest.mark.parametrize("address", ["127.0.0.1", "203.0.113.7"])
def test_workers_exchange_at_their_nodes_address_in_ray(monkeypatch, address, named):
    """Not at the address of the host name, on Debian 127.0.1.1; an address set by the user has precedence."""
    joined = []
    monkeypatch.setattr(os, "environ", {"GLOO_SOCKET_IFNAME": named} if named else {})
    monkeypatch.setattr(ray.train, "get_context", Context)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: address)
    monkeypatch.setattr(distributed, "join", lambda *at, **given: joined.append((at, given["rank"])))
    rendezvous._join("gloo", "192.0.2.1", 7001, timeout_s=1.0)
    here = {"127.0.0.1": socket.if_indextoname(1)}.get(address)
    assert os.environ.get("GLOO_SOCKET_IFNAME") == (named or here)
    assert joined == [(("192.0.2.1", 7001), 1)]
