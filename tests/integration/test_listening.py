"""A local Ray and the workers of a trial are reachable from this machine only (SECURITY.md)."""

import os
from pathlib import Path

import pytest
import ray
from helpers.clusters import children_of
from helpers.sweeps import SweepProcess, sweep_file

LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
"""127.0.0.1, ::1 and the first as an address of the second kind, as the kernel writes them."""


def sockets_of(pids):
    """Return the command of the process for the inode of each open socket of these processes."""
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:  # ended meanwhile
            continue
        for file in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                kind, _, inode = os.readlink(file).partition(":")
            except OSError:  # closed meanwhile
                continue
            if kind == "socket":
                yield inode.strip("[]"), command


def listening(pids):
    """Return the addresses at which these processes listen, as the kernel writes them, and a process of each."""
    commands = dict(sockets_of(pids))
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {line[1].partition(":")[0]: commands[line[9]] for line in lines if line[3] == "0A" and line[9] in commands}


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
