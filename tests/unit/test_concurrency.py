"""The number of concurrent trials and the growth of a cluster, without a cluster."""

from functools import partial
from pathlib import Path

import pytest
import requests
import yaml
from ray.autoscaler._private.kuberay import node_provider
from ray.tune.search import ConcurrencyLimiter, Searcher

from trainables.errors import ConfigError
from tune_dml.planning.request import Resources
from tune_dml.running import ray_internals
from tune_dml.running.cluster import autoscaler_limits, cluster
from tune_dml.running.cluster.autoscaler_limits import autoscaler_nodes
from tune_dml.running.cluster.cluster import Capacity
from tune_dml.running.scheduler import GrowingConcurrency


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


ROOT = Path(__file__).parents[2]
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
