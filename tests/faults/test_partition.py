"""A separate network between head and one node: cut during a sweep, and with host names that resolve to loopback."""

import subprocess
import time

import pytest
from helpers.clusters import Cluster
from helpers.sweeps import SweepProcess, outcome, sweep_file, table

HEAD, NODE, NETWORK = "10.213.7.1", "10.213.7.2", "tunedml"


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@pytest.fixture
def network():
    """Network namespace with one cable."""
    made = ip("netns", "add", NETWORK)
    if made.returncode:
        pytest.skip(f"a network of its own needs the right to make one: {made.stderr.strip()}")
    try:
        ip("link", "add", f"{NETWORK}0", "type", "veth", "peer", "name", f"{NETWORK}1", "netns", NETWORK)
        ip("address", "add", f"{HEAD}/24", "dev", f"{NETWORK}0")
        ip("link", "set", f"{NETWORK}0", "up")
        for words in (["address", "add", f"{NODE}/24", "dev", f"{NETWORK}1"], ["link", "set", f"{NETWORK}1", "up"]):
            ip("-n", NETWORK, *words)
        ip("-n", NETWORK, "link", "set", "lo", "up")
        yield NETWORK
    finally:
        ip("link", "delete", f"{NETWORK}0")
        ip("netns", "delete", NETWORK)


@pytest.mark.slow
def test_a_trial_of_a_disconnected_node_moves_to_another(network, tmp_path, cache_dir, found):
    """Both sides still write to the storage; the restarted and the disconnected trial must write equal bytes."""
    words = [sweep_file((0.1, 0.5, 0.9), steps=400), "--cache-dir", cache_dir]
    quiet = SweepProcess(["sweep", *words, "--name", "quiet"], tmp_path / "sweeps" / "quiet").final_table()
    storage, store = tmp_path / "shared", f"sqlite:///{tmp_path / 'mlflow.db'}"
    with Cluster(tmp_path / "cluster", workers=1, host=HEAD) as cluster:
        cluster.add_worker(f"--node-ip-address={NODE}", within=["ip", "netns", "exec", network])
        cluster.wait_for(3)
        there = ["--name", "toy", "--storage", storage, "--tracking-uri", store]
        sent = cluster.run("submit", cluster.http, "--", "sweep", *words, *there, cwd=tmp_path)
        assert sent.returncode == 0, sent.stdout
        sweep = SweepProcess(["logs", cluster.http, "toy", "--follow"], storage / "toy", cluster.environment)
        sweep.wait_until(lambda: any(event.body()["host"] == NODE for event in sweep.events("started")))
        (cut_off,) = [event.key for event in sweep.events("started") if event.body()["host"] == NODE][:1]
        sweep.wait_until((sweep.folder / "trials" / cut_off / "checkpoint.pt").exists)
        ip("link", "set", f"{NETWORK}0", "down")
        since = time.time()
        sweep.wait_until(lambda: any(event.key == cut_off for event in sweep.events("retry")))
        ip("link", "set", f"{NETWORK}0", "up")
        assert sweep.end() == 0, sweep.read_output()
    again = [event for event in sweep.events("started") if event.key == cut_off]
    assert [event.body()["host"] == NODE for event in again] == [True, False]
    assert table(sweep.folder) == quiet
    fault = "the network between the head and a node is cut, then mended (three trials, submitted)"
    found(fault, outcome(sweep.folder, since))


NAMES = """
hostname "$1" && printf '127.0.0.1 localhost\\n127.0.1.1 %s\\n' "$1" > "$2/$1" && mount --bind "$2/$1" /etc/hosts
shift 2 && exec "$@"
"""


@pytest.mark.slow
def test_workers_connect_if_every_host_name_resolves_to_loopback(network, tmp_path, cache_dir):
    """Debian and Ubuntu map the host name to 127.0.1.1, which gloo uses by default."""
    named = ["unshare", "--mount", "--uts", "bash", "-euc", NAMES, "bash"]
    with Cluster(tmp_path / "cluster", workers=0, host=HEAD) as cluster:
        cluster.add_worker(f"--node-ip-address={HEAD}", within=[*named, "one", str(tmp_path)])
        cluster.wait_for(2)
        within = ["ip", "netns", "exec", network, *named, "two", str(tmp_path)]
        cluster.add_worker(f"--node-ip-address={NODE}", within=within)
        cluster.wait_for(3)
        flags = ["--name", "toy", "--storage", tmp_path / "shared", "--cache-dir", cache_dir, "--workers", "2"]
        sent = cluster.run("submit", cluster.http, "--", "sweep", sweep_file((0.1, 0.9)), *flags, cwd=tmp_path)
        assert sent.returncode == 0, sent.stdout
        sweep = SweepProcess(
            ["logs", cluster.http, "toy", "--follow"], tmp_path / "shared" / "toy", cluster.environment
        )
        sweep.wait_until(lambda: sweep.events("ended") or sweep.events("retry"))
        assert not sweep.events("retry"), sweep.read_output()
        assert sweep.end() == 0, sweep.read_output()
