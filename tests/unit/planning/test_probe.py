"""A plan's cost from a few steps: which cells are alike, and what a trial would take."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers.toys import plan_of, space_of
from helpers.trials import TASKS, config_of

from tune_dml.cli import plan as verb
from tune_dml.cli.plan import _preview
from tune_dml.planning.request import Request, Resources, Session
from tune_dml.running.trials import probe
from tune_dml.space import Baseline, Grid, Knob

QUICK = {"training.steps": 40, "training.eval_every": 20}


def test_a_probe_adds_up_and_looks_at_no_test_picture(cache_dir, monkeypatch):
    from trainables.probe import probe as run
    from trainables.tasks.retrieval import RetrievalLearner

    monkeypatch.setattr(RetrievalLearner, "test", lambda *arguments: pytest.fail("looked at the test half"))
    found, longer = (
        run(config_of(TASKS["retrieval"], training__steps=steps, training__eval_every=20), cache_dir=cache_dir)
        for steps in (40, 4000)
    )
    assert found.seconds < longer.seconds  # a hundred times the steps; how much longer depends on what else runs
    assert 50e6 < found.memory_bytes < 50e9
    assert found.gpu_bytes >= 0


def test_cells_that_differ_in_a_losss_numbers_alone_are_one_kind(monkeypatch):
    tried = []

    def fake(settings, threads, cache_dir, *, on_gpu):
        from trainables.probe import Probe

        tried.append(settings)
        size = settings["batch.batch_size"]
        return Probe(size, 1000 * size, 10 * size, 0)

    monkeypatch.setattr(probe, "probed", fake)
    sizes = Knob("batch.batch_size", Grid((8, 16)), symbol="B")
    margins = Knob("loss.margin", Grid((0.1, 0.2, 0.4)), symbol="m")
    space = space_of(
        sizes, margins, fixed={"batch.sampler": "random"}, baseline=Baseline("npair", {"loss.name": "npair"})
    )
    plan = plan_of(space=space, seeds=(5, 6))
    found = probe.probe_plan(plan, Resources(), None)
    assert found.shapes == 3
    assert {item["seed"] for item in tried} == {5}
    baseline = next(cell for cell in plan.cells if cell.baseline).settings["batch.batch_size"]
    assert found.seconds == pytest.approx((3 * 8 + 3 * 16 + baseline) / 7)
    assert found.memory_bytes == 1000 * max(16, baseline)
    assert found.checkpoint_bytes == 10 * max(16, baseline)


def test_plan_says_what_a_probe_found_and_how_to_get_it(cache_dir, tmp_path, monkeypatch):
    request = Request("sec_rho", dataset="digits", seeds=2, settings=QUICK)
    session = Session(tmp_path, cache_dir=cache_dir)
    plain = _preview(request, Resources(), session)
    assert any("`--probe` times a few steps" in str(line) for line in plain.text())
    found = probe.ProbeResult(36.0, 2_000_000_000, 5_000_000, 0, 2)
    monkeypatch.setattr(probe, "probe_plan", lambda *arguments: found)
    probed = _preview(request, Resources(), session, probe=True)
    assert probed.data()["seconds_per_trial"] == 36.0
    assert probed.worker_hours == pytest.approx(probed.trials / 100)
    assert math.isclose(probed.data()["memory_bytes"], 2e9)
    assert any("Memory: 2.00 GB a trial." in str(line) for line in probed.text())


@pytest.mark.parametrize(("stopping", "held"), [(None, 4), ("asha", 36)])
def test_what_checkpoints_take_is_said_beside_the_room_that_there_is(stopping, held, cache_dir, tmp_path, monkeypatch):
    """Two trials at once have two checkpoints each and write another; with stopping all eighteen may be paused."""
    monkeypatch.setattr(probe, "probe_plan", lambda *_: probe.ProbeResult(36.0, 2_000_000_000, 5_000_000, 0, 2))
    monkeypatch.setattr(
        "tune_dml.running.cluster.cluster.capacity_at", lambda *_: SimpleNamespace(trials_that_fit=lambda _: 2)
    )
    monkeypatch.setattr(verb.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    request = Request(
        "sec_rho", dataset="digits", seeds=3, settings={**QUICK, "training.eval_every": 4}, stopping=stopping
    )
    preview = _preview(request, Resources(), Session(tmp_path, cache_dir=cache_dir), probe=True)
    assert preview.trials == 18
    most = 5_000_000 * (held + 2)
    assert preview.data()["checkpoint_bytes"] == most
    assert any(f"Checkpoints take at most {most / 1e6:.1f} MB more" in str(line) for line in preview.text())
    assert any("1.0 GB are free there" in str(line) and "only" not in str(line) for line in preview.text())
    full = replace(preview, free_bytes=most)
    assert any("; only 0." in str(line) for line in full.text())
