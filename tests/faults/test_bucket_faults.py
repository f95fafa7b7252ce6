"""Trials with files in a bucket: killed workers and drivers, unreachable store, torn checkpoints, no shared folder."""

import contextlib
import io
import os
import signal
import subprocess
import threading
import time

import pytest
import torch
from helpers.clusters import Cluster, children_of, command_of
from helpers.sweeps import SweepProcess, outcome, sweep_file

from tune_dml.record.results import results_of
from tune_dml.record.state import read_state

pytestmark = pytest.mark.slow
HIDDEN = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
"""Command prefix of a node: an empty folder hides the storage from it."""


@pytest.fixture
def begin(tmp_path, cache_dir, store):
    runs = []

    def start(verb="sweep", **values):
        given = [sweep_file(**values), "--name", "toy", "--trial-files", store.address] if verb == "sweep" else ["toy"]
        runs.append(SweepProcess([verb, *given, "--cache-dir", cache_dir], tmp_path / "sweeps" / "toy"))
        return runs[-1]

    yield start
    for each in runs:
        each.stop()


def checkpoints(store):
    """Return the names of checkpoints in the bucket by trial."""
    found = {}
    for name in store.objects():
        if name.rpartition("/")[2].startswith("checkpoint"):
            found.setdefault(name.split("/")[-2], []).append(name)
    return found


def in_the_middle(sweep, store, number=1):
    """Return whether one trial has ended and another has `number` checkpoints."""
    ended = {event.key for event in sweep.events("ended")}
    there = checkpoints(store)
    return bool(ended) and any(
        len(there.get(event.key, ())) >= number for event in sweep.events("started") if event.key not in ended
    )


def assert_files_are_in_storage(sweep, store):
    assert [name for name, size in store.objects().items() if size] == []
    state = read_state(sweep.folder)
    assert not any(trial.has_remote_files for trial in state.trial_states.values())
    for key in state.trials:
        names = {path.name for path in (sweep.folder / "trials" / key).rglob("*") if path.is_file()}
        assert names >= {"history.jsonl", "sealed.json", "hits_val.npz", "evidence.json", "sheet.jpg"}


def test_a_killed_worker_resumes_from_the_bucket(begin, store, undisturbed, found):
    sweep = begin()
    sweep.wait_until(lambda: in_the_middle(sweep, store))
    os.kill(sweep.find("ray::ImplicitFunc")[0], signal.SIGKILL)
    after = sweep.finish(undisturbed)
    assert_files_are_in_storage(sweep, store)
    found("files in a bucket: kill -9 of a trial's worker", after)


def test_trials_wait_for_an_unreachable_store(begin, store, undisturbed, found):
    sweep = begin()
    sweep.wait_until(lambda: in_the_middle(sweep, store))
    store.stop()
    threading.Event().wait(8)
    assert sweep.process.poll() is None
    store.start()
    after = sweep.finish(undisturbed)
    assert "object storage fails" in sweep.read_output()
    assert "waiting up to 10 minutes" in sweep.read_output()
    assert not sweep.events("retry")
    assert_files_are_in_storage(sweep, store)
    found("files in a bucket: the store is away for 8 s", after)


def kill_in_the_middle(sweep, store, number):
    """Kill all processes of a sweep while one trial has ended and another runs."""
    sweep.wait_until(lambda: in_the_middle(sweep, store, number))
    os.kill(sweep.driver, signal.SIGSTOP)
    while not in_the_middle(sweep, store, number):
        os.kill(sweep.driver, signal.SIGCONT)
        sweep.wait_until(lambda: in_the_middle(sweep, store, number))
        os.kill(sweep.driver, signal.SIGSTOP)
    below = children_of(sweep.pid)  # cannot be found once the parent is gone
    for pid in (sweep.pid, *below):  # the supervisor first, which restarts the driver
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    sweep.process.wait()


