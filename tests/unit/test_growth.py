"""What a cluster may grow to, without a cluster."""

from pathlib import Path

import pytest
import requests
import yaml
from ray.autoscaler._private.kuberay import node_provider

from trainables.errors import ConfigError
from tune_dml.planning.request import Resources
from tune_dml.running import ray_internals
from tune_dml.running.cluster import autoscaler_limits
from tune_dml.running.cluster.autoscaler_limits import autoscaler_nodes
from tune_dml.running.cluster.cluster import Capacity

ROOT = Path(__file__).parents[2]
HEAD = {"trial_driver": 64.0}


@pytest.fixture
def pod(tmp_path, monkeypatch):
    """The head's pod of deploy/kuberay.yaml, with what KubeRay and Kubernetes put into it; what it asks Kubernetes for."""
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


def test_a_cluster_on_kubernetes_that_has_no_worker_yet_may_come_to_have_gpus(pod):
    """Ray's autoscaler there tells nobody: the sweep of deploy/kuberay.yaml was refused, and would have asked for no GPU."""
    capacity = Capacity((HEAD,), autoscaler_nodes())
    assert capacity.has_gpus
    assert capacity.trials_that_fit(Resources(gpus_per_worker=1)) == 4
    assert {(node["CPU"], node["GPU"]) for node in capacity.to_come} == {(12, 1)}


def test_one_of_a_fixed_size_or_that_this_pod_may_not_read_does_not_grow(pod):
    cluster, answer = pod
    for status in (401, 403, 404):
        answer.status_code = status
        assert autoscaler_nodes() == ()
    answer.status_code = 200
    del cluster["spec"]["enableInTreeAutoscaling"]
    assert autoscaler_nodes() == ()


def test_kubernetes_that_does_not_answer_is_named(pod, monkeypatch):
    def away(url, **options):
        raise requests.ConnectionError("Connection refused")

    monkeypatch.setattr(requests, "get", away)
    with pytest.raises(ConfigError, match=r"must report the cluster's limits .*Connection refused"):
        autoscaler_nodes()


def test_so_is_one_that_answers_with_an_error_of_its_own(pod):
    """Else a sweep would be refused for want of room, or train without GPUs."""
    pod[1].status_code = 503
    with pytest.raises(ConfigError, match=r"must report the cluster's limits .*503"):
        autoscaler_nodes()


def test_elsewhere_nobody_asks_kubernetes(pod, monkeypatch, tmp_path):
    monkeypatch.setattr(autoscaler_limits, "_BOOTSTRAP", str(tmp_path / "none.yaml"))
    monkeypatch.delenv("RAY_CLUSTER_NAME")
    assert autoscaler_nodes() == ()
