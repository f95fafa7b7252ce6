"""Capacity, addresses and tokens of Ray, without Ray."""

import os
import socket
from concurrent import futures
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from helpers.answers import AnsweringServer
from helpers.processes import printed_by
from helpers.sources import ROOT

from trainables.errors import ConfigError, Problem
from tune_dml.planning.checks import gpus
from tune_dml.planning.request import Resources
from tune_dml.running.cluster import cluster, probe_address
from tune_dml.running.cluster.cluster import Capacity, address_of, capacity_at, capacity_problems, resource_problems
from tune_dml.running.cluster.jobs import cluster_client
from tune_dml.running.cluster.probe_address import address_problems, job_server_problems
from tune_dml.running.trials import gpu_sharing
from tune_dml.running.trials.gpu_sharing import resolve_gpus, resources_of


def nodes(*each):
    return Capacity(tuple({"CPU": cpu, "GPU": gpu} for cpu, gpu in each))


@pytest.mark.parametrize(
    ("capacity", "resources", "fits"),
    [
        (nodes((2, 0)), Resources(), 2),
        (nodes((2, 0)), Resources(workers=2), 1),
        (nodes((2, 0)), Resources(workers=3), 0),
        (nodes((8, 0), (8, 0)), Resources(workers=16), 1),
        (nodes((3, 0), (3, 0)), Resources(cpus_per_worker=2), 2),
        (nodes((3, 0), (3, 0)), Resources(cpus_per_worker=4), 0),
        (nodes((16, 4)), Resources(gpus_per_worker=1), 4),
        (nodes((16, 4)), Resources(gpus_per_worker=0.5), 8),
        (nodes((16, 1)), Resources(gpus_per_worker=0.3), 3),
        (nodes((16, 4)), Resources(workers=2, gpus_per_worker=2), 1),
        (nodes((16, 1), (16, 1)), Resources(gpus_per_worker=2), 0),
    ],
)
def test_the_number_of_trials_that_fit_is_computed(capacity, resources, fits):
    assert capacity.trials_that_fit(resources) == fits
    assert bool(capacity_problems(capacity, resources)) == (fits == 0)


@pytest.mark.parametrize(
    ("there", "share"),
    [
        (nodes((8, 0), (16, 4)), 1.0),
        (Capacity(({"CPU": 0.0},), future_nodes=({"CPU": 48.0, "GPU": 4.0},)), 1.0),
        (nodes((8, 0)), 0.0),
        (None, 0.0),
    ],
)
def test_a_worker_has_a_gpu_if_its_cluster_has_or_may_add_one(monkeypatch, there, share):
    """A submitted driver runs on the head, which has no GPU; this machine says nothing about the cluster."""

    def capacity(address, origin):
        assert (address, origin) == ("head:6379", "address")
        if there is None:
            raise ConfigError(Problem(origin, "must be reachable"))
        return there

    monkeypatch.setattr(gpu_sharing, "address_problems", lambda address, origin: [])
    monkeypatch.setattr(cluster, "capacity_at", capacity)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1" if not share else "")
    assert resolve_gpus(Resources(), "head:6379").gpus_per_worker == share
    assert resolve_gpus(Resources(gpus_per_worker=0.5), "head:6379").gpus_per_worker == 0.5
    assert resolve_gpus(Resources(gpus_per_worker=0.0), "head:6379").gpus_per_worker == 0.0


@pytest.mark.parametrize(("visible", "share"), [("0,1", 1.0), ("", 0.0)])
def test_a_worker_has_a_gpu_if_this_machine_has_one(monkeypatch, visible, share):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(gpus, "_KINDS", ("null",))  # as if it had some
    monkeypatch.setattr(cluster, "_has_ray", lambda: False)  # a Ray that another test has left knows of none
    assert resolve_gpus(Resources(), "local").gpus_per_worker == share


@pytest.mark.parametrize(
    ("dataset", "requested", "share"), [("features", None, 0.0), ("features", 0.5, 0.5), ("glyphs", None, 1.0)]
)
def test_heads_train_on_cpus_unless_gpus_are_requested(dataset, requested, share):
    plan = SimpleNamespace(dataset=dataset)
    resolved = Resources(gpus_per_worker=1.0 if requested is None else requested)
    assert resources_of(plan, Resources(gpus_per_worker=requested), resolved).gpus_per_worker == share


def test_impossible_resources_are_reported_with_need_and_supply():
    (problem,) = capacity_problems(nodes((2, 0)), Resources(workers=3, gpus_per_worker=1))
    assert "2 CPUs and 0 GPUs" in str(problem)
    assert "3 worker(s) x 1 CPU and 1 GPU" in str(problem)
    assert "workers" in problem.remedy


