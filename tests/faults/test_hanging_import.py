"""A method's module hangs while a trial imports it, before the first step."""

from pathlib import Path

import pytest
from helpers.packages import write_package
from helpers.sweeps import SweepProcess, sweep_file

from tune_dml.record.results import results_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HANGS_ONCE = """
import pathlib, sys, time
in_ray = sys.modules.get("ray._private.worker")
if in_ray and in_ray.global_worker.mode == in_ray.WORKER_MODE:
    try:
        pathlib.Path(__file__).with_name("hung").touch(exist_ok=False)
        time.sleep(10_000)
    except FileExistsError:
        pass
"""


def test_a_hanging_import_ends_within_the_start_limit(tmp_path, cache_dir):
    loss = (ROOT / "tests" / "toy_package" / "toy_dml" / "loss.py").read_text()
    write_package(tmp_path / "own", "toy_margin = own_loss:ToyMarginLoss", own_loss=loss + HANGS_ONCE)
    file = Path(sweep_file((0.1, 0.5), steps=40))
    file.write_text(file.read_text().replace("fixed: {", "fixed: {loss.name: toy_margin, "))
    words = ["sweep", file, "--name", "toy", "--cache-dir", cache_dir, "--max-concurrent", 1, "--start-limit", 10]
    path = f"{tmp_path / 'own'}:{ROOT}"
    sweep = SweepProcess(words, tmp_path / "sweeps" / "toy", {"PYTHONPATH": path})
    assert sweep.end(seconds=150) == 0, sweep.read_output()
    assert "stalled: no first step for 10 s; retrying from the checkpoint" in sweep.read_output()
    assert [trial.status for trial in results_of(sweep.folder).trials] == ["finished"] * 2
    assert len(sweep.events("retry")) == 1
