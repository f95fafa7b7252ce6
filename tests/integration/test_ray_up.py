"""From `ray up` to `ray down` with deploy/on_premises.yaml, on three virtual machines with SSH."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from helpers.clusters import PROJECT
from helpers.machines import Machines, lacking
from helpers.sweeps import sweep_file

from tune_dml.record.results import results_of

pytestmark = pytest.mark.slow
LOOPBACK = "0100007F"
MLFLOW, DASHBOARD = "1388", "2049"
"""Ports 5000 and 8265, as the kernel writes them."""


@pytest.fixture
def machines(tmp_path):
    if why := lacking():
        pytest.skip(f"machines of their own: {why}")
    with Machines(tmp_path / "machines", 3) as machines:
        yield machines


@pytest.fixture
def laptop(tmp_path, machines, monkeypatch):
    """A copy of the project with a token, in which `tune-dml` and `ray` run."""
    home, copy = tmp_path / "laptop", tmp_path / "copy"
    (home / ".ray").mkdir(parents=True)
    token = home / ".ray" / "auth_token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(16))
    for package in ("tune_dml", "trainables", "search_spaces"):
        shutil.copytree(PROJECT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(copy)
    for name in ("PYTHONPATH", "RAY_ADDRESS", "SSH_AUTH_SOCK"):
        monkeypatch.delenv(name, raising=False)
    here = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for name, value in {"HOME": str(home), "PATH": here, "PYTHONPATH": str(copy), "COLUMNS": "150"}.items():
        monkeypatch.setenv(name, value)
    return copy


def cluster_file(machines):
    """deploy/on_premises.yaml with the addresses of these machines; installation is replaced by a link."""
    config = yaml.safe_load((PROJECT / "deploy" / "on_premises.yaml").read_text())
    head, *workers = machines.addresses
    config["provider"] |= {"head_ip": head, "worker_ips": workers}
    assert config["auth"]["ssh_private_key"]
    config["auth"]["ssh_private_key"] = str(machines.key)  # ssh looks up ~ by the user's number
    installs = [command for command in config["setup_commands"] if "uv" in command or "pip" in command]
    assert len(installs) == 4
    linked = [f"ln -sfn {sys.prefix} ~/venv", "echo 'export PYTHONPATH=$HOME/tune_dml' >> ~/.bashrc"]
    rest = [command for command in config["setup_commands"] if command not in installs]
    config["setup_commands"] = linked + rest
    Path("mine.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return "mine.yaml"


def run(*words, seconds=240):
    """Run a command that must succeed within the time limit, and return its output."""
    words = [str(word) for word in ("timeout", seconds, *words)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def tune_dml(*words, seconds=240):
    return run(sys.executable, "-m", "tune_dml.cli", *words, seconds=seconds)


def listening(machines, number, port):
    """Return the addresses at which a machine listens on a port, as the kernel writes them."""
    lines = [line.split() for line in machines.on(number, "cat", "/proc/net/tcp", "/proc/net/tcp6").splitlines()]
    at = [line[1].split(":") for line in lines if line[3:4] == ["0A"]]
    return {address for address, open_port in at if open_port == port}


@pytest.mark.timeout(900)
def test_a_cluster_file_of_own_machines_runs_a_sweep(machines, laptop):
    file = cluster_file(machines)
    assert "Ready" in tune_dml("doctor", "--cluster", file)
    run("ray", "up", "--yes", file, seconds=90)
    try:
        at = ("--storage", "/mnt/shared/sweeps")
        deadline = time.monotonic() + 300
        while "3 alive" not in (seen := tune_dml("submit", file, "--", "doctor", *at)):  # the head starts the others
            assert time.monotonic() < deadline, seen
        assert "written on one node, read on 3" in seen
        assert listening(machines, 0, MLFLOW) == listening(machines, 0, DASHBOARD) == {LOOPBACK}

        sweep = sweep_file((0.1, 0.9), steps=60)
        sent = tune_dml("submit", file, "--", "sweep", sweep, "--name", "toy", *at, "--workers", 2, "--gpu-hours", 1)
        assert "toy@1 submitted" in sent
        tune_dml("logs", file, "toy", "--follow")
        results = results_of(machines.shared / "sweeps" / "toy")
        assert [trial.status for trial in results.trials] == ["finished"] * 2
        assert [trial.attempts for trial in results.trials] == [1, 1]
        assert "MLflow agrees with the ledger" in tune_dml("submit", file, "--", "sync", "toy", *at)
        status = json.loads(tune_dml("submit", file, "--json", "--", "status", "toy", *at, "--json"))
        assert status["counts"]["finished"] == 2
    finally:
        run("ray", "down", "--yes", file)
