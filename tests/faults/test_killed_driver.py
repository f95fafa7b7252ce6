"""kill -9 of the driver in the middle of a sweep: no trial is lost or repeated."""

import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
import ray
from helpers.clusters import COMMAND
from helpers.stored_runs import StoredRuns
from helpers.sweeps import sweep_file

from tune_dml.record.ledger import read_events, read_history
from tune_dml.record.results import results_of
from tune_dml.running.recorder import Recorder

STEPS, EVERY = 120, 20


@pytest.fixture
def three_trials(ray_session, new_database):
    """Write a sweep file into the working directory."""
    new_database(Path.cwd())
    return sweep_file((0.01, 0.1, 0.5), steps=STEPS, every=EVERY)


def ended_and_begun(folder):
    """Return the keys of ended trials and of running trials."""
    events = read_events(folder)
    ended = {event.key for event in events if event.kind == "ended"}
    return ended, {event.key for event in events if event.kind == "started"} - ended


def reached(folder, key):
    """Return the last recorded step."""
    return max((row["step"] for row in read_history(folder, key)), default=0)


def kill_in_the_middle(process, folder):
    """Kill the driver when one trial has ended and another has a row; it is stopped during the check."""

    def in_the_middle():
        ended, begun = ended_and_begun(folder)
        return ended and any(reached(folder, key) for key in begun)

    deadline = time.monotonic() + 240
    while True:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        if in_the_middle():
            driver = int((folder / "lock").read_text())  # a child of the command, which would restart it
            os.kill(driver, signal.SIGSTOP)
            if in_the_middle():
                break
            os.kill(driver, signal.SIGCONT)
        time.sleep(0.05)
    process.kill()
    dying = os.pidfd_open(driver)
    os.kill(driver, signal.SIGKILL)
    select.select([dying], [], [])  # it holds the sweep's lock until it is gone
    os.close(dying)
    process.wait()


@pytest.mark.slow
def test_a_killed_driver_resumes_from_its_last_state(three_trials, command_line, cache_dir):
    """The driver uses an existing cluster; tests/faults/test_kills.py kills drivers that started Ray."""
    folder, address = Path.cwd() / "sweeps" / "killed", ray.get_runtime_context().gcs_address
    common = ["--max-concurrent", "1", "--cache-dir", str(cache_dir)]
    process = subprocess.Popen(
        [*COMMAND, "sweep", three_trials, "--name", "killed", "--address", address, *common],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    kill_in_the_middle(process, folder)
    before = read_events(folder)
    ended, begun = ended_and_begun(folder)
    assert any(reached(folder, key) for key in begun)

    code, output, error = command_line("resume", "killed", *common)
    assert code == 0, output + error

    started = [event.key for event in read_events(folder)[len(before) :] if event.kind == "started"]
    results = results_of(folder)
    assert {trial.status for trial in results.trials} == {"finished"}
    assert not set(started) & ended
    assert len(started) == len(set(started)) == 3 - len(ended)
    for trial in results.trials:
        steps = [row["step"] for row in read_history(folder, trial.key)]
        assert steps == sorted(set(steps))
        assert steps[-1] == STEPS
        assert trial.attempts == (2 if trial.key in begun else 1)

    seen = StoredRuns(f"sqlite:///{Path.cwd()}/mlflow.db", "killed")
    assert set(seen.by_key) == {trial.key for trial in results.trials}
    assert {run.info.status for run in seen.runs} == {"FINISHED"}
    for run in seen.children:
        assert [step for step, _, _ in seen.history(run)] == list(range(EVERY, STEPS + 1, EVERY))


@pytest.mark.slow
def test_an_interrupted_sweep_prints_the_resume_command(three_trials, command_line, cache_dir, monkeypatch):
    start = Recorder.on_trial_start

    def interrupted(*arguments, **options):
        start(*arguments, **options)
        monkeypatch.setattr(Recorder, "on_trial_start", start)
        os.kill(os.getpid(), signal.SIGINT)  # Ctrl+C, once

    monkeypatch.setattr(Recorder, "on_trial_start", interrupted)
    code, output, error = command_line(
        "sweep", three_trials, "--name", "cut", "--max-concurrent", 1, "--cache-dir", cache_dir
    )
    assert code == 130, output + error
    assert "tune-dml resume cut" in output + error
    assert any(event.kind == "started" for event in read_events(Path("sweeps/cut")))
