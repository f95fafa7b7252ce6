"""A plan's cost from a few steps, the GPUs of a machine, and trials that share one."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.processes import die
from helpers.toys import plan_of, space_of
from helpers.trials import TASKS, config_of

import tune_dml
from trainables.errors import ConfigError
from trainables.probe import Probe
from tune_dml import operations
from tune_dml.cli.plan import _preview
from tune_dml.planning.checks import gpus
from tune_dml.planning.checks.gpus import visibility_problems, visible_gpus
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request, Resources, Session
from tune_dml.record.state import SweepState
from tune_dml.running.cluster import cluster
from tune_dml.running.cluster.cluster import resource_problems
from tune_dml.running.trials import gpu_sharing, probe
from tune_dml.space import Baseline, Grid, Knob

GB = 1_000_000_000


@pytest.fixture
def gpu(monkeypatch):
    """Return a GPU of 16 GB with a memory per trial and steps per second by number of trials."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(gpus, "_KINDS", ("null",))  # as if it were there
    monkeypatch.setattr(cluster, "_has_ray", lambda: False)  # a Ray that another test has left knows of none

    def has(held, steps):
        seen = []

        def probe_settings(settings, threads, cache_dir):
            seen.append(settings)
            if isinstance(held, Exception):
                raise held
            return Probe(10.0, GB, 0, int(held * GB), 16 * GB)

        monkeypatch.setattr(gpu_sharing, "probe_settings", probe_settings)
        monkeypatch.setattr(gpu_sharing, "_steps_per_second", lambda settings, trials, *rest: steps[trials])
        return seen

    return has


@pytest.fixture
def plan(cache_dir):
    return prepare(Request("sec_rho", dataset="digits", seeds=2), cache_dir=cache_dir).plan


def measured(plan, tmp_path, **resources):
    return gpu_sharing.measure_gpu_sharing(plan, Resources(**resources), Session(tmp_path))


def test_the_gain_of_sharing_a_gpu_is_reported(gpu, plan, tmp_path):
    seen = gpu(3.5, {1: 20.0, 4: 50.0})
    (note,) = measured(plan, tmp_path, gpus_per_worker=0.25, micro_batch=7)
    assert note == "4 trials share a GPU: 3.50 GB each of 16.00 GB, 2.50 times the steps of one alone"
    assert {settings["training.micro_batch"] for settings in seen} == {7}


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0, 2.0])
def test_a_trial_with_its_own_gpu_is_not_measured(gpu, plan, tmp_path, share):
    seen = gpu(100.0, {})
    assert measured(plan, tmp_path, gpus_per_worker=share) == ()
    assert seen == []


@pytest.mark.parametrize(
    ("held", "steps", "rule"),
    [
        (3.9, {1: 20.0, 4: 80.0}, r"must fit into its memory \(4 trials share a GPU: 3.90 GB each of 16.00 GB\)"),
        (1.0, {1: 20.0, 4: 20.4}, r"must train faster than one after the other \(.* 1.02 times the steps"),
        (RuntimeError("CUDA out of memory. Tried to allocate 90.00 GiB"), {}, "out of memory.*micro_batch"),
        (ZeroDivisionError("in a method"), {}, "a few steps must run .*in a method"),
    ],
    ids=["too large", "no gain", "not even one", "a mistake"],
)
def test_trials_that_cannot_share_a_gpu_are_refused_before_writing(gpu, cache_dir, tmp_path, held, steps, rule):
    gpu(held, steps)
    with pytest.raises(ConfigError, match=f"gpus_per_worker(.|\n)*{rule}"):
        tune_dml.run_sweep(
            "sec_rho", dataset="digits", seeds=2, cache_dir=cache_dir, storage=tmp_path / "sweeps",
            resources=Resources(gpus_per_worker=0.25),
        )  # fmt: skip
    assert not list(Path(tmp_path).rglob("plan.json"))


def test_a_search_is_measured_at_its_largest_proposal(gpu, cache_dir, tmp_path):
    seen = gpu(1.0, {1: 20.0, 2: 40.0})
    request = Request("sec_rho", dataset="digits", seeds=2, search="random", num_samples=4)
    plan = prepare(request, cache_dir=cache_dir).plan
    assert measured(plan, tmp_path, gpus_per_worker=0.5)
    assert seen