@pytest.mark.parametrize("torn", [False, True])
def test_a_killed_sweep_leaves_no_files_in_the_bucket_after_resume(begin, store, undisturbed, found, torn):
    sweep = begin()
    kill_in_the_middle(sweep, store, 2)
    ended = {event.key for event in sweep.events("ended")}
    for names in [names for key, names in checkpoints(store).items() if key not in ended and torn]:
        contents = {name: store.read(name) for name in names}
        last = max(names, key=lambda name: torch.load(io.BytesIO(contents[name]), weights_only=True)["step"])
        store.write(last, contents[last][: len(contents[last]) // 2])
    again = begin("resume")
    after = again.finish(undisturbed)
    assert ("cannot be read" in again.read_output()) == torn
    assert_files_are_in_storage(sweep, store)
    fault = "kill -9 of driver, supervisor and workers" + ", the last checkpoints torn" * torn
    found(f"files in a bucket: {fault}; then resume", after)


@pytest.fixture
def apart(tmp_path, cache_dir):
    """Start a cluster whose two nodes cannot see the storage."""
    storage = tmp_path / "storage"
    storage.mkdir()
    within = ["unshare", "--mount", "sh", "-c", HIDDEN, str(storage)]
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nodes that share no folder need the right to mount")
    with Cluster(tmp_path / "cluster", workers=0) as cluster:
        for number in range(2):
            cluster.add_worker(within=within)
            cluster.wait_for(2 + number)
        cluster.storage = storage
        yield cluster


def submit(cluster, store, tmp_path, cache_dir, *words):
    """Submit a sweep to the cluster and follow it."""
    there = ["--storage", cluster.storage, "--tracking-uri", f"sqlite:///{tmp_path / 'mlflow.db'}"]
    sent = cluster.run(
        *("submit", cluster.http, "--", "sweep", *words, "--name", "toy", "--cache-dir", cache_dir, *there),
        *("--trial-files", store.address),
        cwd=tmp_path,
    )
    assert sent.returncode == 0, sent.stdout
    return SweepProcess(["logs", cluster.http, "toy", "--follow"], cluster.storage / "toy", cluster.environment)


def test_a_node_dies_in_a_cluster_without_shared_folder(apart, store, tmp_path, cache_dir, undisturbed, found):
    asked = ["submit", apart.http, "--", "doctor", "--cache-dir", cache_dir]
    without = apart.run(*asked, "--storage", apart.storage, cwd=tmp_path)
    assert "Mount one file system" in without.stdout
    seen = apart.run(*asked, "--storage", apart.storage, "--trial-files", store.address, cwd=tmp_path)
    assert "put, got, listed and deleted on 3" in seen.stdout, seen.stdout
    assert without.returncode == 1
    assert seen.returncode == 0, seen.stdout
    sweep = submit(apart, store, tmp_path, cache_dir, sweep_file())
    sweep.wait_until(lambda: in_the_middle(sweep, store))
    for pid in apart.processes(1) + children_of(apart.nodes[1].pid):
        os.kill(pid, signal.SIGKILL)
    after = sweep.finish(undisturbed)
    assert_files_are_in_storage(sweep, store)
    found("nodes that share only a bucket: kill -9 of one of two (submitted)", after)


def test_two_workers_of_a_trial_without_shared_folder(apart, store, tmp_path, cache_dir, found):
    words = [sweep_file(values=(0.1, 0.5), steps=60), "--workers", "2"]
    sweep = submit(apart, store, tmp_path, cache_dir, *words)
    sweep.wait_until(lambda: bool(checkpoints(store)))
    workers = [pid for node in apart.nodes for pid in children_of(node.pid) if "RayTrainWorker" in command_of(pid)]
    assert len(workers) == 2, [command_of(pid) for node in apart.nodes for pid in children_of(node.pid)]
    os.kill(workers[0], signal.SIGKILL)
    since = time.time()
    assert sweep.end() == 0, sweep.read_output()
    results = results_of(sweep.folder)
    assert results.count("finished") == 2
    assert [row["step"] for row in results.history(results.trials[0].key)] == [20, 25, 40, 50, 60]
    assert_files_are_in_storage(sweep, store)
    fault = "nodes that share only a bucket: kill -9 of one of two DDP workers (two trials, submitted)"
    found(fault, outcome(sweep.folder, since))
