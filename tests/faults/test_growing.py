"""A cluster without a node for trials grows when a sweep starts: Ray's autoscaler with simulated nodes.

It runs in new namespaces of processes, network and mounts, because the simulated nodes have fixed ports and must not
reach other programs. `ray.cluster_utils.AutoscalingCluster` needs a file that Ray's wheel does not have.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers.clusters import PROJECT, Cluster
from helpers.sweeps import SweepProcess, sweep_file
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID, FakeMultiNodeProvider

from tune_dml.record.ledger import read_events
from tune_dml.record.results import results_of

CLUSTER = {
    "cluster_name": "growing",
    "max_workers": 2,
    "idle_timeout_minutes": 2.0,
    # By its class: under its name Ray reads a file of defaults that its wheel does not have.
    "provider": {"type": "external", "module": f"{FakeMultiNodeProvider.__module__}.{FakeMultiNodeProvider.__name__}"}
    | {"disable_node_updaters": True, "disable_launch_config_check": True}
    | {"launch_multiple": True, "head_node_id": FAKE_HEAD_NODE_ID},
    "auth": {"ssh_user": "nobody"},
    "head_node_type": "ray.head.default",
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "worker": {
            "resources": {"CPU": 1, "object_store_memory": 80_000_000},
            "node_config": {},
            "min_workers": 0,
            "max_workers": 2,
        },
    },
    **{f"{name}_commands": [] for name in ("initialization", "setup", "head_setup", "worker_setup")},
    **{f"{name}_start_ray_commands": [] for name in ("head", "worker")},
    "cluster_synced_files": [],
    "file_mounts": {},
    "file_mounts_sync_continuously": False,
}
WITHIN = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
BEGIN = """
ip link set lo up
ip link add out type veth peer name in && ip link set in up && ip address add 10.213.8.1/24 dev out && ip link set out up
ip route add default dev out
mkdir -p "$RAY_TMPDIR" && mount -t tmpfs tmpfs "$RAY_TMPDIR"
cluster="$HOME/ray_bootstrap_config.yaml"
ray start --head --num-cpus=0 --autoscaling-config="$cluster" --object-store-memory=80000000 > "$HOME/head.log"
exec "$@"
"""


SECOND = {"RAY_enable_autoscaler_v2": "1", "RAY_NODE_TYPE_NAME": "ray.head.default"} | dict.fromkeys(
    ("RAY_CLOUD_INSTANCE_ID", "RAY_OVERRIDE_NODE_ID_FOR_TESTING"), FAKE_HEAD_NODE_ID
)
"""Environment that selects the second version of the autoscaler, as `ray up` and KubeRay do."""


@pytest.mark.slow
@pytest.mark.parametrize("version", [{}, SECOND], ids=["first", "second"])
def test_a_sweep_starts_on_a_cluster_without_nodes(tmp_path, cache_dir, version):
    if subprocess.run([*WITHIN, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces of its own need the right to make them")
    home = tmp_path / "home"
    home.mkdir()
    (home / "ray_bootstrap_config.yaml").write_text(yaml.safe_dump(CLUSTER))  # where `ray up` leaves it
    environment = {
        **{
            name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")
        },  # of a Ray of this process
        **{"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        **{"RAY_TMPDIR": "/tmp/growing", "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"},  # noqa: S108
        **version,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    sweep = [sys.executable, "-m", "tune_dml.cli", "sweep", sweep_file((0.1, 0.5), seeds=2, steps=40)]
    sweep += ["--name", "toy", "--address", "auto", "--cache-dir", str(cache_dir)]
    done = subprocess.run(
        [*WITHIN, "bash", "-euc", BEGIN, "bash", *sweep],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert {trial.status for trial in results_of(tmp_path / "sweeps" / "toy").trials} == {"finished"}


@pytest.mark.slow
def test_a_node_that_joins_trains_trials_of_the_running_sweep(tmp_path, cache_dir):
    """As on an on-premise cluster whose nodes the head starts one after another."""
    with Cluster(tmp_path / "cluster", workers=0) as cluster:
        cluster.add_worker(has_project=True)
        cluster.wait_for(2)
        words = ["sweep", sweep_file((0.1, 0.3, 0.5, 0.9), steps=3000, every=500), "--name", "toy"]
        flags = ["--address", cluster.address, "--cache-dir", cache_dir]
        environment = {**cluster.environment, "PYTHONPATH": str(PROJECT)}
        sweep = SweepProcess([*words, *flags], tmp_path / "sweeps" / "toy", environment)
        sweep.wait_until(lambda: sweep.events("started"))
        cluster.add_worker(has_project=True)
        cluster.wait_for(3)
        assert sweep.end() == 0, sweep.read_output()
    events = [event for event in read_events(sweep.folder) if event.kind in {"started", "ended"}]
    running, most = 0, 0
    for event in events:
        running += 1 if event.kind == "started" else -1
        most = max(most, running)
    assert most == 2, sweep.read_output()
    assert "nodes have joined: 2 trials at once" in sweep.read_output()
    assert {trial.status for trial in results_of(sweep.folder).trials} == {"finished"}
