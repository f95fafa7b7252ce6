"""The connection of a sweep to Ray: a thread opens and closes it; it learns of lost nodes and of new ones."""

import gc
import os
import socket
import sys
import threading
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import ray
import ray.train
import requests
import yaml
from helpers.sources import ROOT
from ray.autoscaler._private.kuberay import node_provider
from ray.tune.search import ConcurrencyLimiter, Searcher

from trainables import distributed
from trainables.errors import ConfigError
from tune_dml.planning.request import Resources
from tune_dml.running import ray_internals
from tune_dml.running.cluster import autoscaler_limits, cluster
from tune_dml.running.cluster.autoscaler_limits import autoscaler_nodes
from tune_dml.running.cluster.cluster import Capacity, Connection
from tune_dml.running.process import RELAXED_THRESHOLD, relaxed_gc
from tune_dml.running.scheduler import GrowingConcurrency
from tune_dml.running.trials import rendezvous

FOUR = Capacity(({"CPU": 4, "GPU": 0},))


@pytest.fixture
def connections(monkeypatch):
    """The events of connections: (event, thread, whether processes import modules of trials)."""
    happened = []

    @contextmanager
    def connect(address, *, engine, preload=False):
        happened.append(("joined", threading.current_thread(), preload))
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


def test_a_second_sweep_of_one_process_is_refused_until_the_first_ends(connections):
    """The user read that Ray did not start, with advice about disk space."""
    refused = pytest.raises(ConfigError, match="another thread of this process is running one")
    with Connection(None, Resources()), refused, Connection(None, Resources()):
        pass
    with Connection(None, Resources()) as connection:
        assert connection.begin(1).result() == FOUR


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


@pytest.mark.parametrize("named", [None, "eth7"])
@pytest.mark.parametrize("address", ["127.0.0.1", "203.0.113.7"])
def test_workers_exchange_at_their_nodes_address_in_ray(monkeypatch, address, named):
    """Not at the address of the host name, on Debian 127.0.1.1; an address set by the user has precedence."""
    joined = []
    context = SimpleNamespace(
        get_world_rank=lambda: 1, get_local_rank=lambda: 1, get_world_size=lambda: 2, get_local_world_size=lambda: 2
    )
    monkeypatch.setattr(os, "environ", {"GLOO_SOCKET_IFNAME": named} if named else {})
    monkeypatch.setattr(ray.train, "get_context", lambda: context)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: address)
    monkeypatch.setattr(distributed, "join", lambda *at, **given: joined.append((at, given["rank"])))
    rendezvous._join("gloo", "192.0.2.1", 7001, timeout_s=1.0)
    here = {"127.0.0.1": socket.if_indextoname(1)}.get(address)
    assert os.environ.get("GLOO_SOCKET_IFNAME") == (named or here)
    assert joined == [(("192.0.2.1", 7001), 1)]


class Endless(Searcher):
    def suggest(self, trial_id):
        return {"key": trial_id}

    def on_trial_complete(self, trial_id, result=None, error=False):
        """Do nothing."""


@pytest.fixture
def nodes(monkeypatch):
    nodes = [{"CPU": 1.0}]
    monkeypatch.setattr(cluster, "_node_resources", lambda: tuple(nodes))
    return nodes


def proposed(limiter):
    return sum(limiter.suggest(str(number)) is not None for number in range(100, 110))


def test_concurrency_grows_with_nodes_and_does_not_shrink(nodes):
    told = []
    limiter = ConcurrencyLimiter(Endless(), max_concurrent=1)
    fits = partial(cluster.trials_that_fit_now, Capacity(()), Resources(), None)
    room = GrowingConcurrency(limiter, fits, told.append)
    nodes += [{"CPU": 2.0}]
    room.on_step_begin(1, [])
    assert limiter.max_concurrent == 1, "nobody has looked"
    room.count()
    room.on_step_begin(2, [])
    room.on_step_begin(3, [])
    assert (limiter.max_concurrent, told, proposed(limiter)) == (3, [3], 3)
    nodes.clear()
    room.count()
    room.on_step_begin(4, [])
    assert (limiter.max_concurrent, told) == (3, [3])