def test_own_machines_that_have_not_joined_are_named():
    """`ray up` ends when the head is up; Ray knows the others' resources only once they join."""
    begun = Capacity(({"CPU": 0.0}, {"CPU": 1.0}), future_nodes=({}, {}))
    (problem,) = capacity_problems(begun, Resources(workers=2))
    assert problem.remedy.startswith("Only 1 of its 2 machines beside the head have joined")


def test_the_address_comes_from_flag_then_environment(monkeypatch):
    assert address_of(None) == (None, "default")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert address_of(None) == ("10.0.0.1:6379", "RAY_ADDRESS")
    assert address_of("auto") == ("auto", "address")
    assert address_of("local") == (None, "address")


def test_an_open_port_is_neither_a_ray_head_nor_a_dashboard(monkeypatch):
    monkeypatch.setattr(probe_address, "_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        for address in (place, f"ray://{place}"):
            assert address_problems(address, "--address")
        (silent,) = job_server_problems(f"http://{place}", "cluster")
    assert "must answer (timed out)" in silent.rule
    (problem,) = job_server_problems(f"http://{place}", "cluster")
    assert "must answer (Connection refused)" in problem.rule
    (problem,) = address_problems(place, "RAY_ADDRESS")
    assert problem.place == "RAY_ADDRESS"
    assert place in str(problem)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, f'{{"ray_version": "{version("ray")}"}}', ""),
        (200, '{"ray_version": "1.0"}', "the cluster has 1.0"),
        (200, '{"version": "1"}', "must be the dashboard of a Ray cluster"),
        (200, "<html>", "must be the dashboard of a Ray cluster"),
        (404, "", "must be the dashboard of a Ray cluster"),
        (401, "", "asks for its token"),
        (403, "", "asks for its token"),
    ],
)
def test_a_job_is_sent_to_a_dashboard_alone(home, status, body, said):
    with AnsweringServer((status, body)) as server:
        problems = job_server_problems(f"{server.url}/", "cluster")
    assert [problem.place for problem in problems] == ["cluster"] * bool(said)
    assert all(said in problem.rule for problem in problems)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, "name a second file with RAY_AUTH_TOKEN_PATH"),
        ({"RAY_AUTH_TOKEN": "another"}, "RAY_AUTH_TOKEN holds another token"),
        ({"RAY_AUTH_TOKEN_PATH": "another"}, "RAY_AUTH_TOKEN_PATH names another, which holds another token"),
        ({"RAY_AUTH_MODE": "disabled"}, "set it to token"),
    ],
    ids=str,
)
def test_a_wrong_token_is_reported_with_its_source(home, monkeypatch, variables, told):
    """The token in the home folder has no effect if a variable names another file or disables tokens."""
    Path("another").write_text("another")
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    _, remedy = probe_address._token_problem()
    assert told in remedy


@pytest.mark.parametrize("content", [None, b"", b" \n"], ids=["nothing", "empty", "blanks"])
def test_an_empty_token_file_gives_one_line(tmp_path, monkeypatch, content):
    """Ray raises when it looks for a token, after the sweep's folder has been created."""
    place = tmp_path / "token"
    if content is not None:
        place.write_bytes(content)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(place))
    for (problem,) in (
        address_problems(None, "default"),
        address_problems("host:6379", "--address"),
        address_problems("auto", "--address"),
        job_server_problems("http://127.0.0.1:9", "cluster"),
    ):
        assert (problem.place, problem.value) == ("RAY_AUTH_TOKEN_PATH", str(place))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    assert address_problems(None, "default") == []


DEAD = "http://me:secret@127.0.0.1:9"


