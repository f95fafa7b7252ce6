"""A limit that is reached in mid-trial: the sweep ends in order, and goes on later where it was."""

import time

import pytest
from helpers.sweeps import Running, outcome, sweep_file, table

STEPS = 3000
HOURS = 0.004
"""Of workers: seven seconds of two trials, of which each takes longer."""


@pytest.mark.slow
def test_a_sweep_whose_hours_are_spent_stops_with_its_report_and_goes_on(tmp_path, monkeypatch, cache_dir, found):
    monkeypatch.chdir(tmp_path)
    common = [sweep_file(steps=STEPS), "--cache-dir", cache_dir]
    quiet = Running(["sweep", *common, "--name", "quiet"], tmp_path / "sweeps" / "quiet")
    assert quiet.end() == 0, quiet.said()

    since = time.time()
    limited = Running(["sweep", *common, "--name", "toy", "--gpu-hours", str(HOURS)], tmp_path / "sweeps" / "toy")
    assert limited.end() == 130, limited.said()
    assert f"of {HOURS} hours, resumable" in limited.said()
    assert (limited.folder / "report" / "report.html").exists()
    began = {event.key for event in limited.events("started")}
    assert began - {event.key for event in limited.events("ended")}, "a trial was to be stopped on its way"

    resumed = Running(["resume", "toy", "--cache-dir", cache_dir], limited.folder)
    assert resumed.end() == 0, resumed.said()
    assert table(resumed.folder) == table(quiet.folder)
    assert f"of {HOURS} hours" not in resumed.said()  # which was the first session's, not the sweep's
    found("the hours given are spent in mid-trial, then `resume`", outcome(resumed.folder, since))
