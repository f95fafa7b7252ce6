"""Engine `train`: a trial as a Ray Train TorchTrainer with two gloo workers gives the losses of one worker."""

import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import ray
import torch
from helpers.clusters import Cluster
from helpers.processes import printed_by
from helpers.sweeps import sweep_file
from helpers.toys import Driver

import tune_dml
from trainables.context import EVIDENCE, TrialContext
from trainables.evidence.record import Evidence
from trainables.training import train
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request, Resources
from tune_dml.record.ledger import read_events, read_history
from tune_dml.record.results import results_of
from tune_dml.running.ray_internals import orphaned_placement_groups, remove_placement_groups

pytestmark = pytest.mark.slow

SWEEP = """
method: grid
parameters: {regularizer.rho: {values: [0.1]}}
baseline: {label: no SEC, settings: {regularizer.name: none}}
dataset: digits
seeds: 1
fixed:
  regularizer.name: sec
  regularizer.eta: 0.5
  training.precision: float64
  training.steps: 12
  training.eval_every: 6
"""


@pytest.mark.usefixtures("ray_session")
def test_two_workers_give_the_losses_of_one(cache_dir, new_database):
    new_database(Path.cwd())
    Path("one_value.yaml").write_text(SWEEP)
    plan = prepare(Request("one_value.yaml"), cache_dir=cache_dir).plan
    driver = Driver(Path("sweeps/one_value"), plan)
    driver.event("session", provenance={}, resources=asdict(Resources(workers=2, engine="train")))
    driver.run(plan.trials()[0])  # the baseline is on record: a start of two workers takes long
    done = tune_dml.resume_sweep("one_value", cache_dir=cache_dir)
    assert_as_alone(done.results, cache_dir)
    left = [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
    assert not left, "the next sweep of this Ray would wait for ever"


def test_the_command_line_starts_ray_for_two_workers(cache_dir):
    Path("one_value.yaml").write_text(SWEEP)
    command = [sys.executable, "-m", "tune_dml.cli", "sweep", "one_value.yaml", "--workers", "2"]
    command += ["--name", "two", "--cache-dir", str(cache_dir)]
    # Variables of a shell under torchrun, not meant for these workers: the last would make them wait half an hour.
    left = {"MASTER_ADDR": "10.99.99.99", "MASTER_PORT": "1", "RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8"}
    left["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    environment = {**os.environ, **left}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_as_alone(results_of(Path("sweeps/two")), cache_dir)


def assert_as_alone(results, cache_dir):
    """Check that a trial has the rows of the same trial trained here by one worker without Ray."""
    trial = next(trial for trial in results.trials if not trial.cell.baseline)
    assert trial.status == "finished", trial.reason
    two = read_history(results.folder, trial.key)
    one = []
    context = TrialContext(Path("alone"), torch.device("cpu"), sink=one.append)
    train(trial.cell.config, context, cache_dir=cache_dir)

    assert [row["step"] for row in one] == [row["step"] for row in two] == [6, 12]
    for alone, shared in zip(one, two, strict=True):
        for name in alone.keys() - {"time"}:
            if not name.startswith("time/"):
                assert shared[name] == pytest.approx(alone[name], rel=1e-10, abs=1e-10), name
    shown, alone = results.evidence(trial.key), Evidence.read(Path("alone") / EVIDENCE)
    for shared, single in zip(sum(shown.rows, ()), sum(alone.rows, ()), strict=True):
        assert shared.similarity == pytest.approx(single.similarity, abs=1e-9)
        assert replace(shared, similarity=None) == replace(single, similarity=None)
    assert shown.norms.counts == alone.norms.counts


IMPORTS = """
import sys, time
from pathlib import Path
import ray
from tune_dml.planning.request import Resources
from tune_dml.running.cluster import cluster
from tune_dml.running.trials.worker_group import WorkerGroup
"""
WHERE = """
def where(config, post):
    import torch.distributed as processes

    nodes = [None, None]
    processes.all_gather_object(nodes, ray.get_runtime_context().get_node_id())
    if processes.get_rank() == 0:
        post({"ended": {"nodes": len(set(nodes))}})


ray.init(sys.argv[1], runtime_env={"env_vars": {"PYTHONPATH": sys.argv[2]}}, log_to_driver=False)
for placement in ("pack", "spread"):
    resources = Resources(workers=2, engine="train", placement=placement)
    *_, end = WorkerGroup(where, Path(sys.argv[3]) / placement, resources, None).run({})
    print(end["ended"]["nodes"])
"""


LACKING = """
with cluster.connect(None, engine="train"):
    try:
        list(WorkerGroup(print, Path(sys.argv[1]), Resources(workers=2, engine="train"), [("/no/pictures", "")]).run({}))
    except RuntimeError as error:
        print(error)
"""


def test_workers_report_a_node_without_the_pictures(tmp_path):
    said = printed_by(IMPORTS + LACKING, tmp_path, timeout=120)
    assert "does not have what the driver has: no folder /no/pictures" in said


NO_ROOM = """
def train_one(config, post):
    post({"ended": {"at": time.time()}})


with cluster.connect(None, engine="train") as capacity:
    began = time.time()
    held = [ray.remote(num_cpus=1)(lambda: time.sleep(25)).remote() for _ in range(int(capacity.total("CPU")) - 1)]
    *_, end = WorkerGroup(train_one, Path(sys.argv[1]), Resources(workers=2, engine="train"), None).run({})
    print("waited" if end["ended"]["at"] > began + 20 else end)
"""


def test_a_trial_waits_until_its_workers_fit(tmp_path):
    """Ray Train counts missing resources as a controller failure, like workers that cannot start."""
    impatient = {**os.environ, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "2"}
    assert printed_by(IMPORTS + NO_ROOM, tmp_path, timeout=150, env=impatient).endswith("waited\n")


@ray.remote(num_cpus=0)
class PlacementRequester:
    """Request a placement group, as the controller of a Ray Train run does."""

    def ask(self):
        place = ray.util.placement_group([{"CPU": 0.01}])
        ray.get(place.ready())
        return place.id.hex()


@pytest.mark.usefixtures("ray_session")
def test_placement_groups_requested_by_a_dead_process_are_removed():
    lives, dies = PlacementRequester.remote(), PlacementRequester.remote()
    places = {each: ray.get(each.ask.remote()) for each in (lives, dies)}
    ours = ray.util.placement_group([{"CPU": 0.01}])
    ray.get(ours.ready())
    assert orphaned_placement_groups() == []
    ray.kill(dies)
    deadline = time.monotonic() + 20
    while not (orphaned := orphaned_placement_groups()):
        assert time.monotonic() < deadline
    assert orphaned == [places[dies]]
    remove_placement_groups(orphaned)
    while orphaned_placement_groups():
        assert time.monotonic() < deadline
    remove_placement_groups([places[lives], ours.id.hex()])


ALONE = """
def add(config, post):
    import torch
    import torch.distributed as processes

    if processes.get_rank() == config["fails"]:
        post({"ended": {"status": "failed", "total": 0}})
        return
    total = torch.tensor(config["number"] + processes.get_rank())
    processes.all_reduce(total)
    if processes.get_rank() == 0:
        post({"ended": {"status": "finished", "total": total.item()}})


with cluster.connect(None, engine="train"):
    group = WorkerGroup(add, Path(sys.argv[1]), Resources(workers=2, engine="train"), None)
    for number, fails in enumerate((None, 0, None, 1, None)):
        *_, end = group.run({"number": 100 * number, "fails": fails})
        print(*end["ended"].values())
"""


def test_a_failing_worker_ends_its_trial_and_the_next_one_has_all_workers(tmp_path):
    """The other worker waits in a collective, and would add its number to that of the next trial."""
    ends = printed_by(IMPORTS + ALONE, tmp_path, timeout=200).splitlines()
    assert ends == ["finished 1", "failed 0", "finished 401", "failed 0", "finished 801"]


def test_workers_are_packed_onto_one_node_or_spread_over_two(tmp_path):
    """Ray's nodes were started under torchrun, for whose store workers would wait half an hour."""
    below_torchrun = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "10.99.99.99", "MASTER_PORT": "1"}
    with Cluster(tmp_path / "cluster", workers=0, environment=below_torchrun) as cluster:
        for number in (2, 3):
            cluster.add_worker(cpus=4)
            cluster.wait_for(number)
        root = str(Path(__file__).parents[2])
        environment = {**cluster.environment, "PYTHONPATH": root}
        nodes = printed_by(IMPORTS + WHERE, cluster.address, root, tmp_path, env=environment, timeout=200)
    assert nodes.split() == ["1", "2"]


@pytest.fixture
def run(tmp_path, cache_dir):
    """Run a sweep on a cluster whose one worker has two CPUs and a GPU, and return its output."""
    with Cluster(tmp_path / "cluster", workers=0) as cluster:
        cluster.add_worker(cpus=2, gpus=1, has_project=True)
        cluster.wait_for(2)

        def sweep(*flags):
            words = ["sweep", sweep_file((0.1, 0.9), steps=40), "--name", "toy", "--cache-dir", cache_dir, *flags]
            done = cluster.run(*words, "--address", cluster.address, cwd=tmp_path)
            # On a slow machine a share gains nothing, and is refused.
            if "must train faster than one after the other" not in done.stdout:
                assert done.returncode == 0, done.stdout
                assert results_of(tmp_path / "sweeps" / "toy").count("finished") == 2
            return done.stdout

        yield sweep


def test_a_worker_gets_a_gpu_of_the_cluster_although_this_machine_has_none(run, tmp_path):
    said = run()
    events = read_events(tmp_path / "sweeps" / "toy")
    (session,) = [event for event in events if event.kind == "session"]
    assert session.body()["resources"]["gpus_per_worker"] == 1.0
    assert [event.kind for event in events if event.kind in {"started", "ended"}] == ["started", "ended"] * 2
    assert "was given a GPU, but torch finds no CUDA device there" in said


def test_a_share_is_measured_on_a_gpu_of_the_cluster(run):
    assert "2 trials share a GPU" in run("--gpus-per-worker", "0.5")