@pytest.fixture
def behind_a_proxy(monkeypatch):
    """As in a company's network: a proxy for all hosts outside no_proxy, which cannot reach our loopback."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, DEAD)


def test_a_proxy_that_answers_for_a_dashboard_is_named(home, behind_a_proxy, monkeypatch):
    (problem,) = job_server_problems("http://127.0.0.1:9", "cluster")  # where no dashboard listens
    assert "through the proxy http://***@127.0.0.1:9. To avoid it: `export no_proxy=127.0.0.1`." in problem.remedy
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert "proxy" not in job_server_problems("http://127.0.0.1:9", "cluster")[0].remedy


def test_a_head_is_contacted_without_proxy_as_ray_does(home, behind_a_proxy):
    from ray.core.generated import gcs_service_pb2

    reply = gcs_service_pb2.CheckAliveReply(ray_version=version("ray")).SerializeToString()
    head = grpc.server(futures.ThreadPoolExecutor(1))
    method = grpc.unary_unary_rpc_method_handler(lambda request, context: reply)
    service = grpc.method_handlers_generic_handler("ray.rpc.NodeInfoGcsService", {"CheckAlive": method})
    head.add_generic_rpc_handlers([service])
    port = head.add_insecure_port("127.0.0.1:0")
    head.start()
    try:
        assert address_problems(f"127.0.0.1:{port}", "--address") == []
    finally:
        head.stop(None)


@pytest.mark.parametrize("target", ["nonsense", "auto", "127.0.0.1", "host:port"])
def test_unknown_clusters_are_refused(target):
    with pytest.raises(ConfigError, match="a cluster is named by its file"), cluster_client(target):
        pytest.fail("connected")


def printed(code, **environment):
    """Return the output of a process with only these environment variables."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    given = {name: value for name, value in given.items() if value}
    return printed_by(code, env=given)


@pytest.mark.slow
def test_a_token_is_sent_unless_the_user_disables_it(home):
    code = "from tune_dml.running import ray_internals as r; print(r.load_token(), r.is_token_auth_enabled())"

    def said(**environment):
        return printed(code, HOME=str(home.parents[1]), **environment)

    assert said(RAY_AUTH_MODE="") == "secret True\n"
    assert said(RAY_AUTH_MODE="disabled") == "None False\n"
    home.unlink()
    assert said(RAY_AUTH_MODE="token") == "None True\n"


@pytest.mark.slow
@pytest.mark.parametrize("can_write", [True, False], ids=["a new home", "a home that cannot be written"])
def test_a_started_ray_finds_its_token_with_any_home(tmp_path, can_write):
    """Two simultaneous starts share one token; Ray's own code would fail without a home, and write two."""
    home = tmp_path / "home"
    home.mkdir() if can_write else home.touch()
    code = """
import os
from unittest.mock import patch
from tune_dml.running import ray_internals as r
link = os.link
def late(new, place):  # another sweep's Ray was sooner
    open(place, "x").write("another's")
    link(new, place)
with patch("os.link", late):
    r.create_token()
print(r.load_token(), os.environ.get("RAY_AUTH_TOKEN", ""))
"""
    token, _, ours = printed(code, HOME=str(home), RAY_AUTH_MODE="", RAY_AUTH_TOKEN="").rstrip("\n").partition(" ")
    assert (token, ours) == ("another's", "") if can_write else token == ours != ""
    assert printed(code, HOME=str(home), RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN="") == "None \n"
    if can_write:
        alone = code.replace("late)", "link)")
        (home / ".ray" / "auth_token").unlink()
        assert len(printed(alone, HOME=str(home), RAY_AUTH_MODE="", RAY_AUTH_TOKEN="").strip()) >= 32
        (token,) = (home / ".ray").iterdir()
        assert (token.name, token.stat().st_mode & 0o777) == ("auth_token", 0o600)


@pytest.mark.parametrize("address", ["nonsense", "host:", "http://", "host:port"])
def test_malformed_addresses_are_refused(address):
    assert address_problems(address, "--address")


def test_a_cluster_that_cannot_be_joined_is_one_problem_of_its_flag(monkeypatch):
    import ray

    def refuses(**arguments):
        assert arguments["address"] == "auto"
        raise ConnectionError("Could not find any running Ray instance.\nPlease specify the one to connect to.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuses)
    (problem,) = resource_problems(Resources(), ("auto", "address"))
    assert problem.place == "address"
    assert "Could not find any running Ray instance" in problem.rule
    assert "Please specify" not in problem.rule
    assert "set it to `local`" in problem.remedy


def test_capacity_of_a_local_cluster_is_known_without_starting_it(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **arguments: pytest.fail("started"))
    assert capacity_at(None).total("CPU") >= 1
    assert not resource_problems(Resources(), (None, "default"))
    (problem,) = resource_problems(Resources(cpus_per_worker=999), (None, "default"))
    assert "999 CPU" in str(problem)


@pytest.mark.parametrize(
    ("address", "engine", "stays"), [(None, "train", "1"), (None, "local", "0"), ("head:6379", "train", "0")]
)
def test_a_ray_of_ours_trains_with_the_version_of_ray_train_that_we_speak(monkeypatch, address, engine, stays):
    """With a profile that requests the first version, each trial was lost three times."""
    monkeypatch.setattr(os, "environ", {"RAY_TRAIN_V2_ENABLED": "0"})
    cluster._init_arguments(address, engine, preload=False)
    assert os.environ["RAY_TRAIN_V2_ENABLED"] == stays
