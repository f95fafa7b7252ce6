"""Ray's side, without Ray: capacity, addresses, and the cluster file in Ray's own schema."""

import socket
from pathlib import Path

import pytest
import yaml

from tune_dml.planning.request import Resources
from tune_dml.running.cluster import (
    Capacity,
    address_of,
    address_problems,
    capacity_at,
    capacity_problems,
    resource_problems,
)

CLUSTER = Path(__file__).parents[2] / "cluster.yaml"


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
def test_how_many_trials_fit(capacity, resources, fits):
    assert capacity.trials_that_fit(resources) == fits
    assert bool(capacity_problems(capacity, resources)) == (fits == 0)


def test_what_never_fits_names_need_and_supply():
    (problem,) = capacity_problems(nodes((2, 0)), Resources(workers=3, gpus_per_worker=1))
    assert "2 CPUs and 0 GPUs" in str(problem)
    assert "3 worker(s) x 1 CPU and 1 GPU" in str(problem)
    assert "--workers" in problem.remedy


def test_the_address_comes_from_flag_then_environment(monkeypatch):
    assert address_of(None) == (None, "default")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert address_of(None) == ("10.0.0.1:6379", "RAY_ADDRESS")
    assert address_of("auto") == ("auto", "--address")
    assert address_of("local") == (None, "--address")


def test_somebody_must_listen_at_the_address():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert address_problems(f"127.0.0.1:{port}", "--address") == []
        assert address_problems(f"ray://127.0.0.1:{port}", "--address") == []
    (problem,) = address_problems(f"127.0.0.1:{port}", "RAY_ADDRESS")
    assert problem.place == "RAY_ADDRESS"
    assert str(port) in str(problem)


@pytest.mark.parametrize("address", ["nonsense", "host:", "http://", "host:port"])
def test_what_is_no_address_is_refused(address):
    assert address_problems(address, "--address")


def test_the_cluster_file_is_rays_own():
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(yaml.safe_load(CLUSTER.read_text()))
    validate_config(config)
    assert config["available_node_types"]["head"]["resources"]["trial_driver"] > 0


def test_a_cluster_that_cannot_be_joined_is_one_problem_of_its_flag(monkeypatch):
    import ray

    def refuses(**arguments):
        assert arguments["address"] == "auto"
        raise ConnectionError("Could not find any running Ray instance.\nPlease specify the one to connect to.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuses)
    (problem,) = resource_problems(Resources(), ("auto", "--address"))
    assert problem.place == "--address"
    assert "Could not find any running Ray instance" in problem.rule
    assert "Please specify" not in problem.rule
    assert "--address local" in problem.remedy


def test_a_local_cluster_is_not_started_to_be_asked(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **arguments: pytest.fail("started"))
    assert capacity_at(None).total("CPU") >= 1
    assert not resource_problems(Resources(), (None, "default"))
    (problem,) = resource_problems(Resources(cpus_per_worker=999), (None, "default"))
    assert "999 CPU" in str(problem)
