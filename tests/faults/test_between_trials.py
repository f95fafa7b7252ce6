"""A worker is stopped or killed between two trials, when no rows are missing."""

import os
import signal
import time
from pathlib import Path

import pytest
import ray
from helpers.sweeps import outcome, sweep_file

from tune_dml.record.ledger import read_events, read_history
from tune_dml.record.results import results_of
from tune_dml.running.recorder import Recorder

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_worker_lost_between_two_trials_costs_nothing(
    ray_session, new_database, command_line, cache_dir, monkeypatch, found, number
):
    new_database(Path.cwd())
    original, faults = Recorder.on_trial_result, []

    def inject_fault(recorder, iteration, trials, trial, result, **info):
        original(recorder, iteration, trials, trial, result, **info)
        if '"ended"' in result["message"] and not faults:
            _, pid = ray.get(trial.temporary_state.ray_actor.get_current_ip_pid.remote())
            faults.append((trial.config["key"], time.time()))
            os.kill(pid, number)

    monkeypatch.setattr(Recorder, "on_trial_result", inject_fault)
    words = ["--name", "between", "--max-concurrent", 1, "--stall-limit", 10, "--cache-dir", cache_dir]
    code, output, error = command_line("sweep", sweep_file((0.1, 0.5, 0.9), steps=40), *words)
    assert code == 0, output + error
    folder = Path("sweeps/between")
    ((first, since),) = faults
    trials = results_of(folder).trials
    assert [trial.status for trial in trials] == ["finished"] * 3
    for trial in trials:
        assert [row["step"] for row in read_history(folder, trial.key)] == [20, 25, 40]
    assert [event.key for event in read_events(folder) if event.kind == "started"].count(first) == 1
    assert first not in {event.key for event in read_events(folder) if event.kind == "retry"}
    found(f"{number.name} of a worker between two trials (three trials, --stall-limit 10)", outcome(folder, since))