@pytest.mark.slow
def test_processes_that_train_at_once_are_counted_together(plan, cache_dir, monkeypatch):
    monkeypatch.setattr(gpu_sharing, "_SECONDS", 0.1)
    settings = {**plan.cells[0].settings, "seed": 0}
    assert gpu_sharing._steps_per_second(settings, 2, 1, cache_dir) > 0


def test_a_complete_sweep_is_not_measured_again(gpu, cache_dir, tmp_path, monkeypatch):
    seen = gpu(1.0, {1: 20.0, 4: 80.0})
    given = {"dataset": "digits", "seeds": 1, "cache_dir": cache_dir, "storage": tmp_path}
    ran, measured_by = [], []
    monkeypatch.setattr(operations, "_execute", lambda state, *rest: ran.append(rest[-1].notes))
    for left in (3, 0):
        monkeypatch.setattr(SweepState, "trials_left", lambda state, confirmation, left=left: left)
        tune_dml.run_sweep("sec_rho", resources=Resources(gpus_per_worker=0.25), **given)
        measured_by.append(len(seen))
    assert [any("share a GPU" in note for note in notes) for notes in ran] == [True, False]
    assert measured_by[0] == measured_by[1] > 0


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    for number, uuid in (("0000:00:06.0", "GPU-24aa"), ("0000:00:07.0", "GPU-99bb")):
        (tmp_path / number).mkdir()
        (tmp_path / number / "information").write_text(f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}-6a45\nIRQ: 41\n")
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


COUNTS = {None: 2, "": 0, "-1": 0, "0": 1, "1,0": 2, " 0 , 1 ": 2, "0,-1,1": 1, "GPU-99": 1, "MIG-7a": 1}
ABSENT = [("7", 0, "7"), ("0,7", 1, "7"), ("7,0", 0, "7"), ("GPU-deadbeef", 0, "GPU-deadbeef"), ("all", 0, "all")]
"""As CUDA has it, those before the first that is absent count."""


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("named", "count", "absent"), [*((*item, "") for item in COUNTS.items()), *ABSENT], ids=str)
def test_visible_gpus_are_counted_and_missing_ones_reported(monkeypatch, named, count, absent):
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == count
    said = [str(problem) for problem in visibility_problems()]
    assert bool(said) == bool(absent)
    if said:
        assert said == [str(problem) for problem in resource_problems(Resources())], "a sweep would begin on the CPU"
        assert f"'{absent}'" in said[0]
        assert "which has 0, 1" in said[0]


