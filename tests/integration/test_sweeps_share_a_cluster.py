"""Two sweeps at once on one Ray: the one of higher priority goes first, and nothing of the other is lost."""

from pathlib import Path

import pytest
import ray
from helpers.sweeps import Running, sweep_file

from tune_dml.record.ledger import read_events
from tune_dml.record.results import results_of


@pytest.fixture
def low(ray_session, new_database, cache_dir):
    """A long sweep under way in a process of its own; each of its trials takes the whole machine."""
    new_database(Path.cwd())
    common = ["--cache-dir", cache_dir, "--cpus-per-worker", int(ray_session.total("CPU"))]
    values = [round(0.01 * number, 2) for number in range(100)]
    file, address = sweep_file(values, steps=30, every=30), ray.get_runtime_context().gcs_address
    words = ["sweep", file, "--name", "low", "--address", address]
    sweep = Running([*words, *common], Path.cwd() / "sweeps" / "low")
    sweep.wait_until(lambda: sweep.events("started"))
    yield sweep, common
    sweep.stop()


@pytest.mark.slow
def test_the_higher_one_begins_all_its_trials_before_the_lower_one_begins_another(low, command_line):
    sweep, common = low
    high = ["sweep", sweep_file((0.1, 0.5, 0.9), steps=30, every=30), "--name", "high", "--priority", 10]
    code, output, error = command_line(*high, *common)
    assert code == 0, output + error

    events = read_events(Path("sweeps/high"))
    first, *_, last = [event.time for event in events if event.kind == "started"]
    sweep.wait_until(lambda: any(event.time > last for event in sweep.events("started")))
    assert not [event for event in sweep.events("started") if first < event.time < last]
    assert [event.body()["text"] for event in sweep.events("waits")] == ["sweep high of priority 10", ""]
    assert "waits for sweep high of priority 10" in sweep.said()
    assert not sweep.events("retry")
    assert {trial.status for trial in results_of(Path("sweeps/low")).trials} <= {"finished", "running", "missing"}
    assert not [event for event in events if event.kind in {"waits", "retry"}]