def test_concurrency_follows_the_users_limit_and_the_autoscaler(nodes):
    grown = Capacity(({"CPU": 1.0},), future_nodes=({"CPU": 1.0},) * 4)
    assert cluster.trials_that_fit_now(grown, Resources(), None) == 4
    nodes += [{"CPU": 8.0}]
    assert cluster.trials_that_fit_now(grown, Resources(), None) == 9
    assert cluster.trials_that_fit_now(grown, Resources(), 2) == 2


def test_an_unreachable_head_ends_no_trial(monkeypatch):
    asked = []

    def away():
        asked.append(1)
        if len(asked) > 1:
            room._over.set()
        raise ConnectionError("the head is away")

    monkeypatch.setattr("tune_dml.running.scheduler._COUNT_INTERVAL", 0.001)
    room = GrowingConcurrency(ConcurrencyLimiter(Endless(), max_concurrent=2), away, asked.append)
    with room:
        room._thread.join(5)
    assert len(asked) == 2
    room.on_step_begin(1, [])
    assert room.limiter.max_concurrent == 2


HEAD = {"trial_driver": 64.0}


@pytest.fixture
def pod(tmp_path, monkeypatch):
    """The head's pod of deploy/kuberay.yaml, with the variables of KubeRay and Kubernetes, and its requests."""
    job = yaml.safe_load((ROOT / "deploy" / "kuberay.yaml").read_text())
    cluster = {"metadata": {"name": "sec-rho-x7", "namespace": "ml"}, "spec": job["spec"]["rayClusterSpec"]}
    (tmp_path / "namespace").write_text("ml")
    (tmp_path / "token").write_text("secret")
    monkeypatch.setattr(autoscaler_limits, "_POD", tmp_path)
    monkeypatch.setattr(node_provider, "IN_CLUSTER_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(ray_internals, "autoscaler_node_groups", tuple)
    monkeypatch.setattr(ray_internals, "has_autoscaler", lambda: False)
    monkeypatch.setenv("RAY_CLUSTER_NAME", "sec-rho-x7")
    answer = requests.Response()
    answer.status_code, answer.json = 200, lambda: cluster

    def get(url, **options):
        assert url.endswith("/apis/ray.io/v1/namespaces/ml/rayclusters/sec-rho-x7")
        assert options["headers"] == {"Authorization": "Bearer secret"}
        return answer

    monkeypatch.setattr(requests, "get", get)
    return cluster, answer


def test_a_kubernetes_cluster_without_workers_may_add_gpus(pod):
    """Ray's autoscaler does not report its limits there, so the sweep of deploy/kuberay.yaml was refused."""
    capacity = Capacity((HEAD,), autoscaler_nodes())
    assert capacity.has_gpus
    assert capacity.trials_that_fit(Resources(gpus_per_worker=1)) == 4
    assert {(node["CPU"], node["GPU"]) for node in capacity.future_nodes} == {(12, 1)}


def test_a_fixed_or_unreadable_kubernetes_cluster_does_not_grow(pod, monkeypatch, tmp_path):
    cluster, answer = pod
    for status in (401, 403, 404):
        answer.status_code = status
        assert autoscaler_nodes() == ()
    answer.status_code = 200
    del cluster["spec"]["enableInTreeAutoscaling"]
    assert autoscaler_nodes() == ()
    monkeypatch.setattr(autoscaler_limits, "_BOOTSTRAP", str(tmp_path / "none.yaml"))
    monkeypatch.delenv("RAY_CLUSTER_NAME")
    answer.status_code = 503  # outside a pod Kubernetes is not contacted
    assert autoscaler_nodes() == ()


def test_a_kubernetes_api_that_fails_or_is_unreachable_is_named(pod, monkeypatch):
    """Otherwise a sweep would be refused for lack of resources, or train without GPUs."""

    def away(url, **options):
        raise requests.ConnectionError("Connection refused")

    pod[1].status_code = 503
    with pytest.raises(ConfigError, match=r"must report the cluster's limits .*503"):
        autoscaler_nodes()
    monkeypatch.setattr(requests, "get", away)
    with pytest.raises(ConfigError, match=r"must report the cluster's limits .*Connection refused"):
        autoscaler_nodes()