def test_without_a_driver_list_torch_counts_the_named_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "none")
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    (tmp_path / "dxg").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert (visible_gpus(), visibility_problems()) == (2, [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert visible_gpus() == 2  # under WSL a sweep would otherwise train on the CPU
    (tmp_path / "dxg").unlink()
    assert visible_gpus() == 0


@pytest.mark.parametrize(
    ("named", "problems"), [("0", 1), ("0,GPU-99", 1), ("MIG-7a", 1), ("", 0), ("-1", 0), (None, 0)]
)
def test_a_named_gpu_on_a_machine_without_one_is_reported(tmp_path, monkeypatch, named, problems):
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "none")
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    monkeypatch.setattr(cluster, "_has_ray", lambda: False)  # a Ray that another test has left
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == 0
    said = [str(problem) for problem in resource_problems(Resources())]
    assert said == [str(problem) for problem in visibility_problems()]
    assert len(said) == problems
    assert all("which has none" in each and "(empty) trains on the CPU" in each for each in said)


QUICK = {"training.steps": 40, "training.eval_every": 20}


def test_a_probe_adds_up_and_looks_at_no_test_picture(cache_dir, monkeypatch):
    from trainables.probe import probe as run
    from trainables.tasks.retrieval import RetrievalLearner

    monkeypatch.setattr(RetrievalLearner, "test", lambda *arguments: pytest.fail("looked at the test half"))
    lengths = [{"training__steps": steps, "training__eval_every": 20} for steps in (40, 4000)]
    found, longer = (run(config_of(TASKS["retrieval"], **length), cache_dir=cache_dir) for length in lengths)
    assert found.seconds < longer.seconds  # a hundred times the steps; how much longer depends on what else runs
    assert 50e6 < found.memory_bytes < 50e9
    assert found.gpu_bytes >= 0


@pytest.mark.parametrize(
    "measure",
    [lambda: probe.probe_settings({}, 1, None), lambda: gpu_sharing._steps_per_second({}, 2, 1, None)],
    ids=["alone", "sharing"],
)
def test_a_killed_measurement_is_one_problem(monkeypatch, measure):
    monkeypatch.setattr(probe, "_probe", die)
    monkeypatch.setattr(gpu_sharing, "_count_steps", die)
    with pytest.raises(ConfigError, match=r"was killed, perhaps for lack of memory. Use smaller batches"):
        measure()


def test_cells_that_differ_only_in_loss_knobs_are_one_kind(monkeypatch):
    tried = []

    def fake(settings, threads, cache_dir, *, on_gpu):
        tried.append(settings)
        size = settings["batch.batch_size"]
        return Probe(size, 1000 * size, 10 * size, 0)

    monkeypatch.setattr(probe, "probe_settings", fake)
    sizes = Knob("batch.batch_size", Grid((8, 16)), symbol="B")
    margins = Knob("loss.margin", Grid((0.1, 0.2, 0.4)), symbol="m")
    npair = Baseline("npair", {"loss.name": "npair"})
    plan = plan_of(space=space_of(sizes, margins, fixed={"batch.sampler": "random"}, baseline=npair), seeds=(5, 6))
    found, shapes = probe.probe_plan(plan, Resources(), None)
    assert shapes == 3
    assert {item["seed"] for item in tried} == {5}
    baseline = next(cell for cell in plan.cells if cell.baseline).settings["batch.batch_size"]
    assert found.seconds == pytest.approx((3 * 8 + 3 * 16 + baseline) / 7)
    assert found.memory_bytes == 1000 * max(16, baseline)
    proxies = plan_of(space=space_of(Knob("loss.proxies_per_class", Grid((1, 8))), fixed={"loss.name": "mpa"}))
    assert probe.probe_plan(proxies, Resources(), None)[1] == 2  # the product with the proxies is the loss's cost
    assert found.checkpoint_bytes == 10 * max(16, baseline)


def test_plan_prints_the_probe_and_suggests_it(cache_dir, tmp_path, monkeypatch):
    request = Request("sec_rho", dataset="digits", seeds=2, settings=QUICK)
    session = Session(tmp_path, cache_dir=cache_dir)
    plain = _preview(request, Resources(), session)
    assert any("`--probe` times a few steps" in str(line) for line in plain.text())
    monkeypatch.setattr(probe, "probe_plan", lambda *_: (Probe(36.0, 2_000_000_000, 5_000_000, 0), 2))
    probed = _preview(request, Resources(), session, probe=True)
    assert probed.data()["seconds_per_trial"] == 36.0
    assert probed.worker_hours == pytest.approx(probed.trials / 100)
    assert math.isclose(probed.data()["memory_bytes"], 2e9)
    assert any("Memory: 2.00 GB a trial." in str(line) for line in probed.text())


@pytest.mark.parametrize(("stopping", "held"), [(None, 4), ("asha", 36)])
def test_the_size_of_checkpoints_is_printed_with_the_free_space(stopping, held, cache_dir, tmp_path, monkeypatch):
    """Two trials at once have two checkpoints each and write another; with stopping all eighteen may be paused."""
    monkeypatch.setattr(probe, "probe_plan", lambda *_: (Probe(36.0, 2_000_000_000, 5_000_000, 0), 2))
    monkeypatch.setattr(cluster, "capacity_at", lambda *_: SimpleNamespace(trials_that_fit=lambda _: 2))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    settings = {**QUICK, "training.eval_every": 4}
    request = Request("sec_rho", dataset="digits", seeds=3, settings=settings, stopping=stopping)
    preview = _preview(request, Resources(gpus_per_worker=0), Session(tmp_path, cache_dir=cache_dir), probe=True)
    assert preview.trials == 18
    most = 5_000_000 * (held + 2)
    assert preview.data()["checkpoint_bytes"] == most
    assert any(f"Checkpoints take at most {most / 1e6:.1f} MB more" in str(line) for line in preview.text())
    assert any("1.0 GB are free there" in str(line) and "only" not in str(line) for line in preview.text())
    full = replace(preview, free_bytes=most)
    assert any("; only 0." in str(line) for line in full.text())
