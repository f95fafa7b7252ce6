"""A budget is spent during a trial: the sweep stops in order and can be resumed."""

import time

import pytest
from helpers.sweeps import SweepProcess, sweep_file

STEPS = 3000
HOURS = 0.004
"""GPU hours: seven seconds of two trials, each of which takes longer."""


@pytest.mark.slow
def test_a_sweep_that_spent_its_hours_writes_its_report_and_resumes(tmp_path, cache_dir, found):
    common = [sweep_file(steps=STEPS), "--cache-dir", cache_dir]
    quiet = SweepProcess(["sweep", *common, "--name", "quiet"], tmp_path / "sweeps" / "quiet").final_table()
    since = time.time()
    limited = SweepProcess(["sweep", *common, "--name", "toy", "--gpu-hours", str(HOURS)], tmp_path / "sweeps" / "toy")
    assert limited.end() == 130, limited.read_output()
    assert f"of {HOURS} hours, resumable" in limited.read_output()
    assert (limited.folder / "report" / "report.html").exists()
    began = {event.key for event in limited.events("started")}
    assert began - {event.key for event in limited.events("ended")}, "no trial was stopped before its end"

    resumed = SweepProcess(["resume", "toy", "--cache-dir", cache_dir], limited.folder)
    after = resumed.finish(quiet, since)
    assert f"of {HOURS} hours" not in resumed.read_output()  # the limit belonged to the first session
    found("the hours given are spent in mid-trial, then `resume`", after)
