"""Trials that share a GPU: what is measured before, and what is refused."""

from pathlib import Path

import pytest

import tune_dml
from trainables.errors import ConfigError
from trainables.probe import Probe
from tune_dml import operations
from tune_dml.planning.checks import gpus
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request, Resources, Session
from tune_dml.record.state import SweepState
from tune_dml.running.cluster import cluster
from tune_dml.running.trials import gpu_sharing

GB = 1_000_000_000


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 16 GB on which trials hold so much, and so many at once make so many steps a second."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(gpus, "_KINDS", ("null",))  # as if it were there
    monkeypatch.setattr(cluster, "_is_there", lambda: False)  # a Ray that another test has left knows of none

    def has(held, steps):
        seen = []

        def probed(settings, threads, cache_dir):
            seen.append(settings)
            if isinstance(held, Exception):
                raise held
            return Probe(10.0, GB, 0, int(held * GB), 16 * GB)

        monkeypatch.setattr(gpu_sharing, "probed", probed)
        monkeypatch.setattr(
            gpu_sharing, "_steps_per_second", lambda settings, trials, threads, cache_dir: steps[trials]
        )
        return seen

    return has


@pytest.fixture
def plan(cache_dir):
    return prepare(Request("sec_rho", dataset="digits", seeds=2), cache_dir=cache_dir).plan


def measured(plan, tmp_path, **resources):
    return gpu_sharing.measure_gpu_sharing(plan, Resources(**resources), Session(tmp_path))


def test_what_is_gained_is_said(gpu, plan, tmp_path):
    seen = gpu(3.5, {1: 20.0, 4: 50.0})
    (note,) = measured(plan, tmp_path, gpus_per_worker=0.25, micro_batch=7)
    assert note == "4 trials share a GPU: 3.50 GB each of 16.00 GB, 2.50 times the steps of one alone"
    assert {settings["training.micro_batch"] for settings in seen} == {7}


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0, 2.0])
def test_a_trial_with_a_gpu_to_itself_is_not_measured(gpu, plan, tmp_path, share):
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
def test_what_cannot_share_is_refused_before_anything_is_written(gpu, cache_dir, tmp_path, held, steps, rule):
    gpu(held, steps)
    with pytest.raises(ConfigError, match=f"gpus_per_worker(.|\n)*{rule}"):
        tune_dml.run_sweep(
            "sec_rho", dataset="digits", seeds=2, cache_dir=cache_dir, storage=tmp_path / "sweeps",
            resources=Resources(gpus_per_worker=0.25),
        )  # fmt: skip
    assert not list(Path(tmp_path).rglob("plan.json"))


def test_a_search_is_measured_at_what_it_may_propose(gpu, cache_dir, tmp_path):
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


def test_a_sweep_that_has_nothing_left_is_not_measured_again(gpu, cache_dir, tmp_path, monkeypatch):
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
