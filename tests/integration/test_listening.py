"""A local Ray and the workers of a trial are reachable from this machine only (SECURITY.md)."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
import ray
from helpers.clusters import children_of
from helpers.sweeps import SweepProcess, sweep_file

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def listening(pids):
    """Return the addresses at which these processes listen, and a process of each."""
    import psutil  # installed with Ray

    commands = {}
    for pid in pids:
        with suppress(psutil.Error):  # ended meanwhile
            process = psutil.Process(pid)
            found = [each for each in process.net_connections() if each.status == psutil.CONN_LISTEN]
            commands |= {each.laddr.ip: process.cmdline() for each in found}
    return commands


@pytest.mark.usefixtures("ray_session")
def test_a_ray_of_this_machine_listens_on_loopback_alone():
    ray.get(ray.remote(num_cpus=0)(lambda: 1).remote())  # a worker listens too
    addresses = listening([os.getpid(), *children_of(os.getpid())])
    assert addresses
    assert addresses.keys() <= LOOPBACK, addresses


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_the_workers_of_a_trial_listen_on_loopback_alone(workers, cache_dir):
    words = ["sweep", sweep_file((0.1, 0.9)), "--name", "heard", "--engine", "train", "--workers", workers]
    sweep = SweepProcess([*words, "--cache-dir", cache_dir], Path.cwd() / "sweeps" / "heard")
    addresses = {}

    def has_ended():
        addresses.update(listening([sweep.pid, *children_of(sweep.pid)]))
        return len(sweep.events("ended")) == 2

    sweep.wait_until(has_ended)
    assert sweep.end() == 0, sweep.output.read_text()
    assert addresses
    assert addresses.keys() <= LOOPBACK, addresses
