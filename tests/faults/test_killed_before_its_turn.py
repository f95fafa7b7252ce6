"""kill -9 of the driver of a sweep that goes before another: the other goes on at once, and nothing of either is lost."""

import os
import signal
import time
from pathlib import Path

import pytest
import ray
from helpers.sweeps import Running, outcome, sweep_file

from tune_dml.record.results import results_of

pytestmark = pytest.mark.slow


@pytest.fixture
def begin(ray_session, new_database, cache_dir):
    """Begins a sweep on one Ray, each of whose trials takes the whole of it."""
    new_database(Path.cwd())
    common = ["--address", ray.get_runtime_context().gcs_address, "--cache-dir", cache_dir]
    whole = ["--cpus-per-worker", int(ray_session.total("CPU"))]
    sweeps = []

    def start(name, *words):
        sweeps.append(
            Running([*words, *common, *(whole if words[0] == "sweep" else [])], Path("sweeps", name).absolute())
        )
        return sweeps[-1]

    yield start
    for sweep in sweeps:
        sweep.stop()


def test_a_sweep_goes_on_when_the_one_before_it_is_killed_while_it_waits(begin, found):
    low = begin("low", "sweep", sweep_file((0.01, 0.1), steps=400, every=100), "--name", "low")
    low.wait_until(lambda: low.events("started"))
    high = begin("high", "sweep", sweep_file((0.1, 0.9), steps=20), "--name", "high", "--priority", 10)
    low.wait_until(lambda: low.events("waits"))
    assert results_of(low.folder).waits_for == "sweep high of priority 10"
    os.kill(high.pid, signal.SIGSTOP)
    os.kill(high.driver, signal.SIGKILL)
    os.kill(high.pid, signal.SIGKILL)
    since = time.time()
    low.wait_until(lambda: len(low.events("waits")) == 2, seconds=10)
    assert low.end() == 0, low.said()
    assert not high.events("started")
    row = outcome(low.folder, since)
    assert row["repeated"] == 0
    found("kill -9 of the driver of a sweep of higher priority that waits for room (two trials of the lower one)", row)

    again = begin("high", "resume", "high")
    assert again.end() == 0, again.said()
    assert {trial.status for trial in results_of(again.folder).trials} == {"finished"}
